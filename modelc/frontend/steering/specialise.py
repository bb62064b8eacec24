"""Static shapes for the model's inputs: free dimensions are fixed by what the user gives (--shape, --dim)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from modelc.errors import ModelError
from modelc.frontend.building.limits import check_shape
from modelc.frontend.load.read import ELEMENT_TYPES, element_type
from modelc.ir.graph import Value

NUMBER = re.compile("[0-9]{1,9}")
_PARTS = ("past_sequence_length", "sequence_length")
SUMS = {  # what a dimension is called in models that optimum and genai's builder export, and what it is the sum of
    "past_sequence_length + 1": _PARTS,
    "total_sequence_length": _PARTS,
}
Dims = tuple[int | str, ...]  # a free dimension is its name; without one it is INPUT[AXIS]


def input_values(
    graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int] | None = None
) -> list[Value]:
    """The model's inputs with static shapes. A named dimension that one --shape or --dim fixes is fixed in every input.

    Raises ModelError for what does not fit, and one that says the flags for all free dimensions that are left.
    """
    inputs = free_inputs(graph)
    fixed = fixed_shapes(declared_shapes(graph), shapes, dims or {})
    for name, shape in fixed.items():
        check_shape(shape, f"input {name!r}")
    return [
        Value(name, element_type(info.type.tensor_type.elem_type, f"input {name!r}"), fixed[name])
        for name, info in inputs.items()
    ]


def free_inputs(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The inputs that the model gives no value of its own for, by name."""
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return {i.name: i for i in graph.input if i.name not in constants}


def declared_shapes(graph: onnx.GraphProto) -> dict[str, Dims | None]:
    """The shapes of the inputs as the model declares them; None for one without. What exporters call the sum of a
    cache's length and that of what is new is a sum."""
    declared = {name: _dims(info) for name, info in free_inputs(graph).items()}
    names = {d for dims in declared.values() for d in dims or () if isinstance(d, str)}
    sums = {name: " + ".join(parts) for name, parts in SUMS.items() if name in names and names.issuperset(parts)}
    return {
        name: None if dims is None else tuple(sums.get(d, d) if isinstance(d, str) else d for d in dims)
        for name, dims in declared.items()
    }


