"""Which values have their channels scaled (modelc/frontend/quantize/equalise.py); each layer by itself with that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modelc.frontend.quantize.equalise import Smoothable, applied, largest_weights
from modelc.frontend.quantize.floats import float_model
from modelc.frontend.quantize.layers import layers_of
from modelc.frontend.quantize.recipe import Floats, Range
from modelc.quantize.statistics import Statistics, divisors_of
from modelc.quantize.trials import Alone, Trials

WORTH = 0.7  # of the squared error of the layers that read a value, for which its channels are scaled


@dataclass(frozen=True)
class Smoothed:
    """What the channels of values are divided by, the trials of the model with that, and what these say."""

    divisors: Mapping[str, Floats]
    trials: Trials
    alone: Alone


def smoothed(model: Path, plain: Trials, statistics: Statistics, places: Sequence[Smoothable]) -> Smoothed:
    """Those of the `places` are scaled whose readers are nearer then. Layers are tried again where what they multiply
    changes, by a range that is known where what they read does not."""
    alone = plain.alone(statistics.ranges(plain.threads))
    if not places:
        return Smoothed({}, plain, alone)
    plain.say(f"{len(places)} values with their channels scaled")
    divisors = {
        place.value: divisors_of(statistics.largest(place.value), largest_weights(plain.floats, place))
        for place in places
    }
    touched: dict[str, set[str]] = {}  # by layer, the values that it reads or writes
    for place in places:
        for name in (*(layer.name for layer in place.layers), *place.nodes):
            touched.setdefault(name, set()).add(place.value)
    kept = {value: (stored,) for value, stored in alone.ranges.items()}
    trials = _scaled(model, plain, divisors)
    scaled = _alone(trials, {**kept, **statistics.ranges(plain.threads, divisors)}, touched)
    better = {
        place.value
        for place in places
        if sum(scaled.errors[layer.name] ** 2 for layer in place.layers)
        < WORTH * sum(alone.errors[layer.name] ** 2 for layer in place.layers)
    }
    if not better:
        return Smoothed({}, plain, alone)
    parted = {name for name, values in touched.items() if values & better and not values <= better}
    ranges = {value: (scaled if value in better else alone).ranges[value] for value in alone.ranges}
    if better != divisors.keys():
        divisors = {value: divisors[value] for value in divisors if value in better}
        trials = _scaled(model, plain, divisors)
    again = _alone(trials, {value: (stored,) for value, stored in ranges.items()}, parted)

    def source(name: str) -> Alone:
        return again if name in parted else scaled if touched.get(name, set()) & better else alone

    names = [layer.name for layer in plain.layers]
    errors, means = ({name: getattr(source(name), part)[name] for name in names} for part in ("errors", "means"))
    return Smoothed(divisors, trials, Alone(ranges, errors, means))


def _scaled(model: Path, plain: Trials, divisors: Mapping[str, Floats]) -> Trials:
    """Trials of the model whose values have their channels divided."""
    floats = float_model(model)
    applied(floats, divisors)
    return replace(plain, floats=floats, layers=layers_of(floats))


def _alone(trials: Trials, ranges: Mapping[str, Sequence[Range]], names: Collection[str]) -> Alone:
    """The layers of these names by themselves."""
    layers = [layer for layer in trials.layers if layer.name in names]
    if not layers:
        return Alone()
    return replace(trials, layers=layers).alone({layer.rounded: ranges[layer.rounded] for layer in layers})
