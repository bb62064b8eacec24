"""Which layers can multiply float16: what they read, add up and write stays well within its range on the samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.halves import Deviations, largest, terms, tried_in_half, write_tried
from modelc.frontend.quantize.layers import Layer
from modelc.partition.half_sums import LARGEST, relative_error
from modelc.quantize.samples import Arrays
from modelc.quantize.trials import MOST_SEEN, Say, runs, spread

HEADROOM = 4  # times as far as samples reach there is to be room: sums reach further on their way, and other inputs may


@dataclass(frozen=True)
class Halves:
    """By the layer's name, of those that can be in float16: how much their sums are off, and the relative error of
    their outputs, their inputs those of the float model; of others that would be faster, why they cannot."""

    deviations: Deviations = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def halves_of(
    floats: FloatModel,
    layers: Sequence[Layer],
    stored: Mapping[str, frozenset[str]],
    samples: Sequence[Arrays],
    folder: Path,
    threads: int,
    say: Say,
) -> Halves:
    """Of the `layers`, whose Tasks would store the values `stored` as float16."""
    if not layers:
        return Halves()
    path = folder / "halves.onnx"
    computed = floats.producers.keys() | {value.name for value in floats.model.graph.input}
    values = sorted({name for layer in layers for name in stored[layer.name] & computed} - floats.constants.keys())
    deviations = {layer.name: relative_error(terms(floats, layer)) for layer in layers}
    write_tried(floats, layers, deviations, values, path)
    reach = dict.fromkeys([*values, *deviations], 0.0)  # of values, and by the layer's name of its sums
    squares, sizes = dict.fromkeys(deviations, 0.0), dict.fromkeys(deviations, 0.0)
    for outputs in runs(path, spread(samples, MOST_SEEN), threads, lambda said: say(f"layers in float16, {said}")):
        for value in values:
            reach[value] = max(reach[value], float(outputs[largest(value)]))
        for layer in layers:
            names = tried_in_half(layer)
            squares[layer.name] += float(outputs[names.squares])
            sizes[layer.name] += float(outputs[names.reference])
            reach[layer.name] = max(reach[layer.name], float(outputs[names.largest]))
    refused = dict[str, str]()
    for layer in layers:
        weights = floats.array(layer.weights)
        assert weights is not None
        reached = [(float(np.abs(weights).max()), LARGEST, "its weights reach")]
        reached += [(reach[layer.name], LARGEST / HEADROOM, "its sums reach")]
        inside = sorted(stored[layer.name] & reach.keys())
        reached += [(reach[value], LARGEST / HEADROOM, f"{value!r} reaches") for value in inside]
        wide = [
            f"{what} {size:.3g}, and float16 ends at {LARGEST:.0f}" for size, limit, what in reached if size > limit
        ]
        if wide:
            refused[layer.name] = wide[0]
    fitting = [name for name in deviations if name not in refused]
    return Halves(
        {name: deviations[name] for name in fitting},
        {name: math.sqrt(squares[name] / sizes[name]) if sizes[name] else 0.0 for name in fitting},
        refused,
    )