def fixed_shapes(
    declared: Mapping[str, Dims | None], shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The static shape of every input. Raises ModelError as input_values does."""
    every_shape = partly_fixed(declared, shapes, dims)
    left = {n: shape for n, shape in every_shape.items() if shape is None or any(isinstance(d, str) for d in shape)}
    if left:
        lines = [f"input {name!r}{' without a shape' if d is None else f' {_show(d)}'}" for name, d in left.items()]
        flags = " ".join(free_flags(left))
        raise ModelError(f"the model's inputs have free dimensions; add {flags}:\n  " + "\n  ".join(lines))
    return {name: tuple(d for d in shape or () if isinstance(d, int)) for name, shape in every_shape.items()}


def partly_fixed(
    declared: Mapping[str, Dims | None], shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]
) -> dict[str, Dims | None]:
    """The shapes of the inputs with the numbers that are known. Raises ModelError for what does not fit."""
    if unknown := sorted(shapes.keys() - declared.keys()):
        raise ModelError(
            f"--shape names {', '.join(map(repr, unknown))}, which is no input of the model; "
            f"its inputs are {', '.join(map(repr, declared))}"
        )
    names = dimension_names(declared)
    if unknown := sorted(dims.keys() - set(names)):
        expected = f"its free dimensions are {', '.join(map(repr, names))}" if names else "it has none that has a name"
        raise ModelError(
            f"--dim names {', '.join(map(repr, unknown))}, which is no dimension of the model's inputs; {expected}"
        )
    sizes = dict(dims)
    for name, shape in shapes.items():
        _check(name, declared[name], shape)
        for d, n in zip(declared[name] or (), shape, strict=False):
            if isinstance(d, str) and d and dims.get(d, n) != n:
                raise ModelError(
                    f"--shape {name}={_flag(shape)} sets the dimension {d!r} to {n}, and --dim to {dims[d]}"
                )
            if isinstance(d, str) and d:
                sizes[d] = n
    return {
        name: shapes[name] if name in shapes else None if extents is None else tuple(_size(d, sizes) for d in extents)
        for name, extents in declared.items()
    }


def resized(
    declared: Mapping[str, Dims | None], shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """The shapes of inputs, which are `shapes` at some sizes, where `dims` are other ones."""
    own = {
        dim: n
        for name, shape in shapes.items()
        for dim, n in zip(declared[name] or (), shape, strict=False)
        if isinstance(dim, str) and len(_summands(dim)) == 1
    }
    sizes = {**own, **dims}

    def extents(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        words = declared[name] or (0,) * len(shape)
        known = (_size(word, sizes) for word in words)
        return tuple(
            size if isinstance(size, int) and isinstance(word, str) else n
            for word, size, n in zip(words, known, shape, strict=True)
        )

    return {name: extents(name, shape) for name, shape in shapes.items()}


def free_flags(declared: Mapping[str, Dims | None], number: str = "N") -> list[str]:
    """The flags that fix all free dimensions, as a shell takes them, with `number` where the user's own belongs; an
    input without a shape is shown with one dimension."""
    flags = [f"--dim {quote(f'{name}={number}')}" for name in dimension_names(declared)]
    return flags + [f"--shape {quote(f'{name}=')}{number}" for name, dims in declared.items() if dims is None]


def free_places(declared: Mapping[str, Dims | None]) -> list[str]:
    """What each number is that free_flags leaves open, in words."""
    whole = [f"the whole shape of {name!r}" for name, dims in declared.items() if dims is None]
    return [*dimension_names(declared), *whole]


def dimension_names(declared: Mapping[str, Dims | None]) -> list[str]:
    """The names of free dimensions; of one that is a sum of others, such as `past + 1`, the names in it."""
    summands = (part for shape in declared.values() for d in shape or () if isinstance(d, str) for part in _summands(d))
    return list(dict.fromkeys(part for part in summands if part and not NUMBER.fullmatch(part)))


def _summands(dim: str) -> list[str]:
    parts = [part.strip() for part in dim.split("+")]
    return parts if all(parts) else [dim]


def _size(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """The number that a dimension is, if `sizes` tells; else its name."""
    if isinstance(dim, int) or not dim:
        return dim
    if dim in sizes:
        return sizes[dim]
    parts = [int(part) if NUMBER.fullmatch(part) else sizes.get(part, -1) for part in _summands(dim)]
    return dim if min(parts) < 0 else sum(parts)


def with_constants(model: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model with these inputs as initialisers, so that what depends on them is known when compiling.

    Raises ModelError for a name that is no input of the model.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    fix_constants(result, constants)
    return result


def fix_constants(model: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> None:
    """with_constants, in place."""
    inputs = free_inputs(model.graph)
    if unknown := sorted(constants.keys() - inputs.keys()):
        raise ModelError(
            f"{', '.join(map(repr, unknown))} is no input of the model; its inputs are {', '.join(map(repr, inputs))}"
        )
    kept = [i for i in model.graph.input if i.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in constants.items())


def check_declared(info: onnx.ValueInfoProto, value: Value) -> None:
    """Raises ModelError if the model declares a value to be of another type than it is. Declared shapes may be free or
    those of an exporter's example."""
    kind = info.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        raise ModelError(f"the model declares {info.name!r} as {kind.removesuffix('_type')}; it is a tensor")
    number = info.type.tensor_type.elem_type
    if number and ELEMENT_TYPES.get(number) != value.dtype:
        declared = ELEMENT_TYPES.get(number, f"number {number}")
        raise ModelError(f"the model declares {info.name!r} with elements of type {declared}; they are {value.dtype}")


def _dims(info: onnx.ValueInfoProto) -> Dims | None:
    if info.type.WhichOneof("value") != "tensor_type":
        kind = str(info.type.WhichOneof("value") or "no type").removesuffix("_type")
        raise ModelError(f"input {info.name!r} is no tensor but of type {kind}")
    if not info.type.tensor_type.HasField("shape"):
        return None
    dims = info.type.tensor_type.shape.dim
    return tuple(
        d.dim_value
        if d.HasField("dim_value") and d.dim_value >= 0
        else f"{info.name}[{axis}]"
        if d.dim_param in ("", "?", "None", "-1")
        else d.dim_param
        for axis, d in enumerate(dims)
    )


def _check(name: str, dims: Dims | None, shape: tuple[int, ...]) -> None:
    if any(n < 0 for n in shape):
        raise ModelError(f"--shape {name}={_flag(shape)} has a negative dimension")
    if dims is None:
        return
    if len(dims) != len(shape):
        raise ModelError(
            f"--shape {name}={_flag(shape)} has {len(shape)} dimensions; "
            f"the model's input has {len(dims)}: {_show(dims)}"
        )
    for k, (dim, given) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int) and dim != given:
            raise ModelError(
                f"--shape {name}={_flag(shape)} sets dimension {k} to {given}, "
                f"which the model fixes at {dim}: {_show(dims)}"
            )


def _show(dims: Dims | list[int | str]) -> str:
    return f"[{', '.join(str(d) or '?' for d in dims)}]"


def _flag(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))
