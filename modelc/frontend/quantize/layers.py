"""Which nodes can multiply bytes: contractions of what is computed with constant weights; and where what they read is
rounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from modelc.frontend.quantize.floats import STANDARD, FloatModel

MOVES = ("MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Layer:
    """The node `name` multiplies the value `x` with the constant `weights`, whose dimension `axis` is the output's
    channels, and writes `y`. `rounded` is the value that is rounded for it: `x`, or what moves alone make `x` of.
    `adding` is the name of the node behind it that adds a constant by channel in its place; "": there is none."""

    name: str
    op: str
    x: str
    rounded: str
    weights: str
    adding: str
    y: str
    axis: int

    @property
    def channels_last(self) -> bool:
        """Whether the output's last dimension is its channels, and not its second."""
        return self.op != "Conv"


def layers_of(floats: FloatModel) -> tuple[Layer, ...]:
    """The layers of the model's own graph, in its order."""
    return tuple(layer for node in floats.model.graph.node if (layer := _layer(floats, node)) is not None)


def weights_of(floats: FloatModel, layer: Layer) -> NDArray[np.float32]:
    """What a layer multiplies with."""
    weights = floats.array(layer.weights)
    assert weights is not None
    return weights


def attribute(node: NodeProto, name: str, otherwise: int) -> int:
    """A whole number of a node's attributes."""
    return int(next((a.i for a in node.attribute if a.name == name), otherwise))


def factor(node: NodeProto, name: str) -> float:
    """What a Gemm's product (alpha) or bias (beta) is multiplied by."""
    return float(next((a.f for a in node.attribute if a.name == name), 1.0))


def _layer(floats: FloatModel, node: NodeProto) -> Layer | None:
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in STANDARD:
        return None
    x, name = node.input[0], node.input[1]
    weights = floats.array(name)
    if weights is None or x in floats.constants or not weights.size:
        return None
    if node.op_type != "Conv" and (weights.ndim != 2 or (node.op_type == "Gemm" and attribute(node, "transA", 0))):
        return None
    axis = 0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1
    return Layer(node.name, node.op_type, x, _rounded(floats, x), name, _adding(floats, node), node.output[0], axis)


def _rounded(floats: FloatModel, x: str) -> str:
    """Where a value is rounded: before what moves or chooses its numbers and does nothing else, which then moves
    bytes."""
    while x not in floats.results and floats.private(x):
        node = floats.producers.get(x)
        if node is None or node.op_type not in MOVES or len([o for o in node.output if o]) > 1:
            break
        if not floats.private(node.input[0]) or node.input[0] in floats.constants:
            break
        x = node.input[0]
    return x


def _adding(floats: FloatModel, node: NodeProto) -> str:
    """The node that adds a constant by channel to what a MatMul writes, if one does and nothing else reads that."""
    if node.op_type != "MatMul" or not floats.private(node.output[0]):
        return ""
    (reader,) = floats.readers[node.output[0]]
    others = [name for name in reader.input if name != node.output[0]]
    if reader.op_type != "Add" or len(others) != 1:
        return ""
    added, weights = floats.array(others[0]), floats.array(node.input[1])
    return reader.name if added is not None and weights is not None and added.shape == weights.shape[1:] else ""
