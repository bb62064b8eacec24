"""A model in which each layer multiplies bytes, float16 or float32, as inputs say: what any choice of these adds to the
outputs is measured without making another model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.halves import Deviations, in_half
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.recipe import ASYMMETRIC, FLOAT16, INT8, SYMMETRIC, Range
from modelc.frontend.quantize.weights import as_bytes
from modelc.frontend.quantize.write import shares_bytes
from modelc.frontend.witness.surgery import save

CORRECTED = "modelc:corrected"


def switches(
    layers: Sequence[Layer],
    ways: Mapping[str, str],
    corrected: bool,
    asymmetric: Collection[str],
    halves: Collection[str],
) -> dict[str, NDArray[Any]]:
    """The inputs with which layers are computed in these `ways`, by name: INT8, ASYMMETRIC those that can have such
    weights, FLOAT16 those of `halves`, float32 if nothing is said. Those in bytes have their corrections, or have
    not."""
    narrow = {name for name, way in ways.items() if way in (INT8, ASYMMETRIC)}
    values = {layer.rounded: False for layer in layers}
    for layer in layers:
        values[layer.rounded] |= layer.name in narrow
    by_layer = {_of_layer(layer): np.array(layer.name in narrow) for layer in layers}
    by_value = {_of_value(name): np.array(on) for name, on in values.items()}
    by_weights = {_of_weights(name): np.array(ways.get(name) == ASYMMETRIC) for name in asymmetric}
    by_half = {_of_half(name): np.array(ways.get(name) == FLOAT16) for name in halves}
    return {**by_layer, **by_value, **by_weights, **by_half, CORRECTED: np.array(corrected, np.float32)}


def write_switched(
    floats: FloatModel,
    layers: Sequence[Layer],
    ranges: Mapping[str, Range],
    corrections: Mapping[str, NDArray[np.float32]],
    asymmetric: Mapping[str, NDArray[np.float32] | None],
    halves: Deviations,
    most: int,
    output: Path,
) -> None:
    """Writes the model with an input for each layer, for each value that is rounded, and for whether layers in bytes
    have their `corrections` added. Their weights are as `as_bytes` has them: symmetric, and of those in `asymmetric`,
    which says their corrections then, asymmetric where an input says so. Those in `halves`, which says how much their
    sums are off then, are in float16 where an input says so, and are not in bytes."""
    model = ModelProto()
    model.CopyFrom(floats.model)
    graph = model.graph
    by_value: dict[str, list[Layer]] = {}
    for layer in layers:
        by_value.setdefault(layer.rounded, []).append(layer)
    by_name = (*map(_of_weights, asymmetric), *map(_of_half, halves))
    for name in (*map(_of_layer, layers), *map(_of_value, by_value), *by_name):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.BOOL, []))
    graph.input.append(helper.make_tensor_value_info(CORRECTED, TensorProto.FLOAT, []))
    layer_of = {layer.name: layer for layer in layers}
    nodes = list[NodeProto]()
    for value in graph.input:
        nodes += _rounding(model, value.name, ranges) if value.name in by_value else []
    for node in graph.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        switched = layer_of.get(node.name)
        for k, name in enumerate(node.input):
            readers = by_value.get(name)
            if readers and switched is None and shares_bytes(readers, name):
                copy.input[k] = f"{name}/either"
        if switched is not None:
            in_bytes = [_narrow(model, floats, switched, node, corrections.get(node.name), most, False)]
            if node.name in asymmetric:
                in_bytes.append(_narrow(model, floats, switched, node, asymmetric[node.name], most, True))
            half = halves.get(node.name)
            float16 = None if half is None else [*in_half(model, floats, switched, node, half, f"{switched.y}/half")]
            copy = _switched(switched, node, in_bytes, float16)
        nodes.append(copy)
        for name in node.output:
            nodes += _rounding(model, name, ranges) if name in by_value else []
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    save(model, output)


def _of_layer(layer: Layer) -> str:
    return f"{layer.name}/switch"


def _of_value(value: str) -> str:
    return f"{value}/switch of value"


def _of_half(layer: str) -> str:
    return f"{layer}/switch of float16"


def _of_weights(layer: str) -> str:
    return f"{layer}/switch of weights"


def _constant(model: ModelProto, name: str, numbers: object) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), name))
    return name


def _rounding(model: ModelProto, value: str, ranges: Mapping[str, Range]) -> list[NodeProto]:
    """A value rounded, or as it is."""
    stored = ranges[value]
    scale = _constant(model, f"{value}/scale", np.float32(stored.scale))
    zero = _constant(model, f"{value}/zero", np.uint8(stored.zero))
    output = f"{value}/either"
    on = [
        helper.make_node("QuantizeLinear", [value, scale, zero], [f"{value}/bytes"]),
        helper.make_node("DequantizeLinear", [f"{value}/bytes", scale, zero], [f"{value}/on"]),
    ]
    off = [helper.make_node("Identity", [value], [f"{value}/off"])]
    return [_if(_of_value(value), on, f"{value}/on", off, f"{value}/off", output)]


def _narrow(
    model: ModelProto,
    floats: FloatModel,
    layer: Layer,
    node: NodeProto,
    added: NDArray[np.float32] | None,
    most: int,
    asymmetric: bool,
) -> list[NodeProto]:
    """The nodes of a layer that multiplies what is rounded by weights that are; the last gives what it writes."""
    weights, kind = floats.array(layer.weights), ASYMMETRIC if asymmetric else SYMMETRIC
    assert weights is not None
    whole = as_bytes(weights, layer.axis, most, asymmetric)
    on = NodeProto()
    on.CopyFrom(node)
    if layer.x == layer.rounded:
        on.input[0] = f"{layer.x}/either"
    on.input[1], on.output[0] = _constant(model, f"{layer.name}/{kind} weights", whole.real()), f"{layer.y}/{kind}"
    if added is None:
        return [on]
    shape = (-1,) if layer.channels_last else (-1, *[1] * (weights.ndim - 2))
    correction = _constant(model, f"{layer.name}/{kind} correction", added.reshape(shape))
    scaled, corrected = f"{correction}/scaled", f"{on.output[0]}/corrected"
    return [
        on,
        helper.make_node("Mul", [correction, CORRECTED], [scaled]),
        helper.make_node("Add", [on.output[0], scaled], [corrected]),
    ]


def _switched(
    layer: Layer, node: NodeProto, in_bytes: Sequence[list[NodeProto]], half: list[NodeProto] | None
) -> NodeProto:
    """A layer that multiplies bytes, by symmetric weights or by those of the second of `in_bytes`, or float16 where it
    can, or is as it was."""
    off = NodeProto()
    off.CopyFrom(node)
    off.output[0] = f"{layer.y}/off"
    on, *others = in_bytes
    for other in others:
        output = f"{layer.y}/on"
        on = [_if(_of_weights(layer.name), other, other[-1].output[0], on, on[-1].output[0], output)]
    if half is not None:
        off = _if(_of_half(layer.name), half, half[-1].output[0], [off], off.output[0], f"{layer.y}/real")
    return _if(_of_layer(layer), on, on[-1].output[0], [off], off.output[0], layer.y)


def _if(
    condition: str, on: Sequence[NodeProto], given_on: str, off: Sequence[NodeProto], given_off: str, output: str
) -> NodeProto:
    kind = TensorProto.FLOAT
    branches = {
        "then_branch": helper.make_graph(on, "on", [], [helper.make_tensor_value_info(given_on, kind, None)]),
        "else_branch": helper.make_graph(off, "off", [], [helper.make_tensor_value_info(given_off, kind, None)]),
    }
    return helper.make_node("If", [condition], [output], f"{output}/if", **branches)
