"""Calibration data: an .npz file whose arrays have a leading axis of samples, or a folder with a file for each sample.
One of four samples is held back to judge by, and calibrates nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.compile.arrays import read_npz
from modelc.errors import InputError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import element_type
from modelc.frontend.steering.npy import Kind, read_npy
from modelc.frontend.steering.specialise import declared_shapes, free_inputs
from modelc.ir.expr import DTYPES

Arrays = Mapping[str, NDArray[Any]]
LEAST = 8  # samples
MOST = 100_000
HELD_BACK = 4  # of so many samples the last is held back


@dataclass(frozen=True)
class Input:
    """An input as the model declares it; of `dims` those are texts that it leaves open, None: all of them."""

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None

    def lacks_batch(self, shape: Sequence[int]) -> bool:
        """Whether a sample leaves out the input's first axis, of one element."""
        dims = self.dims
        if not dims or len(shape) != len(dims) - 1:
            return False
        return isinstance(dims[0], str) or dims[0] == 1

    def check(self, kind: Kind, where: str) -> None:
        """Raises InputError for a sample of another dtype or shape than the input has."""
        if kind.dtype.newbyteorder("=") != DTYPES[self.dtype]:
            raise InputError(
                f"{where} has {self.name!r} in {kind.dtype}; expected {self.dtype}: write it with "
                f".astype({self.dtype!r})"
            )
        shape = (1, *kind.shape) if self.lacks_batch(kind.shape) else kind.shape
        fits = self.dims is None or len(shape) == len(self.dims)
        if not fits or any(d != n and not isinstance(d, str) for d, n in zip(self.dims or (), shape, strict=False)):
            raise InputError(f"{where} has {self.name!r} of shape {list(shape)}; expected {self}")

    def __str__(self) -> str:
        dims = "" if self.dims is None else f"[{', '.join(str(d) or '?' for d in self.dims)}]"
        return f"{self.name!r} {self.dtype}{dims}"


@dataclass(frozen=True)
class Samples:
    """What layers are calibrated on, and what is held back. A sample has the model's inputs, and `others`, which a
    metric may want, such as labels."""

    calibrating: tuple[Arrays, ...]
    judging: tuple[Arrays, ...]
    others: tuple[str, ...]


def read_samples(path: Path, model: Path, constants: Arrays) -> Samples:
    """The samples at `path` for a model some of whose inputs are `constants`. Raises InputError."""
    inputs = tuple(one for one in inputs_of(model) if one.name not in constants)
    samples = _of_folder(path, inputs) if path.is_dir() else _of_file(path, inputs)
    _check_count(path, len(samples))
    for number, sample in enumerate(samples):
        for taken in inputs:
            array = sample[taken.name]
            array = sample[taken.name] = array[None] if taken.lacks_batch(array.shape) else array
            taken.check(Kind(array.dtype, array.shape), f"{path}: sample {number}")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(
                    f"{path}: sample {number} has a number in {taken.name!r} that is not finite (NaN or infinite)"
                )
    given = {one.name for one in inputs}
    if all(np.array_equal(sample[name], samples[0][name]) for name in given for sample in samples[1:]):
        raise InputError(
            f"{path}: all {len(samples)} samples are equal, and nothing can be judged by them; expected samples that "
            "differ"
        )
    others = tuple(sorted({name for sample in samples for name in sample} - given - constants.keys()))
    every = [{**sample, **constants} for sample in samples]
    held = every[HELD_BACK - 1 :: HELD_BACK]
    return Samples(tuple(x for k, x in enumerate(every, 1) if k % HELD_BACK), tuple(held), others)


def inputs_of(model: Path) -> tuple[Input, ...]:
    """Of a model in a file. Raises ModelError."""
    graph = read_outline(model).graph
    declared = declared_shapes(graph)
    kinds = {
        name: element_type(info.type.tensor_type.elem_type, f"input {name!r}")
        for name, info in free_inputs(graph).items()
    }
    return tuple(Input(name, kinds[name], dims if dims is None else tuple(dims)) for name, dims in declared.items())


def _of_file(path: Path, inputs: Sequence[Input]) -> list[dict[str, NDArray[Any]]]:
    arrays = read_npz(path, lambda kinds: _check_kinds(path, kinds, inputs))
    count = len(next(iter(arrays.values()))) if arrays else 0
    return [{name: array[k] for name, array in arrays.items()} for k in range(count)]


def _check_kinds(path: Path, kinds: Mapping[str, Kind], inputs: Sequence[Input]) -> None:
    """Raises InputError where the arrays of a file are no samples, before any of them is read."""
    if missing := [one for one in inputs if one.name not in kinds]:
        raise InputError(
            f"{path} has no array for the input {missing[0]}; it has {', '.join(map(repr, kinds)) or 'none'}: "
            "expected an array for each input, with a leading axis of samples"
        )
    counts = {name: kind.shape[0] if kind.shape else 0 for name, kind in kinds.items()}
    first = inputs[0].name if inputs else next(iter(kinds))
    if wrong := [name for name, count in counts.items() if count != counts[first]]:
        raise InputError(
            f"{path}: {first!r} has {counts[first]} samples and {wrong[0]!r} {counts[wrong[0]]}; expected as many in "
            "every array, along its leading axis"
        )
    _check_count(path, counts[first])
    for taken in inputs:
        kind = kinds[taken.name]
        taken.check(Kind(kind.dtype, kind.shape[1:]), f"{path}: sample 0")


def _of_folder(path: Path, inputs: Sequence[Input]) -> list[dict[str, NDArray[Any]]]:
    files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".npy"))
    if not files:
        raise InputError(f"{path} has no file .npz or .npy; expected one for each sample")
    if len(files) > MOST:
        raise InputError(f"{path} has {len(files)} files; expected at most {MOST}")
    if any(file.suffix == ".npy" for file in files) and len(inputs) != 1:
        raise InputError(
            f"{path} has .npy files, which have one array each, and the model {len(inputs)} inputs: write .npz files "
            "with an array for each input"
        )
    return [_of_one(file, inputs) for file in files]


def _of_one(file: Path, inputs: Sequence[Input]) -> dict[str, NDArray[Any]]:
    """The arrays of a file with one sample, which is looked at before it is read."""

    def accept(kinds: Mapping[str, Kind]) -> None:
        if missing := [one for one in inputs if one.name not in kinds]:
            raise InputError(
                f"{file} has no array for the input {missing[0]}; it has {', '.join(map(repr, kinds)) or 'none'}"
            )
        for taken in inputs:
            taken.check(kinds[taken.name], str(file))

    if file.suffix == ".npz":
        return read_npz(file, accept)
    name = inputs[0].name
    return {name: read_npy(file, lambda kind: accept({name: kind}))}


def _check_count(path: Path, count: int) -> None:
    if not LEAST <= count <= MOST:
        raise InputError(
            f"{path} has {count} sample(s); expected {LEAST} to {MOST}, of which every fourth is held back to judge by"
        )
