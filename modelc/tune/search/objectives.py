"""What tuning several networks is to make small (Ansor, section 6 and table 2). Weights say how often each of n Tasks
occurs in each network; where there are several alternatives for one, its time is that of the fastest."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from modelc.errors import ConfigError
from modelc.signals import no_exit
from modelc.space.sketch import Floats

LITTLE = 0.02  # of what differs between alternatives, below which a Task does not decide
PATIENCE, GAIN = 5, 0.01  # rounds without so large a gain stop a Task early
NAMES = ("latency", "targets", "geomean", "early-stop")
EXPECTED = f"expected {', '.join(NAMES)}, or a function: MODULE:FUNCTION or FILE.py:FUNCTION"

Histories = Sequence[Sequence[float]]  # of each Task, its best seconds after each round
Function = Callable[[Mapping[str, float]], float]  # of each network's milliseconds, by its name


@dataclass(frozen=True)
class Weights:
    """How often each of n Tasks occurs in `each` alternative [alternatives x n]; `owners` are the numbers of the
    networks that these are of, from 0 on in ascending order. A network's first one is what it has without tuning."""

    each: Floats
    owners: tuple[int, ...]

    @staticmethod
    def of(each: Floats) -> Weights:
        """Of networks with one alternative each."""
        return Weights(each, tuple(range(len(each))))

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The first alternative of each network."""
        return tuple(k for k, owner in enumerate(self.owners) if not k or owner != self.owners[k - 1])

    def seconds(self, seconds: Floats) -> Floats:
        """What each network takes, of what each Task takes [networks]."""
        fastest: Floats = np.minimum.reduceat(self.each @ seconds, self.first)
        return fastest

    def difference(self, number: int) -> Floats:
        """How much more often each Task occurs in an alternative than without tuning [n]."""
        difference: Floats = self.each[number] - self.each[self.first[self.owners[number]]]
        return difference

    def around(self, number: int, seconds: Floats) -> list[int]:
        """The Tasks that decide whether an alternative is faster than what there is without tuning, those that make up
        most of the difference first."""
        parts = np.abs(self.difference(number)) * seconds
        return [int(k) for k in np.argsort(-parts, kind="stable") if parts[k] > LITTLE * parts.sum()]

    def only(self, alternatives: Sequence[int]) -> Weights:
        """Of some alternatives, the first one of each network among them."""
        return Weights(self.each[list(alternatives)], tuple(self.owners[k] for k in alternatives))

    def leading(self, seconds: Floats) -> tuple[int, ...]:
        """The fastest alternative of each network; of equally fast ones the first."""
        every = self.each @ seconds
        ends = (*self.first[1:], len(every))
        return tuple(a + int(np.argmin(every[a:b])) for a, b in zip(self.first, ends, strict=True))


@dataclass(frozen=True)
class Objective:
    """`of_networks` of the seconds of each network is to become small; with `patience`, a Task counts no less than
    early_stop() says of its history."""

    weights: Weights
    of_networks: Callable[[Floats], float]
    patience: int | None = None

    def __call__(self, seconds: Floats, histories: Histories) -> float:
        if self.patience is not None:
            seconds = np.maximum(seconds, [early_stop(history, self.patience) for history in histories])
        return float(self.of_networks(self.weights.seconds(seconds)))


def total(weights: Weights) -> Objective:
    """f1: the seconds of all networks, one after the other."""
    return Objective(weights, np.sum)


def required(weights: Weights, wanted: Floats) -> Objective:
    """f2: the same, with nothing gained below the seconds that are `wanted` of each network."""
    return Objective(weights, lambda seconds: np.maximum(seconds, wanted).sum())


def geometric(weights: Weights, reference: Floats) -> Objective:
    """f3: the geometric mean of the speedups over `reference` seconds of each network, negative."""
    return Objective(weights, lambda seconds: -np.exp(np.mean(np.log(reference / seconds))))


def stopping(weights: Weights, patience: int = PATIENCE) -> Objective:
    """f4: the seconds of all networks, where a Task counts no less than early_stop() says of its history."""
    return Objective(weights, np.sum, patience)


def early_stop(history: Sequence[float], patience: int = PATIENCE) -> float:
    """The last seconds where `patience` rounds gained less than GAIN, else 0."""
    stuck = len(history) > patience and history[-1] > (1 - GAIN) * history[-1 - patience]
    return history[-1] if stuck else 0.0


def own(weights: Weights, names: Sequence[str], function: Function) -> Objective:
    """A user's function of the milliseconds of each network. It raises ConfigError where that does not work."""

    def of_networks(seconds: Floats) -> float:
        given = dict(zip(names, map(float, 1e3 * seconds), strict=True))
        try:
            with no_exit():
                number = float(function(given))
        except Exception as error:
            raise ConfigError(
                f"the objective, given {given}, failed: {type(error).__name__}: {str(error)[:300]}"
            ) from error
        if not math.isfinite(number):
            raise ConfigError(f"the objective, given {given}, is {number}; expected a finite number")
        return number

    return Objective(weights, of_networks)


