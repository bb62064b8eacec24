"""Whether a package is slower than another: by turns, in fresh processes, beside what the other differs from itself.

Each round starts three processes: the package, the other one, and the other one again, which are timed in short slices
by turns. A round gives two ratios, each of lower deciles: package / other, and other / itself. What the second ones
say is the noise of this machine with just this package. A package is slower if it is so by more than the floor and by
more than three times the noise, and again each time that it is measured anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError
from modelc.verify.bench import native_package, same_boundary
from modelc.verify.check import given_or_drawn, variant_of
from modelc.verify.engine import Engine

ROUNDS, SLICES = 8, 6  # of fresh processes, and of each in a round
MORE = 3  # times as many rounds, where fewer leave it open
QUANTILE = 10  # per cent: others who are busy make runs longer, and none shorter
TIMES_NOISE = 3.0
BELIEVED = 3  # measurements in a row that say the same
NORMAL = 1.4826  # a normal distribution's deviation over its median absolute deviation
LEAST_SLICE = 0.004  # seconds

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Slower:
    """By what share a package takes longer than the other; the noise of that number; the least that counts. `slower`:
    it was more, each of the `measurements` times."""

    share: float
    noise: float
    limit: float
    slower: bool
    measurements: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        way = "slower" if self.share >= 0 else "faster"
        said = f"{abs(self.share):.1%} {way}, where more than {self.limit:.1%} counts"
        return f"{said} (noise {self.noise:.1%}, measured {self.measurements} times)"


def slower(
    package: str | Path,
    other: str | Path,
    floor: float,
    threads: int = 1,
    seconds: float = 3.0,
    inputs: Arrays | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Slower:
    """Times a package beside the `other` for about `seconds` each, and again while it is slower by more than `floor`,
    a share, and the noise. Raises TargetError where this machine cannot run them, InputError where they take other
    inputs."""
    if not 0 <= floor < 10:
        raise InputError(f"the share by which a package may be slower is {floor}; expected from 0 to 10")
    read, against = native_package(package), native_package(other)
    feed = given_or_drawn(read, None, inputs)
    same_boundary(read, variant_of(read, feed), against)
    for measurement in range(1, BELIEVED + 1):
        say(f"{package} beside {other}, measurement {measurement}")
        share, noise = _measured((package, other, other), floor, feed, threads, seconds, say)
        limit = max(floor, TIMES_NOISE * noise)
        if share <= limit:
            return Slower(share, noise, limit, False, measurement)
    return Slower(share, noise, limit, True, BELIEVED)


def _measured(
    paths: tuple[str | Path, ...], floor: float, feed: Arrays, threads: int, seconds: float, say: Callable[[str], None]
) -> tuple[float, float]:
    """The share by which the first takes longer than the others, and its noise."""
    slice_seconds = max(seconds / (ROUNDS * SLICES), LEAST_SLICE)
    ratios: list[float] = []
    own: list[float] = []
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine("modelc", path, threads)) for path in paths]
        for engine in engines:
            engine.run(feed)
        for number in range(MORE * ROUNDS):
            if number >= ROUNDS and not floor < _share(ratios) <= TIMES_NOISE * _noise(ratios, own):
                break
            say(f"round {number + 1}")
            for engine in engines:
                if number:
                    engine.restart()
                engine.time(slice_seconds)
            times: list[list[float]] = [[] for _ in engines]
            for turn in range(SLICES):
                order = range(len(engines)) if turn % 2 else reversed(range(len(engines)))
                for k in order:
                    times[k] += engines[k].time(slice_seconds)
            first, second, third = (float(np.percentile(runs, QUANTILE)) for runs in times)
            ratios.append(log(first / sqrt(second * third)))
            own.append(log(second / third))
    return _share(ratios), _noise(ratios, own)


def _share(ratios: list[float]) -> float:
    return exp(float(np.median(ratios))) - 1


def _noise(ratios: list[float], own: list[float]) -> float:
    return max(_error(ratios), _error(own), abs(float(np.median(own))))


def _error(values: list[float]) -> float:
    """The deviation of a median of so many values."""
    centre = float(np.median(values))
    return NORMAL * float(np.median(np.abs(np.array(values) - centre))) * sqrt(np.pi / 2 / len(values))
