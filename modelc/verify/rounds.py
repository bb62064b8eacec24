"""Times of a package over those of another, in rounds of fresh processes.

Each round starts three processes: the package, the other one, and the other one again, which are timed in short slices
by turns. A round gives two ratios of lower deciles for each thing that is timed: package / other, and other / itself.
What the second ones say is the noise of this machine with just these packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.package import Package, at_given, at_inputs
from modelc.verify.bench import native_package, same_boundary
from modelc.verify.check import given_or_drawn, variant_of
from modelc.verify.engine import Engine

ROUNDS, SLICES = 8, 6  # of fresh processes, and of each in a round
MORE = 3  # times as many rounds, where fewer leave it open
QUANTILE = 10  # per cent: others who are busy make runs longer, and none shorter
TIMES_NOISE = 3.0
NORMAL = 1.4826  # a normal distribution's deviation over its median absolute deviation
LEAST_SLICE = 0.004  # seconds
LEAST_MS = 1e-6  # that anything takes

Arrays = Mapping[str, NDArray[Any]]
Say = Callable[[str], None]
Milliseconds = list[list[float]]  # of each thing that is timed, its runs
Timed = Callable[[Engine, int, float], Milliseconds]  # of an engine, by its place, in a slice of so many seconds


@dataclass(frozen=True)
class Measured:
    """Of each thing that is timed: the share by which it takes longer in the package, the noise of that share, and
    milliseconds there."""

    shares: list[float]
    noises: list[float]
    milliseconds: list[float]

    def limits(self, floor: float) -> list[float]:
        """The least shares that count: `floor`, and what is more than noise."""
        return [max(floor, TIMES_NOISE * noise) for noise in self.noises]


@dataclass(frozen=True)
class Pair:
    """A package and another that takes the same inputs, each with its variant for `feed`."""

    paths: tuple[str | Path, str | Path]
    variants: tuple[tuple[Package, int], tuple[Package, int]]
    feed: Arrays

    @staticmethod
    def of(
        package: str | Path, other: str | Path, inputs: Arrays | None = None, dims: Mapping[str, int] | None = None
    ) -> Pair:
        """`inputs`: what both run on (None: drawn, for these `dims` where they take any). Raises TargetError where this
        machine cannot run them, InputError where they take other inputs."""
        read = at_given(native_package(package), inputs, dims)
        feed = given_or_drawn(read, None, inputs)
        against = at_inputs(native_package(other), feed)
        number = variant_of(read, feed)
        same_boundary(read, number, against)
        return Pair((package, other), ((read, number), (against, variant_of(against, feed))), feed)

    def measured(self, timed: Timed, floor: float, threads: int, seconds: float, say: Say) -> Measured:
        """About `seconds` of each package: more rounds where noise hides what would be above the floor."""
        slice_seconds = max(seconds / (ROUNDS * SLICES), LEAST_SLICE)
        ratios: list[list[float]] = []
        own: list[list[float]] = []
        taken: list[list[float]] = []
        with ExitStack() as stack:
            paths = (*self.paths, self.paths[1])
            engines = [stack.enter_context(Engine("modelc", path, threads)) for path in paths]
            for engine in engines:
                engine.run(self.feed)
            for number in range(MORE * ROUNDS):
                if number >= ROUNDS and not _open(ratios, own, floor):
                    break
                say(f"round {number + 1} of {ROUNDS if number < ROUNDS else MORE * ROUNDS}")
                for engine in engines:
                    if number:
                        engine.restart()
                    engine.time(slice_seconds)
                first, second, third = _by_turns(engines, timed, slice_seconds)
                taken.append(first)
                ratios.append([log(a / sqrt(b * c)) for a, b, c in zip(first, second, third, strict=True)])
                own.append([log(b / c) for b, c in zip(second, third, strict=True)])
        columns = list(zip(zip(*ratios, strict=True), zip(*own, strict=True), strict=True))
        shares, noises = [_share(r) for r, _ in columns], [_noise(r, o) for r, o in columns]
        return Measured(shares, noises, [float(np.median(column)) for column in zip(*taken, strict=True)])


def _by_turns(engines: Sequence[Engine], timed: Timed, slice_seconds: float) -> list[list[float]]:
    """Of each engine, the lower deciles of what is timed, in milliseconds."""
    runs: list[list[Milliseconds]] = [[] for _ in engines]
    for turn in range(SLICES):
        order = range(len(engines)) if turn % 2 else reversed(range(len(engines)))
        for place in order:
            runs[place].append(timed(engines[place], place, slice_seconds))
    return [[_lower(np.concatenate(slices)) for slices in zip(*of_engine, strict=True)] for of_engine in runs]


def _lower(runs: NDArray[np.float64]) -> float:
    return max(float(np.percentile(runs, QUANTILE)), LEAST_MS)


def _open(ratios: Sequence[Sequence[float]], own: Sequence[Sequence[float]], floor: float) -> bool:
    """Whether something is above the floor, and not above its noise."""
    columns = zip(zip(*ratios, strict=True), zip(*own, strict=True), strict=True)
    return any(floor < _share(r) <= TIMES_NOISE * _noise(r, o) for r, o in columns)


def _share(ratios: Sequence[float]) -> float:
    return exp(float(np.median(ratios))) - 1


def _noise(ratios: Sequence[float], own: Sequence[float]) -> float:
    return max(_error(ratios), _error(own), abs(float(np.median(own))))


def _error(values: Sequence[float]) -> float:
    """The deviation of a median of so many values."""
    centre = float(np.median(values))
    return NORMAL * float(np.median(np.abs(np.array(values) - centre))) * sqrt(np.pi / 2 / len(values))
