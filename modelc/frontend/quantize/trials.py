"""Models that say of another what its activations are, and what rounding does to its layers, each by itself. Their
outputs, beside none of the model's own:

    VALUE/low, VALUE/high, VALUE/sampled   the least and the greatest number of a value, and some of its numbers
    VALUE/lows, VALUE/highs, VALUE/shape   the least and the greatest number of each channel; its dimensions
    VALUE/largest                          its greatest magnitude
    LAYER/size                             the sum of the squares of what a layer writes
    TRIAL/squares, TRIAL/means             that of what it is off in a trial; and by how much, by channel
    TRIAL/largest                          the largest of its sums in float16, before a bias
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from modelc.frontend.control.structure import reads
from modelc.frontend.quantize.dynamic import rounded_by_row
from modelc.frontend.quantize.floats import FloatModel, copied, drop_unread, operator_set
from modelc.frontend.quantize.layers import Layer, weights_of
from modelc.frontend.quantize.recipe import Range
from modelc.frontend.quantize.weights import as_bytes
from modelc.frontend.quantize.write import Deviations, in_half, rounding, sums_of
from modelc.frontend.witness.surgery import save

SAMPLED = 4096  # numbers that are taken of a value in one run, some of them more than once where it has fewer
PLACES = "modelc:places"


def trial(layer: Layer, number: int | None = None) -> str:
    """The trial of a layer by the range of that number; None: the one in float16."""
    return f"{layer.name}/half" if number is None else f"{layer.name}/trial{number}"


def sampled_places() -> NDArray[np.int64]:
    """Which numbers of a value are sampled, modulo how many it has."""
    return np.random.default_rng(0).integers(0, 1 << 40, SAMPLED)


def write_statistics(floats: FloatModel, values: Sequence[str], ranks: Mapping[str, int], output: Path) -> None:
    """Writes the model with low, high and sampled of each value, and lows, highs and shape of those that `ranks` names:
    of images their rank, of rows, whose last dimension is their channels, 0."""
    model = floats.copy(outputs=False)
    places = model.set(PLACES, sampled_places())
    flat = model.set(f"{PLACES}/flat", np.array([-1]))
    for value in values:
        model.give(model.add("ReduceMin", [value], f"{value}/low", keepdims=0))
        model.give(model.add("ReduceMax", [value], f"{value}/high", keepdims=0))
        taken = model.add("Mod", [places, model.add("Size", [value], f"{value}/size")], f"{value}/places")
        numbers = model.add("Reshape", [value, flat], f"{value}/flat")
        model.give(model.add("Gather", [numbers, taken], f"{value}/sampled", axis=0))
    for value, rank in ranks.items():
        for op, part in (("ReduceMin", "lows"), ("ReduceMax", "highs")):
            _give_by_channel(model, op, value, f"{value}/{part}", rank)
        model.give(model.add("Shape", [value], f"{value}/shape"), onnx.TensorProto.INT64)
    _save_needed(model, output)


def write_trials(
    floats: FloatModel,
    layers: Sequence[Layer],
    ranges: Mapping[str, Sequence[Range | None]],
    most: int,
    asymmetric: bool,
    output: Path,
) -> None:
    """Writes the model with a trial of each of the `layers` in bytes for each of the `ranges` of the value that is
    rounded for it (None: by row), its weights as `as_bytes` has them."""
    model = floats.copy(outputs=False)
    for layer in layers:
        weights, node = weights_of(floats, layer), floats.node(layer.name)
        real = model.set(f"{layer.name}/trial/weights", as_bytes(weights, layer.axis, most, asymmetric).real())
        model.give(model.add("ReduceSumSquare", [layer.y], f"{layer.name}/size", keepdims=0))
        for number, stored in enumerate(ranges[layer.rounded]):
            prefix = trial(layer, number)
            x, y = f"{prefix}/rounded", f"{prefix}/y"
            x_rounded = rounding(model, layer.x, prefix, stored) if stored else rounded_by_row(model, layer.x, prefix)
            model.model.graph.node.extend(x_rounded)
            model.model.graph.node.append(copied(node, name=f"{prefix}/layer", x=x, weights=real, y=y))
            off = _give_squares(model, layer, y, prefix)
            _give_by_channel(model, "ReduceMean", off, f"{prefix}/means", 0 if layer.channels_last else weights.ndim)
    _save_needed(model, output)


def write_halves(
    floats: FloatModel, layers: Collection[Layer], deviations: Deviations, values: Collection[str], output: Path
) -> None:
    """Writes the model with a trial of each of the `layers` in float16, and the largest of each of the `values`."""
    model = floats.copy(outputs=False)
    for layer in layers:
        prefix, y = trial(layer), f"{trial(layer)}/y"
        model.model.graph.node.extend(in_half(model, layer, floats.node(layer.name), deviations[layer.name], y))
        model.give(model.add("ReduceSumSquare", [layer.y], f"{layer.name}/size", keepdims=0))
        _give_squares(model, layer, y, prefix)
        _give_largest(model, sums_of(layer), prefix)
    for value in values:
        _give_largest(model, value, value)
    _save_needed(model, output)


def _save_needed(model: FloatModel, output: Path) -> None:
    """Writes what the outputs are made of."""
    needed, kept = {value.name for value in model.model.graph.output}, list[NodeProto]()
    for node in reversed(model.model.graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed |= {*reads(node)}
    model.put(reversed(kept))
    drop_unread(model)
    save(model.model, output)


def _give_squares(model: FloatModel, layer: Layer, y: str, prefix: str) -> str:
    off = model.add("Sub", [layer.y, y], f"{y}/off")
    model.give(model.add("ReduceSumSquare", [off], f"{prefix}/squares", keepdims=0))
    return off


def _give_largest(model: FloatModel, value: str, prefix: str) -> None:
    magnitudes = model.add("Abs", [value], f"{prefix}/magnitudes of all")
    model.give(model.add("ReduceMax", [magnitudes], f"{prefix}/largest", keepdims=0))


def _give_by_channel(model: FloatModel, op: str, x: str, y: str, rank: int) -> None:
    """Reduces along all but channels, as the operator set says it."""
    axes = (0, *range(2, rank))
    x = x if rank else model.add("Flatten", [x], f"{y}/rows", axis=-1)
    if operator_set(model.model) < 18:
        model.give(model.add(op, [x], y, axes=axes, keepdims=0))
    else:
        model.give(model.add(op, [x, model.set(f"{y}/axes", np.array(axes, np.int64))], y, keepdims=0))
