"""What a user fixes of a model before it is compiled: dimensions by name (--dim), inputs that become constants
(--constant), shapes (--shape), and data to verify with, which may say the shapes too (--inputs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelc.errors import InputError, ModelError
from modelc.frontend.building.limits import check_shape
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import element_type
from modelc.frontend.steering.npy import SUFFIX, Kind, read_npy
from modelc.frontend.steering.specialise import Dims, declared_shapes, fixed_shapes, free_inputs, partly_fixed
from modelc.ir.expr import DTYPES, INTEGERS

Array = NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]
Given = bool | int | float | str | Sequence[Any] | Array  # what an input is to be; a str is the path of a .npy file
MOST_VARIANTS = 256
MOST_BYTES = 1 << 20  # of all constants: they are recorded in the manifest


@dataclass(frozen=True)
class Steered:
    """What the flags come to for one model: the shapes of each variant, and the inputs that are constants."""

    shapes: tuple[Shapes, ...]
    constants: Mapping[str, Array]


def steered(
    path: str | Path,
    shapes: Sequence[Shapes] = (),
    dims: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Given] | None = None,
    data: Mapping[str, Array] | None = None,
) -> Steered:
    """The flags applied to the model's inputs. Every set of `shapes` with every choice of one number for each of `dims`
    makes a variant. If neither is given, free dimensions are those of `data`. Raises ModelError, InputError."""
    if not dims and not constants and (shapes or not data):
        return Steered(tuple(shapes) or ({},), {})
    graph = read_outline(path).graph
    declared = declared_shapes(graph)
    given = _given(graph, constants or {})
    sets = list(shapes) or [_shapes_of(data or {}, declared) if not dims else {}]
    chosen = [dict(zip(dims or {}, sizes, strict=True)) for sizes in product(*(dims or {}).values())]
    if len(sets) * len(chosen) > MOST_VARIANTS:
        raise ModelError(f"the flags make {len(sets) * len(chosen)} variants; expected at most {MOST_VARIANTS}")
    own = {name: shape for name, array in given.items() if (shape := _own_shape(array, declared[name])) is not None}
    every = [
        fixed_shapes(declared, {**by_name, **_agreeing(own, by_name)}, sizes) for by_name in sets for sizes in chosen
    ]
    fixed = {name: _constant(graph, name, array, [variant[name] for variant in every]) for name, array in given.items()}
    if (size := sum(array.nbytes for array in fixed.values())) > MOST_BYTES:
        raise ModelError(f"the constants have {size} bytes; expected at most {MOST_BYTES}: store them in the model")
    return Steered(tuple({n: s for n, s in variant.items() if n not in fixed} for variant in every), fixed)


def steerable(path: str | Path) -> tuple[set[str], set[str]]:
    """The names of a model's inputs, and of their free dimensions. Raises ModelError."""
    declared = declared_shapes(read_outline(path).graph)
    return set(declared), {d for dims in declared.values() for d in dims or () if isinstance(d, str) and d}


def looked_at(
    graph: onnx.GraphProto, shapes: Shapes, dims: Mapping[str, int], constants: Mapping[str, Given]
) -> tuple[dict[str, Array], dict[str, Dims | None]]:
    """The constants, and the shapes of the other inputs as far as they are known: for a look at the model. Free
    dimensions of a constant count as 1."""
    declared, given = declared_shapes(graph), _given(graph, constants)
    own = {name: shape for name, array in given.items() if (shape := _own_shape(array, declared[name])) is not None}
    fixed = partly_fixed(declared, {**shapes, **_agreeing(own, shapes)}, dims)
    arrays = {
        name: _constant(graph, name, array, [tuple(d if isinstance(d, int) else 1 for d in fixed[name] or ())])
        for name, array in given.items()
    }
    return arrays, {name: extents for name, extents in fixed.items() if name not in given}


