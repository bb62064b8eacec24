"""The quantized model of a Recipe: what QuantizeLinear and DequantizeLinear stand around multiplies bytes; that of a
Packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, checker, helper

from modelc.errors import ConfigError, ModelError
from modelc.frontend.quantize.equalise import applied
from modelc.frontend.quantize.floats import FloatModel, drop_unread, float_model
from modelc.frontend.quantize.layers import Layer, factor, layers_of, weights_of
from modelc.frontend.quantize.packing import Packing, packed_model
from modelc.frontend.quantize.recipe import Range, Recipe
from modelc.frontend.quantize.weights import as_bytes, bias_as_whole
from modelc.frontend.witness.excerpt import save_model
from modelc.frontend.witness.surgery import save


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
