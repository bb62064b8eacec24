"""Layers in float16, as models say them that ONNX Runtime computes in float32: what a layer multiplies and what it
writes is rounded to float16, and its sums are off by noise, as much as sums are that are rounded with every term."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import Layer, layers_of
from modelc.frontend.quantize.recipe import Recipe
from modelc.frontend.quantize.write import quantized
from modelc.frontend.witness.surgery import save

Deviations = Mapping[str, float]  # by layer: how much its sums are off, as a share of their root mean square


class Tried(NamedTuple):
    """Names of the outputs of a layer's trial: the sum of the squares of what it is off, that of what it should be, and
    the largest of its sums, before a bias."""

    squares: str
    reference: str
    largest: str


def tried_in_half(layer: Layer) -> Tried:
    """The outputs of the trial of a layer."""
    prefix = f"{layer.name}/half"
    return Tried(f"{prefix}/squares", f"{prefix}/reference", f"{prefix}/largest")


def largest(value: str) -> str:
    """The output that is the largest magnitude of a value."""
    return f"{value}/largest"


def terms(floats: FloatModel, layer: Layer) -> int:
    """How many products each of a layer's sums adds up."""
    weights = floats.array(layer.weights)
    assert weights is not None
    return int(weights.size // weights.shape[layer.axis])


def write_tried(
    floats: FloatModel, layers: Collection[Layer], deviations: Deviations, values: Collection[str], output: Path
) -> None:
    """Writes the model with the outputs of a trial of each of the `layers`, and the largest magnitude of each of the
    `values`. Its own outputs are left out."""
    model = ModelProto()
    model.CopyFrom(floats.model)
    graph = model.graph
    del graph.output[:]

    def give(op: str, x: str, name: str) -> None:
        graph.node.append(helper.make_node(op, [x], [name], keepdims=0))
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    for layer in layers:
        names, y = tried_in_half(layer), f"{layer.name}/half/y"
        graph.node.extend(in_half(model, floats, layer, floats.node(layer.name), deviations[layer.name], y))
        graph.node.append(helper.make_node("Sub", [layer.y, y], [f"{y}/off"]))
        graph.node.append(helper.make_node("Abs", [_sums(layer)], [f"{y}/magnitudes"]))
        give("ReduceSumSquare", f"{y}/off", names.squares)
        give("ReduceSumSquare", layer.y, names.reference)
        give("ReduceMax", f"{y}/magnitudes", names.largest)
    for value in values:
        graph.node.append(helper.make_node("Abs", [value], [f"{value}/magnitudes of all"]))
        give("ReduceMax", f"{value}/magnitudes of all", largest(value))
    save(model, output)


def write_rounded(model: str | Path, recipe: Recipe, deviations: Deviations, output: Path) -> None:
    """Writes the quantized model of a Recipe, with what it has in float16 rounded so."""
    proto = quantized(model, recipe)
    floats = FloatModel(proto)
    halves = {layer.name: layer for layer in layers_of(floats) if layer.name in recipe.halves}
    nodes = list[NodeProto]()
    for node in proto.graph.node:
        layer = halves.get(node.name)
        nodes += [node] if layer is None else in_half(proto, floats, layer, node, deviations[node.name], layer.y)
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    save(proto, output)


def in_half(
    model: ModelProto, floats: FloatModel, layer: Layer, node: NodeProto, deviation: float, output: str
) -> Iterator[NodeProto]:
    """The nodes that write what a layer does in float16; their constants are added to `model`."""
    prefix, sums, weights = f"{layer.name}/half", _sums(layer), floats.array(layer.weights)
    assert weights is not None

    def constant(name: str, numbers: object) -> str:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers, np.float32), f"{prefix}/{name}"))
        return f"{prefix}/{name}"

    def rounding(x: str, y: str) -> Iterator[NodeProto]:
        yield helper.make_node("Cast", [x], [f"{y} in float16"], to=TensorProto.FLOAT16)
        yield helper.make_node("Cast", [f"{y} in float16"], [y], to=TensorProto.FLOAT)

    yield from rounding(layer.x, f"{prefix}/x")
    product = NodeProto()
    product.CopyFrom(node)
    with np.errstate(over="ignore"):
        product.input[1] = constant("weights", weights.astype(np.float16))
    product.name, product.input[0], product.output[0] = f"{prefix}/product", f"{prefix}/x", sums
    bias = floats.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if bias is not None:
        del product.input[2:]
        beta = next((a.f for a in node.attribute if a.name == "beta"), 1.0)
        bias = bias.reshape(-1, *[1] * (weights.ndim - 2)) if layer.op == "Conv" else np.float32(beta) * bias
    yield product
    yield helper.make_node("Mul", [sums, sums], [f"{prefix}/squares of sums"])
    mean, share = f"{prefix}/mean", deviation
    if layer.op == "Conv":
        yield helper.make_node("GlobalAveragePool", [f"{prefix}/squares of sums"], [mean])
    else:
        share /= weights.shape[layer.axis] ** 0.5
        axis = f"{prefix}/axis"
        model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), axis))
        yield helper.make_node("ReduceSum", [f"{prefix}/squares of sums", axis], [mean], keepdims=1)
    yield helper.make_node("Sqrt", [mean], [f"{prefix}/size"])
    yield helper.make_node("Mul", [f"{prefix}/size", constant("deviation", share)], [f"{prefix}/deviations"])
    yield helper.make_node("RandomNormalLike", [sums], [f"{prefix}/noise"], seed=_seed(layer))
    yield helper.make_node("Mul", [f"{prefix}/noise", f"{prefix}/deviations"], [f"{prefix}/off"])
    noisy = f"{prefix}/noisy sums"
    yield helper.make_node("Add", [sums, f"{prefix}/off"], [noisy])
    if bias is not None:
        yield helper.make_node("Add", [noisy, constant("bias", bias)], [f"{noisy} and bias"])
        noisy = f"{noisy} and bias"
    yield from rounding(noisy, output)


def _seed(layer: Layer) -> float:
    """Of the noise: another one in each layer, and in every model the same."""
    return float(crc32(layer.name.encode()) >> 8)  # which float32 holds


def _sums(layer: Layer) -> str:
    """What a layer adds up in float16, before a bias."""
    return f"{layer.name}/half/sums"
