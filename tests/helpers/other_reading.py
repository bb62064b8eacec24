"""ONNX Runtime as it would be if it read a model otherwise than modelc does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modelc.package import Package
from modelc.verify.reference import Reference


@contextmanager
def read_as(other: Path) -> Iterator[None]:
    """What is verified is compared with ONNX Runtime running `other`, as if it had read the model so."""
    begin = Reference.__init__

    def begin_with_other(self: Reference, package: Package, model: str | Path) -> None:
        begin(self, package, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reference, "__init__", begin_with_other)
        yield
