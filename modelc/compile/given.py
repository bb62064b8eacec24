"""Data that a user gives in a file. What its arrays are is compared with what models and packages take before any of it
is read: an .npz file of some megabytes may hold arrays of some gigabytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from modelc.compile.arrays import read_npz
from modelc.errors import InputError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import ELEMENT_TYPES
from modelc.frontend.steering.npy import Kind, read_npy
from modelc.frontend.steering.specialise import Dims, declared_shapes, free_inputs
from modelc.ir.expr import DTYPES
from modelc.package import read_package
from modelc.runtime.files import ARCHIVE


class Taken(NamedTuple):
    """An input; without a dtype where that is none that modelc computes with."""

    name: str
    dtype: str | None
    dims: Dims | None

    def fits(self, kind: Kind) -> bool:
        """Of a package whose sizes are free these are the most."""
        if self.dtype is not None and not kind.holds(self.dtype):
            return False
        return self.dims is None or (
            len(kind.shape) == len(self.dims)
            and all(isinstance(d, str) or n <= d for n, d in zip(kind.shape, self.dims, strict=True))
        )


def read_given(path: Path, takers: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises InputError, also where an array is of no input, or of another rank or
    dtype or larger than the input is, of all the models and packages `takers`."""
    inputs = _inputs_of(takers)

    def accept(kinds: Mapping[str, Kind]) -> None:
        for name, kind in kinds.items():
            _check(path, name, kind, inputs, takers)

    return read_npz(path, accept)


def read_one_given(path: Path, name: str, takers: Sequence[Path]) -> NDArray[Any]:
    """The array of a .npy file for the input of that name. Raises InputError, likewise."""
    inputs = _inputs_of(takers)
    return read_npy(path, lambda kind: _check(path, name, kind, inputs, takers))


def _check(path: Path, name: str, kind: Kind, inputs: Sequence[Taken], takers: Sequence[Path]) -> None:
    of_name = [taken for taken in inputs if taken.name == name]
    if any(one.fits(kind) for one in of_name):
        return
    shown = " or ".join(dict.fromkeys(f"{one.dtype or ''}{list(one.dims or ())}" for one in of_name))
    expected = f"{name!r}, {shown}" if of_name else ", ".join(dict.fromkeys(one.name for one in inputs))
    whose = " and ".join(map(str, takers))
    raise InputError(f"{path} has {name!r}, {kind}; the inputs of {whose} are {expected}")


def _inputs_of(takers: Sequence[Path]) -> list[Taken]:
    """Each input, for each variant: of a package also of what are constants in it."""
    inputs = list[Taken]()
    for taker in takers:
        if not taker.is_dir() and taker.suffix != ARCHIVE:
            graph = read_outline(taker).graph
            shapes = declared_shapes(graph)
            types = {n: ELEMENT_TYPES.get(i.type.tensor_type.elem_type) for n, i in free_inputs(graph).items()}
            inputs += [Taken(n, types[n] if types[n] in DTYPES else None, dims) for n, dims in shapes.items()]
            continue
        manifest = read_package(taker).manifest
        inputs += [Taken(t.name, t.dtype, t.shape) for plan in manifest.variants for t in plan.inputs]
        inputs += [Taken(c.name, c.tensor.dtype, c.tensor.shape) for c in manifest.constants]
    return inputs
