"""Layers in float16, as models say them that ONNX Runtime computes in float32: what a layer multiplies and what it
writes is rounded to float16, and its sums are off by noise, as much as sums are that are rounded with every term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from onnx import NodeProto, TensorProto, helper

from modelc.frontend.quantize.floats import FloatModel, copied
from modelc.frontend.quantize.layers import Layer, factor, layers_of, weights_of
from modelc.frontend.quantize.recipe import Recipe
from modelc.frontend.quantize.write import quantized
from modelc.frontend.witness.surgery import save

Deviations = Mapping[str, float]  # by layer: how much its sums are off, as a share of their root mean square


def terms(floats: FloatModel, layer: Layer) -> int:
    """How many products each of a layer's sums adds up."""
    weights = weights_of(floats, layer)
    return int(weights.size // weights.shape[layer.axis])


def sums_of(layer: Layer) -> str:
    """What a layer adds up in float16, before a bias."""
    return f"{layer.name}/half/sums"


def write_rounded(model: str | Path, recipe: Recipe, deviations: Deviations, output: Path) -> None:
    """Writes the quantized model of a Recipe, with what it has in float16 rounded so."""
    floats = FloatModel(quantized(model, recipe))
    halves = {layer.name: layer for layer in layers_of(floats) if layer.name in recipe.halves}
    nodes = list[NodeProto]()
    for node in floats.model.graph.node:
        layer = halves.get(node.name)
        nodes += [node] if layer is None else in_half(floats, layer, node, deviations[node.name], layer.y)
    floats.put(nodes)
    save(floats.model, output)


def in_half(floats: FloatModel, layer: Layer, node: NodeProto, deviation: float, y: str) -> Iterator[NodeProto]:
    """The nodes that write `y`, what the `node` of a layer writes in float16."""
    prefix, sums, weights = f"{layer.name}/half", sums_of(layer), weights_of(floats, layer)

    def constant(name: str, numbers: object) -> str:
        return floats.set(f"{prefix}/{name}", np.asarray(numbers, np.float32))

    def made(op: str, inputs: list[str], name: str, **attributes: Any) -> NodeProto:
        return helper.make_node(op, inputs, [name], **attributes)

    def rounding(x: str, y: str) -> Iterator[NodeProto]:
        yield made("Cast", [x], f"{y} in float16", to=TensorProto.FLOAT16)
        yield made("Cast", [f"{y} in float16"], y, to=TensorProto.FLOAT)

    yield from rounding(layer.x, f"{prefix}/x")
    with np.errstate(over="ignore"):
        halves = constant("weights", weights.astype(np.float16))
    product = copied(node, name=f"{prefix}/product", x=f"{prefix}/x", weights=halves, y=sums)
    bias = floats.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if bias is not None:
        del product.input[2:]
        conv = layer.op == "Conv"
        bias = bias.reshape(-1, *[1] * (weights.ndim - 2)) if conv else np.float32(factor(node, "beta")) * bias
    yield product
    yield made("Mul", [sums, sums], f"{prefix}/squares of sums")
    mean, share = f"{prefix}/mean", deviation
    if layer.op == "Conv":
        yield made("GlobalAveragePool", [f"{prefix}/squares of sums"], mean)
    else:
        share /= weights.shape[layer.axis] ** 0.5
        axis = floats.set(f"{prefix}/axis", np.array([-1], np.int64))
        yield made("ReduceSum", [f"{prefix}/squares of sums", axis], mean, keepdims=1)
    yield made("Sqrt", [mean], f"{prefix}/size")
    yield made("Mul", [f"{prefix}/size", constant("deviation", share)], f"{prefix}/deviations")
    seed = float(crc32(layer.name.encode()) >> 8)  # in each layer another one, which float32 holds
    yield made("RandomNormalLike", [sums], f"{prefix}/noise", seed=seed)
    yield made("Mul", [f"{prefix}/noise", f"{prefix}/deviations"], f"{prefix}/off")
    noisy = f"{prefix}/noisy sums"
    yield made("Add", [sums, f"{prefix}/off"], noisy)
    if bias is not None:
        yield made("Add", [noisy, constant("bias", bias)], f"{noisy} and bias")
        noisy = f"{noisy} and bias"
    yield from rounding(noisy, y)
