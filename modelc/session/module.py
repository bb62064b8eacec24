"""What `import onnxruntime` gives, once it is modelc's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from modelc.runtime.files import ARCHIVE, MANIFEST
from modelc.runtime.interface import BY_NAME, VERSION, capi_of
from modelc.runtime.refusals import Fail, NoModelType
from modelc.runtime.session import InferenceSession as PackageSession
from modelc.runtime.session import Packaged, Source
from modelc.session.compiled import Compiled

__all__ = ["BY_NAME", "CAPI", "VERSION", "InferenceSession", "install"]

NAME, OWN = "onnxruntime", "modelc.session"


class InferenceSession(PackageSession):
    """A session on an ONNX model, given by its path or its bytes, or on a package, by its path. A model is compiled for
    this machine and verified, once for each set of shapes that it is run on, and kept in the user's cache.

    Raises NoSuchFile, InvalidProtobuf and InvalidArgument for what is no model; Fail where the model cannot be
    compiled, as soon as the shapes of its inputs are known; TypeError for what is neither a path nor bytes."""

    def _source_of(self, model: Any, threads: int | None) -> Source:
        if isinstance(model, bytes):
            return Compiled(model, threads, self._sizes)
        if not isinstance(model, str | os.PathLike):
            raise NoModelType(f"expected the path or the bytes of a model, found {type(model).__name__}")
        path = Path(os.path.abspath(model))
        if path.name.endswith(ARCHIVE) or (path / MANIFEST).exists():
            return Packaged(model, threads)
        return Compiled(path, threads, self._sizes)

    @property
    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = getattr(self._options, "free_dimensions", {})
        return sizes


CAPI = capi_of(OWN, InferenceSession)


def install() -> None:
    """From now on `import onnxruntime` in this process gives modelc.session. Raises Fail where ONNX Runtime itself has
    been imported: what holds its names would go on to use it."""
    present = sys.modules.get(NAME)
    if present is not None and present is not sys.modules[OWN]:
        raise Fail(
            "onnxruntime has been imported already: call modelc.session.install() before whatever imports onnxruntime"
        )
    sys.modules[NAME] = sys.modules[OWN]
    for name, module in CAPI.items():
        sys.modules[name.replace(OWN, NAME, 1)] = module
