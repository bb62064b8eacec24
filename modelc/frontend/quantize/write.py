"""The quantized model of a Recipe: what QuantizeLinear and DequantizeLinear stand around multiplies bytes; that of a
Packing. And layers in float16, as models say them that ONNX Runtime computes in float32: what a layer multiplies and
what it writes is rounded to float16, and its sums are off by noise, as much as sums are that are rounded with every
term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, checker, helper

from modelc.errors import ConfigError, ModelError
from modelc.frontend.quantize.dynamic import rounded_dynamically
from modelc.frontend.quantize.equalise import applied
from modelc.frontend.quantize.floats import FloatModel, copied, drop_unread, float_model
from modelc.frontend.quantize.layers import Layer, factor, layers_of, weights_of
from modelc.frontend.quantize.packing import Packing, packed_model
from modelc.frontend.quantize.recipe import Range, Recipe
from modelc.frontend.quantize.weights import as_bytes, bias_as_whole
from modelc.frontend.witness.excerpt import save_model
from modelc.frontend.witness.surgery import save

Deviations = Mapping[str, float]  # by layer: how much its sums are off, as a share of their root mean square


def write_quantized(model: str | Path, recipe: Recipe | Packing, output: Path) -> onnx.ModelProto:
    """Writes the model in the file `model` as a Recipe or Packing says it. Raises ConfigError where that is of another
    one."""
    proto = packed_model(model, recipe) if isinstance(recipe, Packing) else quantized(model, recipe)
    save(proto, output)
    return proto


def emit_quantized(proto: onnx.ModelProto, output: Path) -> None:
    """What was written, for others: checked by onnx, and in its place when all of it has been written."""
    try:
        checker.check_model(proto)
    except checker.ValidationError as error:
        raise ModelError(f"the quantized model would not be valid ONNX: {str(error)[:300]}") from None
    save_model(proto, output)


def quantized(model: str | Path, recipe: Recipe) -> onnx.ModelProto:
    """The model of a Recipe."""
    floats = float_model(model)
    applied(floats, recipe.smoothed)
    layers = {layer.name: layer for layer in layers_of(floats)}
    if unknown := sorted(recipe.narrow - layers.keys()):
        raise ConfigError(f"the choices quantize {unknown[0]!r}, which is no layer of this model")
    narrow = [layer for layer in layers.values() if layer.name in recipe.narrow]
    if lacking := [layer.rounded for layer in narrow if layer.rounded not in recipe.ranges]:
        raise ConfigError(f"the choices do not say how {lacking[0]!r} is rounded")
    for layer in narrow:
        correct(floats, layer, recipe.corrections.get(layer.name))
    behind = dict[str, list[NodeProto]]()
    for value in dict.fromkeys(layer.rounded for layer in narrow):
        _read_rounded(floats, value, [layer for layer in layers.values() if layer.rounded == value], recipe)
        behind[value] = rounding(floats, value, value, recipe.ranges[value])
    first = [node for layer in narrow for node in _multiply_bytes(floats, layer, recipe)]
    floats.put([*first, *floats.behind(floats.model.graph.node, behind)])
    drop_unread(floats)
    rounded_dynamically(floats, recipe)
    del floats.model.graph.value_info[:]  # which may say another order of nodes than there is now
    return floats.model


# --- corrections ----------------------------------------------------------------------------------------------------


def correctable(floats: FloatModel, layer: Layer) -> bool:
    """Whether a number can be added to each channel of what a layer writes: it has a bias, or can have one."""
    return _biased(floats, layer) is not None


def correct(floats: FloatModel, layer: Layer, added: NDArray[np.float32] | None) -> None:
    """Adds a number to each channel of what a layer writes, where that is possible."""
    biased = _biased(floats, layer)
    if added is None or biased is None:
        return
    node, place = biased
    bias = floats.array(node.input[place]) if len(node.input) > place else None
    name = floats.set(f"{layer.name}/bias", (added if bias is None else bias + added).astype(np.float32))
    if len(node.input) > place:
        node.input[place] = name
    else:
        node.input.append(name)


def _biased(floats: FloatModel, layer: Layer) -> tuple[NodeProto, int] | None:
    """The node that adds a bias to what a layer writes, and at which place it reads that; None where none can."""
    if layer.adding:
        node = floats.node(layer.adding)
        return node, next(k for k, name in enumerate(node.input) if name != layer.y)
    node = floats.node(layer.name)
    if layer.op == "MatMul" or factor(node, "alpha") != 1 or factor(node, "beta") != 1:
        return None
    if len(node.input) < 3:
        return node, 2
    bias = floats.array(node.input[2])
    return (node, 2) if bias is not None and bias.shape == (weights_of(floats, layer).shape[layer.axis],) else None


# --- bytes ----------------------------------------------------------------------------------------------------------


def shares_bytes(layers: Sequence[Layer], value: str) -> bool:
    """Whether what is rounded for some of the `layers` that read a value is read rounded by the nodes that are no layer
    too: of images, which are large, bytes alone are stored then, and what moves alone make of them is no other value. A
    layer that stays in float32 reads what is not rounded."""
    return all(layer.op == "Conv" for layer in layers) or any(layer.x != value for layer in layers)


def rounding(floats: FloatModel, x: str, prefix: str, stored: Range) -> list[NodeProto]:
    """The nodes that round a value to bytes and write what these stand for, `prefix`/rounded."""
    whole, scale, zero = f"{prefix}/bytes", f"{prefix}/scale", f"{prefix}/zero"
    floats.set(scale, np.float32(stored.scale))
    floats.set(zero, np.uint8(stored.zero))
    return [
        helper.make_node("QuantizeLinear", [x, scale, zero], [whole], f"{prefix}/quantize"),
        helper.make_node("DequantizeLinear", [whole, scale, zero], [f"{prefix}/rounded"], f"{prefix}/dequantize"),
    ]


def _read_rounded(floats: FloatModel, value: str, layers: Sequence[Layer], recipe: Recipe) -> None:
    """Has the readers of a value, the `layers` among them, read it rounded."""
    shared, names = shares_bytes(layers, value), {layer.name for layer in layers}
    for reader in floats.readers[value]:
        if reader.name in recipe.narrow or (shared and reader.name not in names):
            for k, name in enumerate(reader.input):
                if name == value:
                    reader.input[k] = f"{value}/rounded"


def _multiply_bytes(floats: FloatModel, layer: Layer, recipe: Recipe) -> Iterator[NodeProto]:
    """Has a layer multiply bytes, and its bias be whole numbers where it can; the nodes that dequantize these."""
    node, weights = floats.node(layer.name), weights_of(floats, layer)
    whole, scale, zero, _ = as_bytes(weights, layer.axis, recipe.largest_weight, layer.name in recipe.asymmetric)
    name = node.input[1] = f"{layer.name}/weights"
    yield _dequantized(floats, name, "bytes", (whole, scale, zero), layer.axis)
    bias = floats.array(node.input[2]) if len(node.input) > 2 else None
    if bias is None or bias.shape != scale.shape or factor(node, "alpha") != 1 or factor(node, "beta") != 1:
        return
    sums = np.float32(recipe.ranges[layer.rounded].scale) * scale
    added = bias_as_whole(bias, sums)
    if added is not None and (sums >= np.finfo(np.float32).tiny).all():
        name = node.input[2] = f"{layer.name}/added"
        yield _dequantized(floats, name, "whole", (added, sums, np.zeros(sums.shape, np.int32)), 0)


def _dequantized(
    floats: FloatModel, real: str, whole: str, numbers: tuple[NDArray[np.generic], ...], axis: int
) -> NodeProto:
    """The node that writes `real` from whole numbers by their scales and zero points."""
    names = [floats.set(f"{real}/{part}", of) for part, of in zip((whole, "scale", "zero"), numbers, strict=True)]
    return helper.make_node("DequantizeLinear", names, [real], f"{real}/dequantize", axis=axis)


# --- float16 --------------------------------------------------------------------------------------------------------


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
