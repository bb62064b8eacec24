"""What padding means for a model: which inputs and outputs hang on the dimensions that --pad-dim names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.compile.fixed import Inputs
from modelc.errors import ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.onnx import import_model
from modelc.frontend.steering.specialise import Dims, declared_shapes, dimension_names
from modelc.ir.expr import DTYPES, INTEGERS
from modelc.ir.graph import Graph, Value, sized
from modelc.package.padding import Along, Fill, Padding

Arrays = Mapping[str, NDArray[Any]]


def padding_of(model: Path, graphs: Sequence[Graph], constants: Arrays, inputs: Inputs) -> Padding | None:
    """How the package of `graphs`, one for each set of shapes, is padded as `inputs` say; None where it is not. Which
    output dimensions are padded ones is seen by importing the model for another length of each. Raises ModelError for
    what padding has no meaning for."""
    if not inputs.pad_dims:
        if inputs.pad_values:
            raise ModelError("--pad-value says what inputs are filled up with; add --pad-dim NAME for a dimension")
        return None
    if inputs.states:
        raise ModelError(
            "--pad-dim and --state: each variant keeps a state of its own, and how long inputs are would choose among "
            "them; give the model a buffer of fixed capacity and a position in it"
        )
    declared = declared_shapes(read_outline(model).graph)
    along = _inputs(declared, graphs[0], inputs.pad_dims, constants)
    fills = tuple(_fill(graphs[0], along, name, value) for name, value in inputs.pad_values.items())
    padding = Padding(inputs.pad_dims, along, (), tuple(one for one in fills if one.bits))
    found: dict[tuple[int, int], int] = {}
    for d, name in enumerate(padding.dims):
        for key in _hanging(model, graphs[0], constants, padding, d, inputs.bounds):
            if key in found:
                output = _outputs(graphs[0])[key[0]]
                raise ModelError(
                    f"output {output!r} hangs along dimension {key[1]} on {padding.dims[found[key]]!r} and on "
                    f"{name!r}: expected one padded dimension, to which it is cut back"
                )
            found[key] = d
    outputs = tuple(Along(k, axis, d) for (k, axis), d in sorted(found.items()))
    for graph in graphs:
        extents = padding.extents(_shapes(graph))
        if extents is None:
            raise ModelError(f"--pad-dim {', '.join(padding.dims)}: inputs of a variant differ in how long they are")
        for one in outputs:
            _check_extent(graph.value(_outputs(graph)[one.tensor]), one.axis, padding.dims[one.dim], extents[one.dim])
    return Padding(padding.dims, along, outputs, padding.fills)


def _shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [graph.value(name).shape for name in graph.fed]


def _outputs(graph: Graph) -> list[str]:
    return [name for name in graph.outputs if sized(name) is None]


def _inputs(
    declared: Mapping[str, Dims | None], graph: Graph, names: Sequence[str], constants: Arrays
) -> tuple[Along, ...]:
    known = dimension_names(declared)
    if unknown := [name for name in names if name not in known]:
        there = f"its free dimensions are {', '.join(map(repr, known))}" if known else "it has none that has a name"
        raise ModelError(f"--pad-dim names {unknown[0]!r}, which is no dimension of the model's inputs; {there}")
    found = []
    for d, name in enumerate(names):
        for tensor, dims in declared.items():
            for axis, dim in enumerate(dims or ()):
                if dim == name and tensor in constants:
                    raise ModelError(f"--pad-dim {name}: input {tensor!r} has this dimension and is a constant")
                if dim == name:
                    found.append(Along(graph.fed.index(tensor), axis, d))
                elif isinstance(dim, str) and name in dimension_names({tensor: (dim,)}):
                    raise ModelError(
                        f"--pad-dim {name}: dimension {axis} of input {tensor!r} is {dim!r}; what is filled up has to "
                        "lie at its end, so expected the dimension by itself"
                    )
    return tuple(found)


def _fill(graph: Graph, along: Sequence[Along], name: str, value: float) -> Fill:
    """What an input is filled up with, as bits."""
    if name not in graph.fed or graph.fed.index(name) not in {one.tensor for one in along}:
        raise ModelError(f"--pad-value {name}: expected an input that hangs on a padded dimension")
    dtype = graph.value(name).dtype
    whole = dtype in INTEGERS or dtype == "bool"
    with np.errstate(all="ignore"):
        found = np.array([value]).astype(DTYPES[dtype])
    if whole and int(found[0]) != value:
        raise ModelError(f"--pad-value {name}={value}: the model's input is of type {dtype}")
    return Fill(graph.fed.index(name), int.from_bytes(found.view(np.uint8).tobytes(), "little"))


def _hanging(
    model: Path, graph: Graph, constants: Arrays, padding: Padding, d: int, bounds: Mapping[str, int]
) -> list[tuple[int, int]]:
    """The outputs and axes that hang on padded dimension `d`."""
    shapes, name = _shapes(graph), padding.dims[d]
    now = next(shapes[one.tensor][one.axis] for one in padding.inputs if one.dim == d)
    other = now // 2 + 1 if now > 2 else 3 - now
    changed = [list(shape) for shape in shapes]
    for one in padding.inputs:
        if one.dim == d:
            changed[one.tensor][one.axis] = other
    try:
        probe = import_model(model, dict(zip(graph.fed, map(tuple, changed), strict=True)), constants, bounds)
    except ModelError as error:
        raise ModelError(
            f"--pad-dim {name} promises inputs of every length, and the model does not take {name}={other}: {error}"
        ) from None
    found = []
    by_data = {sized(name) for name in graph.outputs}  # how large these are a run says
    for k, output in enumerate(_outputs(graph)):
        before, after = graph.value(output), probe.value(output)
        if len(before.shape) != len(after.shape):
            raise ModelError(f"--pad-dim {name}: the rank of output {output!r} hangs on it")
        for axis, (n, m) in enumerate(zip(before.shape, after.shape, strict=True)):
            if n != m and (output, axis) not in by_data:
                _check_extent(before, axis, name, now)
                _check_extent(after, axis, name, other)
                found.append((k, axis))
    return found


def _check_extent(output: Value, axis: int, name: str, extent: int) -> None:
    if output.shape[axis] != extent:
        raise ModelError(
            f"--pad-dim {name}: dimension {axis} of output {output.name!r} is {output.shape[axis]} where {name} is "
            f"{extent}; expected one that is {name} itself, to be cut back to it: compile a variant for each length"
        )
