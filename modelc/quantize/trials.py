"""Each layer by itself, its inputs those of the float model: the ranges that its input may be rounded by, and the one
that its output is nearest with; which layers can have asymmetric weights, and which can multiply float16;
what they are off where activations are rounded by row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import Layer, weights_of
from modelc.frontend.quantize.recipe import Floats, Range
from modelc.frontend.quantize.trials import trial, write_halves, write_statistics, write_trials
from modelc.frontend.quantize.weights import as_bytes, zeros_pay
from modelc.frontend.quantize.write import Deviations, terms
from modelc.partition.narrow_products import LARGEST, relative_error
from modelc.quantize.running import Say, runs, spread
from modelc.quantize.samples import Arrays
from modelc.quantize.statistics import Statistics

MOST_SEEN = 256  # samples that ranges are taken from
MOST_TRIED = 16  # samples that ranges are compared on
WORTH = 0.75  # of a layer's squared error, for which its weights have zero points
HALVES = "layers in float16"
HEADROOM = 4  # times as far as samples reach there is to be room in float16: sums reach further on their way

Seen = dict[str, list[NDArray[Any]]]  # an output by name, for each sample


@dataclass(frozen=True)
class Alone:
    """What the trials say: a range for each value; for each layer the relative error of its output, and what its
    channels are off on average."""

    ranges: Mapping[str, Range] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    means: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Halves:
    """By the layer's name, of those that can be in float16: how much their sums are off, and the relative error of
    their outputs; of others that would be faster, why they cannot."""

    deviations: Deviations = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Trials:
    """The layers of the float model `floats` on samples, their weights in bytes from -most to most. Models for it are
    written to `folder`."""

    floats: FloatModel
    layers: Sequence[Layer]
    most: int
    samples: Sequence[Arrays]
    folder: Path
    threads: int
    say: Say

    def statistics(self, ranks: Mapping[str, int]) -> Statistics:
        """Of the values that are rounded; of those that `ranks` names by channel too."""
        values, path = tuple(dict.fromkeys(layer.rounded for layer in self.layers)), self.folder / "statistics.onnx"
        write_statistics(self.floats, values, ranks, path)
        return Statistics(self._seen(path, MOST_SEEN, "ranges"), values, ranks)

    def alone(self, ranges: Mapping[str, Sequence[Range]], asymmetric: bool = False) -> Alone:
        """Which of the ranges of each value leaves the layers that read it with the least error, all layers alike."""
        errors, seen = self._tried(ranges, asymmetric)
        chosen: dict[str, int] = {}
        for value, every in ranges.items():
            readers = [errors[layer.name] for layer in self.layers if layer.rounded == value]
            chosen[value] = min(range(len(every)), key=lambda number: sum(by_range[number] for by_range in readers))
        means = {layer.name: seen[f"{trial(layer, chosen[layer.rounded])}/means"] for layer in self.layers}
        return Alone(
            {value: ranges[value][number] for value, number in chosen.items()},
            {layer.name: math.sqrt(errors[layer.name][chosen[layer.rounded]]) for layer in self.layers},
            {name: sum((x / np.float32(len(every)) for x in every), np.float32(0)) for name, every in means.items()},
        )

    def asymmetric(self, symmetric: Alone) -> tuple[list[Layer], Alone]:
        """The layers whose outputs are so much nearer with asymmetric weights, and what trials say of them;
        `symmetric`: of the layers with symmetric weights. Only those are tried whose weights are nearer: what these
        are off by is part of what outputs are, and nothing else becomes less."""
        hopeful = [layer for layer in self.layers if self._weights_are_nearer(layer)]
        if not hopeful:
            return [], Alone()
        ranges = {layer.rounded: (symmetric.ranges[layer.rounded],) for layer in hopeful}
        alone = replace(self, layers=hopeful).alone(ranges, asymmetric=True)
        worth = [x for x in hopeful if alone.errors[x.name] ** 2 < WORTH * symmetric.errors[x.name] ** 2]
        return worth, alone

    def by_row(self) -> dict[str, float]:
        """The relative errors of the layers whose activations are rounded by row."""
        if not self.layers:
            return {}
        errors, _ = self._tried({layer.rounded: (None,) for layer in self.layers}, False)
        return {name: math.sqrt(error) for name, (error,) in errors.items()}

    def _tried(
        self, ranges: Mapping[str, Sequence[Range | None]], asymmetric: bool
    ) -> tuple[dict[str, list[float]], Seen]:
        """The squared errors of each layer by itself, by each of the ranges; and all that trials say."""
        path = self.folder / "trials.onnx"
        write_trials(self.floats, self.layers, ranges, self.most, asymmetric, path)
        seen = self._seen(path, MOST_TRIED, "layers by themselves")
        errors = {
            layer.name: [error(layer, trial(layer, number), seen) for number in range(len(ranges[layer.rounded]))]
            for layer in self.layers
        }
        return errors, seen

    def _weights_are_nearer(self, layer: Layer) -> bool:
        weights = weights_of(self.floats, layer)
        return zeros_pay(weights, lambda zeros: as_bytes(weights, layer.axis, self.most, zeros).real())

    def halves(self, stored: Mapping[str, frozenset[str]]) -> Halves:
        """Of the layers, whose Tasks would store the values `stored` as float16."""
        floats, path = self.floats, self.folder / "halves.onnx"
        if not self.layers:
            return Halves()
        computed = floats.producers.keys() | {value.name for value in floats.model.graph.input}
        values = {name for layer in self.layers for name in stored[layer.name] & computed} - floats.constants.keys()
        deviations = {layer.name: relative_error(terms(floats, layer)) for layer in self.layers}
        write_halves(floats, self.layers, deviations, sorted(values), path)
        seen = self._seen(path, MOST_SEEN, HALVES)
        refused = dict[str, str]()
        for layer in self.layers:
            weights, room = weights_of(floats, layer), LARGEST / HEADROOM
            reached = [(float(np.abs(weights).max()), LARGEST, "its weights reach")]
            reached += [(largest(seen, trial(layer)), room, "its sums reach")]
            reached += [(largest(seen, x), room, f"{x!r} reaches") for x in sorted(stored[layer.name] & values)]
            wide = [f"{what} {size:.3g}" for size, limit, what in reached if size > limit]
            if wide:
                refused[layer.name] = f"{wide[0]}, and float16 ends at {LARGEST:.0f}"
        fitting = [layer for layer in self.layers if layer.name not in refused]
        errors = {layer.name: math.sqrt(error(layer, trial(layer), seen)) for layer in fitting}
        return Halves({layer.name: deviations[layer.name] for layer in fitting}, errors, refused)

    def _seen(self, path: Path, most: int, what: str) -> Seen:
        """What a model gives for at most so many samples."""
        seen: Seen = {}
        samples, drawing = spread(self.samples, most), what == HALVES
        for outputs in runs(path, samples, self.threads, lambda said: self.say(f"{what}, {said}"), drawing):
            for name, array in outputs.items():
                seen.setdefault(name, []).append(array)
        return seen


def error(layer: Layer, trial: str, seen: Seen) -> float:
    """The squared error of a layer's output in a trial, relative where the output is not 0."""
    off, size = sum(map(float, seen[f"{trial}/squares"])), sum(map(float, seen[f"{layer.name}/size"]))
    return off / size if size else off


def largest(seen: Seen, prefix: str) -> float:
    return max(map(float, seen[f"{prefix}/largest"]))
