"""The quantized model of a Recipe: what QuantizeLinear and DequantizeLinear stand around multiplies bytes; that of a
Packing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, checker, helper, numpy_helper

from modelc.errors import ConfigError, ModelError
from modelc.frontend.quantize.equalise import applied
from modelc.frontend.quantize.floats import FloatModel, drop_unread, float_model
from modelc.frontend.quantize.layers import Layer, layers_of
from modelc.frontend.quantize.packing import Packing, packed_model
from modelc.frontend.quantize.recipe import Recipe
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
    writer = _Writer(floats, recipe)
    for layer in narrow:
        correct(floats, layer, recipe.corrections.get(layer.name))
    for value in dict.fromkeys(layer.rounded for layer in narrow):
        writer.round(value, [layer for layer in layers.values() if layer.rounded == value])
    for layer in narrow:
        writer.narrow(layer)
    writer.place()
    drop_unread(floats)
    del floats.model.graph.value_info[:]  # which may say another order of nodes than there is now
    return floats.model


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
    name = f"{layer.name}/bias"
    floats.set(name, (added if bias is None else bias + added).astype(np.float32))
    if len(node.input) > place:
        node.input[place] = name
    else:
        node.input.append(name)


def _biased(floats: FloatModel, layer: Layer) -> tuple[NodeProto, int] | None:
    """The node that adds a bias to what a layer writes, and at which place it reads that; None where none can."""
    weights = floats.array(layer.weights)
    if layer.adding:
        node = floats.node(layer.adding)
        return node, next(k for k, name in enumerate(node.input) if name != layer.y)
    node = floats.node(layer.name)
    if layer.op == "MatMul" or weights is None or any(a.name in ("alpha", "beta") and a.f != 1 for a in node.attribute):
        return None
    if len(node.input) < 3:
        return node, 2
    bias = floats.array(node.input[2])
    return (node, 2) if bias is not None and bias.shape == (weights.shape[layer.axis],) else None


def shares_bytes(layers: list[Layer], value: str) -> bool:
    """Whether what is rounded for some of the `layers` that read a value is read rounded by the nodes that are no layer
    too: of images, which are large, bytes alone are stored then, and what moves alone make of them is no other value. A
    layer that stays in float32 reads what is not rounded."""
    return all(layer.op == "Conv" for layer in layers) or any(layer.x != value for layer in layers)


class _Writer:
    """Nodes that are added to a model, and what they stand behind."""

    def __init__(self, floats: FloatModel, recipe: Recipe) -> None:
        self.floats, self.ranges, self.chosen = floats, recipe.ranges, recipe.narrow
        self.most, self.asymmetric = recipe.largest_weight, recipe.asymmetric
        self.nodes = {node.name: node for node in floats.model.graph.node}
        self.behind: dict[str, list[NodeProto]] = {}  # by the value that they read
        self.first: list[NodeProto] = []

    def round(self, value: str, layers: list[Layer]) -> None:
        """Has readers of a value, the `layers` among them, read it rounded."""
        stored = self.ranges[value]
        scale, zero = f"{value}/scale", f"{value}/zero"
        self._constant(scale, np.array(stored.scale, np.float32))
        self._constant(zero, np.array(stored.zero, np.uint8))
        real = f"{value}/rounded"
        shared, names = shares_bytes(layers, value), {layer.name for layer in layers}
        for reader in self.floats.readers[value]:
            if reader.name in self.chosen or (shared and reader.name not in names):
                for k, name in enumerate(reader.input):
                    if name == value:
                        reader.input[k] = real
        self.behind[value] = [
            helper.make_node("QuantizeLinear", [value, scale, zero], [f"{value}/bytes"], f"{value}/quantize"),
            helper.make_node("DequantizeLinear", [f"{value}/bytes", scale, zero], [real], f"{value}/dequantize"),
        ]

    def narrow(self, layer: Layer) -> None:
        """Has a layer multiply bytes."""
        node, weights = self.nodes[layer.name], self.floats.array(layer.weights)
        assert weights is not None
        whole, scale, zero, _ = as_bytes(weights, layer.axis, self.most, layer.name in self.asymmetric)
        name = f"{layer.name}/weights"
        self._constant(f"{name}/bytes", whole)
        self._constant(f"{name}/scale", scale)
        self._constant(f"{name}/zero", zero)
        self._dequantize(f"{name}/bytes", f"{name}/scale", f"{name}/zero", name, layer.axis)
        node.input[1] = name
        bias = self.floats.array(node.input[2]) if len(node.input) > 2 else None
        factors = [a.f for a in node.attribute if a.name in ("alpha", "beta")]
        if bias is None or bias.shape != scale.shape or any(factor != 1.0 for factor in factors):
            return
        sums = np.float32(self.ranges[layer.rounded].scale) * scale
        added = bias_as_whole(bias, sums)
        if added is not None and (sums >= np.finfo(np.float32).tiny).all():
            name = f"{layer.name}/added"
            self._constant(f"{name}/whole", added)
            self._constant(f"{name}/scale", sums)
            self._constant(f"{name}/zero", np.zeros(sums.shape, np.int32))
            self._dequantize(f"{name}/whole", f"{name}/scale", f"{name}/zero", name, 0)
            node.input[2] = name

    def _dequantize(self, whole: str, scale: str, zero: str, real: str, axis: int) -> None:
        self.first.append(
            helper.make_node("DequantizeLinear", [whole, scale, zero], [real], f"{real}/dequantize", axis=axis)
        )

    def _constant(self, name: str, numbers: NDArray[np.generic]) -> None:
        self.floats.model.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), name))
        self.floats.constants[name] = self.floats.model.graph.initializer[-1]

    def place(self) -> None:
        """Puts the nodes where what they read has been written."""
        graph = self.floats.model.graph
        nodes = list(self.first)
        for value in graph.input:
            nodes += self.behind.pop(value.name, [])
        for node in graph.node:
            nodes.append(node)
            for name in node.output:
                nodes += self.behind.pop(name, [])
        assert not self.behind
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
