"""Static shapes for the model's inputs: free dimensions are fixed by what the user gives (--shape)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from modelc.errors import ModelError
from modelc.frontend.limits import check_shape
from modelc.frontend.load import ELEMENT_TYPES, element_type
from modelc.ir.graph import Value

Dims = tuple[int | str, ...]  # a free dimension is its name, or the empty string


def input_values(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> list[Value]:
    """The model's inputs with static shapes. A named dimension that one --shape fixes is fixed in every input.

    Raises ModelError for a --shape that does not fit, and one that lists every input that has free dimensions left.
    """
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = {i.name: i for i in graph.input if i.name not in constants}
    if unknown := sorted(shapes.keys() - inputs.keys()):
        raise ModelError(
            f"--shape names {', '.join(map(repr, unknown))}, which is no input of the model; "
            f"its inputs are {', '.join(map(repr, inputs))}"
        )
    declared = {name: _dims(info) for name, info in inputs.items()}
    named: dict[str, int] = {}
    for name, shape in shapes.items():
        _check(name, declared[name], shape)
        named |= {d: n for d, n in zip(declared[name] or (), shape, strict=False) if isinstance(d, str) and d}
    fixed: dict[str, tuple[int, ...]] = {}
    free: list[str] = []
    for name, dims in declared.items():
        if name in shapes:
            fixed[name] = tuple(shapes[name])
        elif dims is None:
            free.append(f"input {name!r} has no shape; give one with --shape {name}=...")
        else:
            known = [named.get(d, d) if isinstance(d, str) else d for d in dims]
            if any(isinstance(d, str) for d in known):
                free.append(_free(name, known))
            fixed[name] = tuple(d for d in known if isinstance(d, int))
    if free:
        raise ModelError("the shapes of the model's inputs have to be fixed:\n  " + "\n  ".join(free))
    for name, shape in fixed.items():
        check_shape(shape, f"input {name!r}")
    return [
        Value(name, element_type(info.type.tensor_type.elem_type, f"input {name!r}"), fixed[name])
        for name, info in inputs.items()
    ]


def with_constants(model: onnx.ModelProto, constants: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model with these inputs as initialisers, so that what depends on them is known when compiling.

    Raises ModelError for a name that is no input of the model.
    """
    known = [i.name for i in model.graph.input]
    if unknown := sorted(constants.keys() - set(known)):
        raise ModelError(
            f"{', '.join(map(repr, unknown))} is no input of the model; its inputs are {', '.join(map(repr, known))}"
        )
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [i for i in result.graph.input if i.name not in constants]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in constants.items())
    return result


def check_declared(info: onnx.ValueInfoProto, value: Value) -> None:
    """Raises ModelError if the model declares a value to be of another type than it is. Declared shapes may be free or
    those of an exporter's example."""
    kind = info.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        raise ModelError(f"the model declares {info.name!r} as {kind.removesuffix('_type')}; it is a tensor")
    number = info.type.tensor_type.elem_type
    if number and ELEMENT_TYPES.get(number) != value.dtype:
        found = ELEMENT_TYPES.get(number, f"number {number}")
        raise ModelError(f"the model declares {info.name!r} with elements of type {found}; they are {value.dtype}")


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
        else ""
        if d.dim_param in ("?", "None", "-1")
        else d.dim_param
        for d in dims
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


def _free(name: str, dims: list[int | str]) -> str:
    found = [f"dimension {k}{f' ({d!r})' if d else ''}" for k, d in enumerate(dims) if isinstance(d, str)]
    example = ",".join("?" if isinstance(d, str) else str(d) for d in dims)
    return (
        f"input {name!r} {_show(dims)} has a free {', '.join(found)}; "
        f"add --shape {name}={example} with a number for each ?"
    )


def _show(dims: Dims | list[int | str]) -> str:
    return f"[{', '.join(str(d) or '?' for d in dims)}]"


def _flag(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))