@dataclass(frozen=True)
class Aim:
    """What a user asks for: one of NAMES, or where a function is. `goals` are milliseconds of each network, for
    `targets`; `patience` is rounds, for `early-stop`. Raises ConfigError where these do not go together."""

    name: str = "latency"
    goals: Mapping[str, float] = field(default_factory=dict)
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.name not in NAMES and ":" not in self.name:
            raise ConfigError(f"there is no objective {self.name[:80]!r}; {EXPECTED}")
        if self.goals and self.name != "targets":
            raise ConfigError(f"goals are for the objective targets, and this is {self.name}")
        if self.patience is not None and self.name != "early-stop":
            raise ConfigError(f"patience is for the objective early-stop, and this is {self.name}")
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"the patience is {self.patience} rounds; expected at least 1")
        if wrong := sorted(name for name, ms in self.goals.items() if not 0 < ms < math.inf):
            raise ConfigError(f"the goal for {wrong[0]} is {self.goals[wrong[0]]} ms; expected a number above 0")

    def of(self, networks: Sequence[str]) -> Callable[[Weights, Floats], Objective]:
        """What makes the objective of weights and of the seconds that Tasks take without tuning [n]."""
        if self.name == "targets":
            names = set(networks)
            if wrong := sorted(self.goals.keys() ^ names):
                raise ConfigError(
                    f"the objective targets needs a goal for each model: there is "
                    f"{'none for' if wrong[0] in names else 'no model'} {wrong[0]!r}; the models are "
                    f"{', '.join(map(repr, networks))}"
                )
            wanted = np.array([1e-3 * self.goals[name] for name in networks])
            return lambda weights, untuned: required(weights, wanted)
        if self.name == "geomean":
            return lambda weights, untuned: geometric(weights, (weights.each @ untuned)[list(weights.first)])
        if self.name == "early-stop":
            return lambda weights, untuned: stopping(weights, self.patience or PATIENCE)
        if self.name == "latency":
            return lambda weights, untuned: total(weights)
        function = function_at(self.name)
        own(Weights.of(np.eye(len(networks))), networks, function)(np.ones(len(networks)), [])  # before any work
        return lambda weights, untuned: own(weights, networks, function)


def function_at(place: str) -> Function:
    """The function that MODULE:FUNCTION or FILE.py:FUNCTION names, which executes that. Raises ConfigError."""
    where, _, name = place.rpartition(":")
    try:
        with no_exit():
            module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except Exception as error:
        raise ConfigError(
            f"the objective {place[:200]} cannot be loaded: {type(error).__name__}: {str(error)[:300]}; {EXPECTED}"
        ) from error
    attribute: Any = getattr(module, name, None)
    if not callable(attribute):
        raise ConfigError(f"the objective {place[:200]}: {where} has no function {name!r}")
    function: Function = attribute
    return function


def _file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    """A module of the working folder, or one that is installed."""
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove("")
