"""A model that says what each way to round adds to its layer: beside every layer, the layer of bytes for each range
that its input may be rounded by, and how far its output is from that of the float layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.recipe import Range
from modelc.frontend.quantize.statistics import reduced
from modelc.frontend.quantize.weights import as_bytes
from modelc.frontend.witness.surgery import save


class Trial(NamedTuple):
    """Names of the outputs of one trial: the sum of the squares of what the layer is off, and the means of that by
    channel; with the sum of the squares of what it should be."""

    squares: str
    means: str
    reference: str


def trial(layer: Layer, number: int) -> Trial:
    """The outputs of the trial of that number of a layer."""
    prefix = f"{layer.name}/trial{number}"
    return Trial(f"{prefix}/squares", f"{prefix}/means", f"{layer.name}/trial/reference")


def write_trials(
    floats: FloatModel,
    layers: Sequence[Layer],
    ranges: Mapping[str, Sequence[Range]],
    most: int,
    asymmetric: bool,
    output: Path,
) -> None:
    """Writes the model with the outputs of a trial of each layer for each of the `ranges` of the value that is rounded
    for it, its weights as `as_bytes` has them. The model's own outputs are left out."""
    model = ModelProto()
    model.CopyFrom(floats.model)
    graph = model.graph
    del graph.output[:]
    nodes = {node.name: node for node in floats.model.graph.node}
    writer = _Trials(model)
    for layer in layers:
        weights = floats.array(layer.weights)
        assert weights is not None
        writer.reference(layer)
        real = as_bytes(weights, layer.axis, most, asymmetric).real()
        rounded_weights = writer.constant(f"{layer.name}/trial/weights", real)
        for number, stored in enumerate(ranges[layer.rounded]):
            writer.trial(layer, nodes[layer.name], trial(layer, number), stored, rounded_weights, weights.ndim)
    save(model, output)


class _Trials:
    def __init__(self, model: ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))

    def constant(self, name: str, numbers: object) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(numbers), name))
        return name

    def add(self, op: str, inputs: list[str], output: str, **attrs: Any) -> str:
        self.graph.node.append(helper.make_node(op, inputs, [output], **attrs))
        return output

    def give(self, name: str) -> None:
        self.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def reference(self, layer: Layer) -> None:
        outputs = trial(layer, 0)
        self.give(self.add("ReduceSumSquare", [layer.y], outputs.reference, keepdims=0))

    def trial(self, layer: Layer, node: NodeProto, outputs: Trial, stored: Range, weights: str, rank: int) -> None:
        prefix = outputs.squares.rpartition("/")[0]
        scale = self.constant(f"{prefix}/scale", np.float32(stored.scale))
        zero = self.constant(f"{prefix}/zero", np.uint8(stored.zero))
        whole = self.add("QuantizeLinear", [layer.x, scale, zero], f"{prefix}/bytes")
        real = self.add("DequantizeLinear", [whole, scale, zero], f"{prefix}/x")
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.input[0], copy.input[1], copy.output[0] = f"{prefix}/layer", real, weights, f"{prefix}/y"
        self.graph.node.append(copy)
        off = self.add("Sub", [layer.y, f"{prefix}/y"], f"{prefix}/off")
        self.give(self.add("ReduceSumSquare", [off], outputs.squares, keepdims=0))
        axes: tuple[int, ...] = (0,)
        if layer.channels_last:
            off = self.add("Flatten", [off], f"{prefix}/rows", axis=-1)
        else:
            axes = (0, *range(2, rank))
        self.graph.node.append(reduced("ReduceMean", off, outputs.means, axes, self.opset, self.model))
        self.give(outputs.means)
