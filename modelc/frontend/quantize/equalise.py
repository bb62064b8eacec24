"""Channels of a value divided by numbers that what reads it is multiplied by, so that one scale fits them all. What the
float model computes stays the same, to rounding.

What writes the value takes the division into its weights: a convolution, through Relu or Clip too, or a layer norm.
What reads it takes the multiplication into its own, which have a scale for each output channel: of a depthwise
convolution that costs nothing (Nagel et al., Data-free quantization through weight equalization, section 4.1), of
another it trades the range of activations for that of weights (Xiao et al., SmoothQuant, equation 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from modelc.errors import ConfigError
from modelc.frontend.quantize.floats import FloatModel, drop_unread
from modelc.frontend.quantize.layers import Layer, attribute, layers_of, weights_of

Floats = NDArray[np.float32]
TOGETHER = ("Relu", "Clip")  # which commute with a division by what is positive, Clip if its bounds are divided too


@dataclass(frozen=True)
class Smoothable:
    """A value whose channels can be scaled: what `nodes` write from constants, the last of them
    the value itself, and the `layers` that read it, all that do. `rank` is that of an image's value; 0 for rows, whose
    last dimension is their channels."""

    value: str
    rank: int
    nodes: tuple[str, ...]
    layers: tuple[Layer, ...]


def smoothable(floats: FloatModel) -> tuple[Smoothable, ...]:
    """The values of a model that can be scaled so."""
    readers: dict[str, list[Layer]] = {}
    for layer in layers_of(floats):
        if layer.x == layer.rounded:
            readers.setdefault(layer.x, []).append(layer)
    places = (_smoothable(floats, value, tuple(layers)) for value, layers in readers.items())
    return tuple(place for place in places if place is not None)


def _smoothable(floats: FloatModel, value: str, layers: tuple[Layer, ...]) -> Smoothable | None:
    if value in floats.results or value in floats.inner or len(floats.readers[value]) != len(layers):
        return None
    if any(_channels_of(floats, layer) is None for layer in layers):
        return None
    nodes, name = list[NodeProto](), value
    while (node := floats.producers.get(name)) is not None:
        nodes.append(node)
        if node.op_type not in TOGETHER or (name := node.input[0]) in floats.constants or not floats.private(name):
            break
        if node.op_type == "Clip" and _bounds(floats, node) is None:
            return None
    if node is None:
        return None
    names = tuple(node.name for node in reversed(nodes))
    if all(layer.op == "Conv" for layer in layers):
        wide = node.op_type == "Conv" and _with_constants(floats, node)
        return Smoothable(value, len(floats.constants[layers[0].weights].dims), names, layers) if wide else None
    if node.op_type == "LayerNormalization" and _with_constants(floats, node) and attribute(node, "axis", -1) == -1:
        return Smoothable(value, 0, names, layers) if len(nodes) == 1 else None
    return _behind_norm(floats, value, node, layers) if len(nodes) == 1 else None


def _behind_norm(floats: FloatModel, value: str, node: NodeProto, layers: tuple[Layer, ...]) -> Smoothable | None:
    """Of a layer norm that is spelled out, its last two nodes: x * gamma + beta."""
    if node.op_type != "Add" or not _is_vector_beside(floats, node):
        return None
    inner = next((name for name in node.input if name not in floats.constants), "")
    product = floats.producers.get(inner)
    if product is None or product.op_type != "Mul" or not floats.private(inner):
        return None
    if not _is_vector_beside(floats, product):
        return None
    return Smoothable(value, 0, (product.name, node.name), layers)


def _is_vector_beside(floats: FloatModel, node: NodeProto) -> bool:
    """Whether one of two operands is a constant with a number for each channel, the last dimension."""
    arrays = [floats.array(name) for name in node.input]
    vectors = [a for a in arrays if a is not None and a.ndim == 1 and a.size > 1]
    return len(vectors) == 1 and len(arrays) == 2 and sum(name in floats.constants for name in node.input) == 1


def _with_constants(floats: FloatModel, node: NodeProto) -> bool:
    return all(floats.array(name) is not None for name in node.input[1:] if name)


def _bounds(floats: FloatModel, node: NodeProto) -> tuple[Floats, Floats] | None:
    """The bounds of a Clip from 0 on; None for another."""
    if len(node.input) != 3:
        return None
    low, high = floats.array(node.input[1]), floats.array(node.input[2])
    return (low, high) if low is not None and high is not None and low.size == high.size == 1 and low == 0 else None


def _channels_of(floats: FloatModel, layer: Layer) -> tuple[int, bool] | None:
    """How many channels a layer reads, and whether each has weights of its own; None where they are in groups."""
    weights = weights_of(floats, layer)
    if layer.op != "Conv":
        return weights.shape[1 - layer.axis], False
    groups = attribute(floats.node(layer.name), "group", 1)
    if groups == 1:
        return weights.shape[1], False
    return (groups, True) if weights.shape[1] == 1 else None


def largest_weights(floats: FloatModel, place: Smoothable) -> Floats | None:
    """The greatest magnitude of what each channel of the value is multiplied with; None where all that read it have
    weights of their own for each channel, so that any scale does."""
    largest = list[Floats]()
    for layer in place.layers:
        counted, weights = _channels_of(floats, layer), weights_of(floats, layer)
        assert counted is not None
        if not counted[1]:
            along = 1 if layer.op == "Conv" else 1 - layer.axis
            largest.append(np.abs(weights).max(axis=tuple(k for k in range(weights.ndim) if k != along)))
    return np.max(largest, axis=0) if largest else None


def applied(floats: FloatModel, smoothed: Mapping[str, Floats]) -> None:
    """Divides the channels of each of the values `smoothed`. Raises ConfigError where the model has no such."""
    if not smoothed:
        return
    places = {place.value: place for place in smoothable(floats)}
    for value, divisors in smoothed.items():
        place = places.get(value)
        counts = {counted[0] for layer in place.layers if (counted := _channels_of(floats, layer))} if place else set()
        if place is None or counts != {len(divisors)} or not (divisors > 0).all():
            raise ConfigError(f"the choices scale the channels of {value!r}, which this model has no such value for")
        for name in place.nodes:
            _divide(floats, floats.node(name), divisors, place.rank)
        for layer in place.layers:
            _multiply(floats, layer, floats.node(layer.name), divisors)
    drop_unread(floats)


def _divide(floats: FloatModel, node: NodeProto, divisors: Floats, rank: int) -> None:
    if node.op_type == "Clip":
        _divide_bounds(floats, node, divisors, rank)
        return
    for k, name in enumerate(node.input):
        array = floats.array(name) if name else None
        if array is not None:
            by = divisors.reshape(-1, *[1] * (array.ndim - 1))
            floats.set(f"{node.name}/{k}/divided", (array / by).astype(np.float32))
            node.input[k] = f"{node.name}/{k}/divided"


def _divide_bounds(floats: FloatModel, node: NodeProto, divisors: Floats, rank: int) -> None:
    """Clip from 0 to a bound becomes Relu, and Min with a bound for each channel."""
    bounds = _bounds(floats, node)
    assert bounds is not None
    name, positive = f"{node.name}/bounds", f"{node.output[0]}/positive"
    floats.set(name, (bounds[1].reshape(()) / divisors).astype(np.float32).reshape(-1, *[1] * (rank - 2)))
    both = [
        helper.make_node("Relu", [node.input[0]], [positive], f"{node.name}/relu"),
        helper.make_node("Min", [positive, name], list(node.output), node.name),
    ]
    others = floats.model.graph.node
    floats.put(n for other in others for n in (both if other.name == node.name else [other]))
    floats.index()


def _multiply(floats: FloatModel, layer: Layer, node: NodeProto, factors: Floats) -> None:
    weights, counted = floats.array(node.input[1]), _channels_of(floats, layer)
    assert weights is not None and counted is not None
    if counted[1]:
        by = np.repeat(factors, weights.shape[0] // counted[0]).reshape(-1, *[1] * (weights.ndim - 1))
    else:
        along = 1 if layer.op == "Conv" else 1 - layer.axis
        by = factors.reshape([-1 if k == along else 1 for k in range(weights.ndim)])
    floats.set(f"{layer.name}/multiplied", (weights * by).astype(np.float32))
    node.input[1] = f"{layer.name}/multiplied"