def _given(graph: onnx.GraphProto, constants: Mapping[str, Given]) -> dict[str, Array]:
    """What was given for constants, as arrays whose numbers fit the inputs' dtypes."""
    inputs = free_inputs(graph)
    if unknown := sorted(constants.keys() - inputs.keys()):
        raise ModelError(
            f"--constant names {', '.join(map(repr, unknown))}, which is no input of the model; "
            f"its inputs are {', '.join(map(repr, inputs))}"
        )
    arrays = dict[str, Array]()
    for name, constant in constants.items():
        dtype = element_type(inputs[name].type.tensor_type.elem_type, f"input {name!r}")
        array = arrays[name] = _array(name, constant, dtype)
        typed = isinstance(constants[name], str | np.ndarray)
        if (problem := _misfit(array, typed, dtype)) is not None:
            raise ModelError(_misfitting(name, dtype, problem))
    return arrays


def _agreeing(own: Shapes, given: Shapes) -> Shapes:
    for name in own.keys() & given.keys():
        if own[name] != given[name]:
            raise ModelError(f"--constant {name} has the shape {list(own[name])}, and --shape says {list(given[name])}")
    return own


def _shapes_of(data: Mapping[str, Array], declared: Mapping[str, Dims | None]) -> Shapes:
    """The shapes of arrays for inputs whose own are not fixed."""
    free = (n for n, dims in declared.items() if dims is None or any(isinstance(d, str) for d in dims))
    return {name: data[name].shape for name in free if name in data}


def _array(name: str, given: Given, dtype: str) -> Array:
    """What was given for a constant, in a dtype of its own: bool, int64, float64, or that of the array or file. A file
    is read where it may fit an input of `dtype`."""

    def accept(kind: Kind) -> None:
        if not kind.holds(dtype):
            raise ModelError(_misfitting(name, dtype, f"an array of {kind.dtype} in {given}"))
        if kind.nbytes > MOST_BYTES:
            raise ModelError(_too_large(name))

    if isinstance(given, np.ndarray):
        return given
    if isinstance(given, str):
        if not given.endswith(SUFFIX):
            raise InputError(f"--constant {name} is {given[:80]!r}; expected a number, numbers, or a file {SUFFIX}")
        return read_npy(Path(given), accept)
    array = np.asarray(given)
    if array.dtype.kind not in "bif":
        raise InputError(f"--constant {name} is {str(given)[:80]}; expected whole numbers below 2^63, or numbers")
    return array


def _own_shape(array: Array, dims: Dims | None) -> tuple[int, ...] | None:
    """The shape that a constant says for its input; None for one number where the input has dimensions with names,
    which other flags fix."""
    if array.ndim or dims is None:
        return array.shape
    if any(isinstance(d, str) and d for d in dims):
        return None
    return tuple(1 if isinstance(d, str) else d for d in dims)


def _constant(graph: onnx.GraphProto, name: str, array: Array, shapes: Sequence[tuple[int, ...]]) -> Array:
    """The array in the input's dtype and shape: one number fills it. Raises ModelError where it does not fit."""
    if len(set(shapes)) > 1:
        raise ModelError(f"--constant {name} would have another shape in each variant; expected the same in all")
    dtype = element_type(free_inputs(graph)[name].type.tensor_type.elem_type, f"input {name!r}")
    check_shape(shapes[0], f"input {name!r}")
    if array.nbytes > MOST_BYTES or (array.ndim == 0 and prod(shapes[0]) > MOST_BYTES):
        raise ModelError(_too_large(name))
    return np.array(np.broadcast_to(array, shapes[0]).astype(DTYPES[dtype]))


def _too_large(name: str) -> str:
    return f"--constant {name} has more than {MOST_BYTES} bytes; expected less: store it in the model"


def _misfitting(name: str, dtype: str, found: str) -> str:
    return f"--constant {name}: the model's input is of type {dtype}; found {found}"


def _misfit(array: Array, typed: bool, dtype: str) -> str | None:
    """What was found where numbers do not fit a dtype: an array that has its dtype already (`typed`) must have the
    input's, numbers as Python writes them must be representable."""
    kind, values = array.dtype.kind, array.reshape(-1)
    if typed:
        return None if array.dtype == DTYPES[dtype] else f"an array of {array.dtype}"
    if dtype == "bool":
        fits = kind == "b" or (kind == "i" and set(values.tolist()) <= {0, 1})
    elif dtype in INTEGERS:
        limits = np.iinfo(dtype)
        fits = kind == "i" and all(limits.min <= v <= limits.max for v in values.tolist())
    else:
        fits = kind in "if"
    return None if fits else f"{', '.join(map(str, values[:4].tolist()))}{', ...' * (values.size > 4)}"
