"""For verification: what a model's draws are, and the model as a package has it, with its draws as inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from modelc.frontend.steering.specialise import with_constants
from modelc.frontend.witness.restated import restated
from modelc.frontend.witness.surgery import save
from modelc.ir.graph import RANDOM_STATE, Graph, Value
from modelc.ops import evaluate_node
from modelc.ops.random import DRAWS, state


def numbers(graph: Graph, seed: int, run: int) -> dict[str, NDArray[Any]]:
    """What the draws of an imported model are in the run of that number of a handle opened with this seed."""
    values: dict[str, Value] = {RANDOM_STATE: state(seed, run)}
    for node in graph.nodes:
        if node.op in ("RandomKey", *DRAWS):
            (data,) = evaluate_node(node, tuple(values[x] for x in node.inputs))
            values[node.outputs[0]] = Value(node.outputs[0], data.dtype.name, data.shape, data)
    draws = {node.outputs[0] for node in graph.nodes if node.op in DRAWS}
    return {name: value.data for name, value in values.items() if name in draws and value.data is not None}


def with_numbers_given(
    path: Path, constants: Mapping[str, NDArray[Any]], draws: Mapping[str, NDArray[Any]], output: Path
) -> dict[str, str]:
    """Writes the model with the `draws` (an array like it, by value) as inputs, whose names it returns. `constants` are
    inputs that are known; the model still takes them."""
    model, _ = restated(onnx.load(path))
    given = {name: f"{name}/drawn" for name in draws}
    spelled, _ = restated(with_constants(model, constants) if constants else model)
    nodes = list[onnx.NodeProto]()
    for node in spelled.graph.node:
        if node.output and node.output[0] in given:
            nodes += _taken(node, given[node.output[0]])
        else:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for name, array in draws.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(given[name], kind, [None] * array.ndim))
    save(model, output)
    return given


def _taken(node: onnx.NodeProto, given: str) -> list[onnx.NodeProto]:
    """What takes a draw's numbers from an input in its place: of one that is as large as another value, whose size may
    depend on data, as many as that has."""
    if not node.op_type.endswith("Like"):
        return [helper.make_node("Identity", [given], node.output, name=node.name)]
    shape, start = f"{given}/shape", f"{given}/start"
    return [
        helper.make_node("Shape", node.input, [shape]),
        helper.make_node("Sub", [shape, shape], [start]),
        helper.make_node("Slice", [given, start, shape], node.output, name=node.name),
    ]
