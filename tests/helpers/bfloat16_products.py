"""What tests of contractions in bfloat16 share: machines that have them, tolerances, and a verification that fails
once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelc.compile import pipeline
from modelc.compile.config import load_config
from modelc.compile.programs import Programs
from modelc.compile.publish import Comparison
from modelc.partition.narrow_products import multiplies
from modelc.partition.precision import contracting_tasks
from modelc.target import load_target
from modelc.verify.compare import Tolerance
from modelc.verify.report import Report

DEFAULT = load_config()
native = pytest.mark.skipif(
    not multiplies(load_target("native"), "bfloat16"), reason="this machine cannot multiply bfloat16"
)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def strict(rms: float, largest: float = 1e-1) -> Any:
    return replace(DEFAULT, verify=replace(DEFAULT.verify, bf16=Tolerance(rms, largest)))


def products_add_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first package is said to be wrong, and matrix products to add most to the error."""
    check, reports = Comparison.report, list[Report]()

    def checked(comparison: Comparison, folder: Path, say: Callable[[str], None]) -> Report:
        reports.append(check(comparison, folder, say))
        return reports[-1] if len(reports) > 1 else replace(reports[-1], failure="was said to be wrong")

    def added(run: pipeline.Run, programs: Programs) -> list[dict[str, float]]:
        return [{name: 0.5 * name.startswith("matmul") for name in contracting_tasks(p)} for p in programs.wide]

    monkeypatch.setattr(Comparison, "report", checked)
    monkeypatch.setattr(pipeline.Run, "added", added)
