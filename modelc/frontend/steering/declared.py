"""What a model declares, as a program sees it before anything is compiled: inputs and outputs with the names of their
free dimensions."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from modelc.frontend.load.origin import origin_of
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import ELEMENT_TYPES, read_model, tensor_array
from modelc.frontend.steering.specialise import free_inputs
from modelc.frontend.steering.uses import Uses
from modelc.ir.origin import Origin

Dims = tuple[int | str | None, ...]


@dataclass(frozen=True)
class DeclaredTensor:
    """`dims` is None where no shape is declared; a dimension is a number, its name, or None."""

    name: str
    dtype: str
    dims: Dims | None


@dataclass(frozen=True)
class Interface:
    """`initialisers` are constants that the model calls inputs; `steering` inputs are those whose values have to be
    known when it is compiled."""

    inputs: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    initialisers: tuple[DeclaredTensor, ...]
    steering: tuple[str, ...]
    origin: Origin


def interface_of(path: Path) -> Interface:
    """Of the model in a file. Raises ModelError where it is none."""
    model = read_outline(path)
    graph, free = model.graph, free_inputs(model.graph)
    return Interface(
        inputs=tuple(map(_declared, free.values())),
        outputs=_outputs(model),
        initialisers=tuple(_declared(value) for value in graph.input if value.name not in free),
        steering=tuple(steering.name for steering in Uses(graph).steering()),
        origin=origin_of(model),
    )


def initialiser_values(path: Path) -> dict[str, NDArray[Any]]:
    """The constants that the model calls inputs. Raises ModelError."""
    graph = read_model(path).graph
    named = {value.name for value in graph.input}
    return {t.name: tensor_array(t, path.parent) for t in graph.initializer if t.name in named}


def _outputs(model: onnx.ModelProto) -> tuple[DeclaredTensor, ...]:
    """What a model leaves unsaid of an output is as ONNX infers it, where it can."""
    said = {value.name: _declared(value) for value in model.graph.output}
    if all(tensor.dims is not None and None not in tensor.dims for tensor in said.values()):
        return tuple(said.values())
    inferred = dict[str, DeclaredTensor]()
    with suppress(Exception):  # of onnx's own, for a model that it cannot follow
        graph = onnx.shape_inference.infer_shapes(model).graph
        names = {name for tensor in (*said.values(), *map(_declared, model.graph.input)) for name in tensor.dims or ()}
        inferred = {value.name: _without_others(_declared(value), names) for value in graph.output}
    return tuple(_completed(tensor, inferred.get(name, tensor)) for name, tensor in said.items())


def _completed(said: DeclaredTensor, inferred: DeclaredTensor) -> DeclaredTensor:
    if inferred.dims is None or (said.dims is not None and len(said.dims) != len(inferred.dims)):
        return said
    if said.dims is None:
        return inferred
    both = zip(said.dims, inferred.dims, strict=True)
    return replace(said, dims=tuple(theirs if mine is None else mine for mine, theirs in both))


def _without_others(tensor: DeclaredTensor, names: Collection[int | str | None]) -> DeclaredTensor:
    """Without the names that ONNX's inference makes up for dimensions."""
    dims = tensor.dims and tuple(dim if isinstance(dim, int) or dim in names else None for dim in tensor.dims)
    return replace(tensor, dims=dims)


def _declared(value: onnx.ValueInfoProto) -> DeclaredTensor:
    kind = value.type.tensor_type
    dtype = ELEMENT_TYPES.get(kind.elem_type, "undefined")
    if not kind.HasField("shape"):
        return DeclaredTensor(value.name, dtype, None)
    return DeclaredTensor(value.name, dtype, tuple(map(_dim, kind.shape.dim)))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """A negative number is some exporters' word for a free dimension."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None
