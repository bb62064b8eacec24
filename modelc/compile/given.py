"""Data that a user gives in a file. What its arrays are is compared with what models and packages take before any of it
is read: an .npz file of some megabytes may hold arrays of some gigabytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.compile.arrays import Kind, read_npz
from modelc.errors import InputError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.specialise import Dims, declared_shapes
from modelc.package import read_package
from modelc.runtime.files import ARCHIVE


def read_given(path: Path, takers: Sequence[Path]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises InputError, also where an array is of no input, or of another rank or
    larger than the input is, of all the models and packages `takers`."""
    inputs = [one for taker in takers for one in _inputs_of(taker)]

    def accept(kinds: Mapping[str, Kind]) -> None:
        for name, (dtype, shape) in kinds.items():
            taken = [dims for input_name, dims in inputs if input_name == name]
            if not any(_fits(shape, dims) for dims in taken):
                shapes = " or ".join(dict.fromkeys(str(list(dims or ())) for dims in taken))
                expected = (
                    f"{name!r} of the shape {shapes}" if taken else ", ".join(dict.fromkeys(n for n, _ in inputs))
                )
                whose = " and ".join(map(str, takers))
                raise InputError(f"{path} has {name!r}, {dtype}{list(shape)}; the inputs of {whose} are {expected}")

    return read_npz(path, accept)


def _inputs_of(taker: Path) -> Iterator[tuple[str, Dims | None]]:
    """The name and the shape of each input, for each variant: of a package also of what are constants in it."""
    if not taker.is_dir() and taker.suffix != ARCHIVE:
        yield from declared_shapes(read_outline(taker).graph).items()
        return
    manifest = read_package(taker).manifest
    for plan in manifest.variants:
        yield from ((tensor.name, tensor.shape) for tensor in plan.inputs)
    yield from ((constant.name, constant.array().shape) for constant in manifest.constants)


def _fits(shape: tuple[int, ...], dims: Dims | None) -> bool:
    """Padded dimensions may be shorter than a package's."""
    if dims is None:
        return True
    return len(shape) == len(dims) and all(isinstance(d, str) or n <= d for n, d in zip(shape, dims, strict=True))
