"""Each layer by itself, its inputs those of the float model: the range that its output is nearest with, and what it is
off then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.recipe import Floats, Range
from modelc.frontend.quantize.statistics import channels, high, low, sampled, write_statistics
from modelc.frontend.quantize.trials import trial, write_trials
from modelc.quantize.ranges import joined, ranges_of
from modelc.quantize.samples import Arrays
from modelc.verify.engine import Engine

ENGINE = "ort-real"
MOST_SEEN = 256  # samples that ranges are taken from
MOST_TRIED = 16  # samples that ranges are compared on
Say = Callable[[str], None]


@dataclass(frozen=True)
class Alone:
    """What the trials say: a range for each value; for each layer the relative error of its output, and what its
    channels are off on average."""

    ranges: Mapping[str, Range]
    errors: Mapping[str, float]
    means: Mapping[str, Floats]


def possible_ranges(
    floats: FloatModel,
    layers: Sequence[Layer],
    ranks: Mapping[str, int],
    samples: Sequence[Arrays],
    folder: Path,
    threads: int,
    say: Say,
) -> tuple[dict[str, tuple[Range, ...]], dict[str, Floats]]:
    """The ranges that each value may be rounded by; and of those that `ranks` names the greatest magnitudes by
    channel."""
    values = tuple(dict.fromkeys(layer.rounded for layer in layers))
    path = folder / "statistics.onnx"
    write_statistics(floats, values, ranks, path)
    lows, highs = dict.fromkeys(values, math.inf), dict.fromkeys(values, -math.inf)
    numbers: dict[str, list[Floats]] = {value: [] for value in values}
    largest: dict[str, Floats] = {}
    for outputs in runs(path, spread(samples, MOST_SEEN), threads, lambda said: say(f"ranges, {said}")):
        for value in values:
            lows[value] = min(lows[value], float(outputs[low(value)]))
            highs[value] = max(highs[value], float(outputs[high(value)]))
            numbers[value].append(outputs[sampled(value)])
        for value in ranks:
            largest[value] = np.maximum(largest.get(value, 0), outputs[channels(value)])
    ranges = {value: ranges_of(lows[value], highs[value], joined(numbers[value])) for value in values}
    return ranges, largest


def tried(
    floats: FloatModel,
    layers: Sequence[Layer],
    ranges: Mapping[str, Sequence[Range]],
    most: int,
    samples: Sequence[Arrays],
    folder: Path,
    threads: int,
    say: Say,
    asymmetric: bool = False,
) -> Alone:
    """Which of the ranges of each value leaves the layers that read it with the least error, all layers alike, where
    their weights are as `as_bytes` has them."""
    path = folder / "trials.onnx"
    write_trials(floats, layers, ranges, most, asymmetric, path)
    squares: dict[tuple[str, int], float] = {}
    means: dict[tuple[str, int], Floats] = {}
    sizes = dict.fromkeys((layer.name for layer in layers), 0.0)
    seen = spread(samples, MOST_TRIED)
    for outputs in runs(path, seen, threads, lambda said: say(f"layers by themselves, {said}")):
        for layer in layers:
            for number in range(len(ranges[layer.rounded])):
                names, key = trial(layer, number), (layer.name, number)
                squares[key] = squares.get(key, 0.0) + float(outputs[names.squares])
                means[key] = means.get(key, np.float32(0)) + outputs[names.means] / np.float32(len(seen))
            sizes[layer.name] += float(outputs[trial(layer, 0).reference])

    def error(layer: Layer, number: int) -> float:
        off = squares[layer.name, number]
        return off / sizes[layer.name] if sizes[layer.name] else off

    chosen: dict[str, int] = {}
    for value, every in ranges.items():
        readers = [layer for layer in layers if layer.rounded == value]
        chosen[value] = min(range(len(every)), key=lambda number: sum(error(layer, number) for layer in readers))
    return Alone(
        {value: ranges[value][number] for value, number in chosen.items()},
        {layer.name: math.sqrt(error(layer, chosen[layer.rounded])) for layer in layers},
        {layer.name: means[layer.name, chosen[layer.rounded]] for layer in layers},
    )


def runs(model: Path, samples: Sequence[Arrays], threads: int, say: Say = lambda said: None) -> Iterator[Arrays]:
    """The outputs of a model for each sample, computed in float32 between what is rounded."""
    with Engine(ENGINE, model, threads, timed=False) as engine:
        for number, sample in enumerate(samples, 1):
            say(f"sample {number} of {len(samples)}")
            yield engine.run(sample)


def spread(samples: Sequence[Arrays], most: int) -> list[Arrays]:
    """At most so many of the samples, from all over them."""
    count = min(len(samples), most)
    return [samples[k * len(samples) // count] for k in range(count)]
