"""The package of an ONNX model for the shapes that it is run on: compiled once, then taken from the user's cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.cache.code import code_digest
from modelc.cache.packages import is_refused, package_of, refuse
from modelc.compile.opened import Open
from modelc.compile.request import CompileRequest
from modelc.database import code_version
from modelc.errors import ModelcError, ModelError, blaming
from modelc.frontend.load.beside import files_beside
from modelc.frontend.load.given import UNNAMED, model_file
from modelc.package.read import sha256_of
from modelc.target import Target, load_target

Shapes = Mapping[str, tuple[int, ...]]
Constants = Mapping[str, NDArray[Any]]
KEY_DIGITS = 32
MOST_HELD = 1 << 28  # bytes of a model that is kept in memory


@dataclass(frozen=True)
class SourceModel:
    """An ONNX model as a session is given it: a file, or its bytes. `name` is what its package is called."""

    given: Path | bytes
    name: str = UNNAMED

    def held(self) -> SourceModel:
        """The model in memory, for its file may be removed when a session is open. A large one, and one whose tensors
        lie in other files, stays where it is. Raises ModelError."""
        if isinstance(self.given, bytes) or self.given.stat().st_size > MOST_HELD or files_beside(self.given):
            return self
        return SourceModel(self.given.read_bytes(), self.given.stem)

    def file(self) -> AbstractContextManager[Path]:
        """A file that it is in. Raises ModelError."""
        return model_file(self.given if isinstance(self.given, bytes) else str(self.given), self.name)

    @cached_property
    def digest(self) -> str:
        """Of its bytes, and of the files in which its tensors lie. Raises ModelError."""
        if isinstance(self.given, bytes):
            return hashlib.sha256(self.given).hexdigest()
        return " ".join(map(sha256_of, (self.given, *files_beside(self.given))))


def package_for(model: SourceModel, shapes: Shapes, constants: Constants) -> Path:
    """The package of `model` for inputs of these shapes on this machine, where `constants` are inputs of these values.
    Compiles and verifies it, if that was not done before. Raises ModelcError where it cannot be compiled, or is wrong.
    """
    target = load_target("native")

    def make(place: Path) -> None:
        from modelc.compile.command import compile_request  # which takes a second to import, and only this needs

        with model.file() as path, blaming(f"model {path}"):
            compile_request(CompileRequest(path, target, place, shapes=shapes, constants=constants))

    return package_of(_key(model, shapes, constants, target), make)


def package_of_any_size(model: SourceModel, shapes: Shapes, constants: Constants) -> Path | None:
    """The package of `model` whose free dimensions are left open: within bounds that inputs of the first `shapes` are
    in, of whoever asked first, and with schedules for these. None where there is none, as was found out once."""
    target = load_target("native")
    key = _key(model, None, constants, target)

    def make(place: Path) -> None:
        from modelc.compile.command import compile_request
        from modelc.compile.free_bounds import ranges_around

        with model.file() as path, blaming(f"model {path}"):
            dims = ranges_around(path, shapes, constants)
            if not any(isinstance(numbers, Open) for numbers in dims.values()):
                raise ModelError("the model takes one size alone")
            compile_request(CompileRequest(path, target, place, dims=dims, constants=constants))

    if is_refused(key):
        return None
    try:
        return package_of(key, make)
    except ModelcError as error:
        refuse(key, str(error))
        return None


def _key(model: SourceModel, shapes: Shapes | None, constants: Constants, target: Target) -> str:
    """The digest of all that decides the package; `shapes` is None where sizes are open."""
    said = {
        "model": model.digest,
        "shapes": None if shapes is None else {name: list(shape) for name, shape in shapes.items()},
        "constants": {name: [a.dtype.name, list(a.shape), a.tobytes().hex()] for name, a in constants.items()},
        "target": target.key,
        "modelc": [code_digest(), code_version(target)],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]
