"""Whether a package, or a kernel of it, is slower than another: by turns, in fresh processes, beside what the other
differs from itself.

Each round starts three processes: the package, the other one, and the other one again, which are timed in short slices
by turns. A round gives two ratios: package / other, and other / itself. What the second ones say is the noise of this
machine with just this package. A package is slower if it is so by more than the floor and by more than three times the
noise, and again each time that it is measured anew. Of kernels those that cover the same ONNX nodes are compared, each
with its own noise: one that is slower can be too small a share to be seen in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError
from modelc.package import Package, Step
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
LEAST_PART = 0.005  # of a run, that a kernel takes which is compared

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


@dataclass(frozen=True)
class SlowerKernels:
    """Kernels of a package beside those of another that cover the same ONNX nodes: how many were compared, and those
    that are slower each time, by their names, with the share of the package's time that each takes."""

    compared: int
    kernels: Mapping[str, Slower]
    shares: Mapping[str, float]
    limit: float

    @property
    def slower(self) -> bool:
        return bool(self.kernels)

    def to_json(self) -> dict[str, Any]:
        kernels = {
            name: {**kernel.to_json(), "of_the_whole": self.shares[name]} for name, kernel in self.kernels.items()
        }
        return {"compared": self.compared, "limit": self.limit, "kernels": kernels}

    def sentence(self) -> str:
        if not self.kernels:
            return f"none of {self.compared} kernels is slower by more than {self.limit:.1%} and three times its noise"
        worst = sorted(self.kernels, key=lambda name: -self.kernels[name].share)
        said = [f"{name} ({self.shares[name]:.1%} of the time) is {self.kernels[name].sentence()}" for name in worst]
        return f"of {self.compared} kernels {len(said)} slower: {'; '.join(said)}"


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
    pair = _Pair.of(package, other, floor, inputs)
    for measurement in range(1, BELIEVED + 1):
        say(f"{package} beside {other}, measurement {measurement}")
        seen = pair.measured(_whole, floor, threads, seconds, say)
        share, noise = seen.shares[0], seen.noises[0]
        limit = max(floor, TIMES_NOISE * noise)
        if share <= limit:
            return Slower(share, noise, limit, False, measurement)
    return Slower(share, noise, limit, True, BELIEVED)


def slower_kernels(
    package: str | Path,
    other: str | Path,
    floor: float,
    threads: int = 1,
    seconds: float = 3.0,
    inputs: Arrays | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> SlowerKernels:
    """The same of every kernel that covers nodes which one of the `other` covers, and takes LEAST_PART of a run."""
    pair = _Pair.of(package, other, floor, inputs)
    steps = [_steps_by_nodes(read.manifest.variants[number].steps) for read, number in pair.variants]
    nodes = [covered for covered in steps[0] if covered in steps[1]]
    names = [pair.variants[0][0].manifest.variants[pair.variants[0][1]].steps[steps[0][n][0]].name for n in nodes]
    groups = [[own[covered] for covered in nodes] for own in (steps[0], steps[1], steps[1])]
    variants = (pair.variants[0][1], pair.variants[1][1], pair.variants[1][1])

    def by_kernel(engine: Engine, place: int, slice_seconds: float) -> list[list[float]]:
        taken = engine.steps(slice_seconds, variants[place])
        return [[sum(taken[step] for step in group)] for group in groups[place]]

    suspects = set(range(len(nodes)))
    verdicts: dict[int, Slower] = {}
    for measurement in range(1, BELIEVED + 1):
        if not suspects:
            break
        say(f"kernels of {package} beside {other}, measurement {measurement}")
        seen = pair.measured(by_kernel, floor, threads, seconds, say)
        whole = sum(seen.milliseconds)
        limits = [max(floor, TIMES_NOISE * noise) for noise in seen.noises]
        suspects &= {k for k, share in enumerate(seen.shares) if share > limits[k]}
        suspects &= {k for k, own in enumerate(seen.milliseconds) if own >= LEAST_PART * whole}
        verdicts = {k: Slower(seen.shares[k], seen.noises[k], limits[k], True, measurement) for k in suspects}
    parts = {names[k]: seen.milliseconds[k] / whole for k in verdicts}
    return SlowerKernels(len(nodes), {names[k]: verdict for k, verdict in verdicts.items()}, parts, floor)


def _steps_by_nodes(steps: Sequence[Step]) -> dict[tuple[str, ...], list[int]]:
    """The numbers of the steps that cover the same nodes: phases of one kernel, or several kernels."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, step in enumerate(steps):
        numbers.setdefault(step.nodes or (step.name,), []).append(number)
    return numbers


# --- measuring --------------------------------------------------------------------------------------------------------

Timed = Callable[[Engine, int, float], list[list[float]]]  # of an engine, by its place, in a slice: runs of each thing


@dataclass(frozen=True)
class Measured:
    """Of each thing that is timed: the share by which the package takes longer, the noise of that, milliseconds."""

    shares: list[float]
    noises: list[float]
    milliseconds: list[float]


@dataclass(frozen=True)
class _Pair:
    """Two packages that take the same inputs, with the variants that do."""

    paths: tuple[str | Path, str | Path]
    variants: tuple[tuple[Package, int], tuple[Package, int]]
    feed: Arrays

    @staticmethod
    def of(package: str | Path, other: str | Path, floor: float, inputs: Arrays | None) -> _Pair:
        if not 0 <= floor < 10:
            raise InputError(f"the share by which a package may be slower is {floor}; expected from 0 to 10")
        read, against = native_package(package), native_package(other)
        feed = given_or_drawn(read, None, inputs)
        number = variant_of(read, feed)
        same_boundary(read, number, against)
        return _Pair((package, other), ((read, number), (against, variant_of(against, feed))), feed)

    def measured(
        self, timed: Timed, floor: float, threads: int, seconds: float, say: Callable[[str], None]
    ) -> Measured:
        """Rounds of fresh processes: as many more as it takes where noise hides what would be above the floor."""
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
                say(f"round {number + 1}")
                for engine in engines:
                    if number:
                        engine.restart()
                    engine.time(slice_seconds)
                times: list[list[list[float]]] = [[] for _ in engines]
                for turn in range(SLICES):
                    order = range(len(engines)) if turn % 2 else reversed(range(len(engines)))
                    for k in order:
                        runs = timed(engines[k], k, slice_seconds)
                        times[k] = [[*a, *b] for a, b in zip(times[k], runs, strict=True)] if times[k] else runs
                first, second, third = ([_lower(runs) for runs in each] for each in times)
                taken.append(first)
                ratios.append([log(a / sqrt(b * c)) for a, b, c in zip(first, second, third, strict=True)])
                own.append([log(b / c) for b, c in zip(second, third, strict=True)])
        columns = list(zip(zip(*ratios, strict=True), zip(*own, strict=True), strict=True))
        shares, noises = [_share(r) for r, _ in columns], [_noise(r, o) for r, o in columns]
        return Measured(shares, noises, [float(np.median(column)) for column in zip(*taken, strict=True)])


def _whole(engine: Engine, place: int, slice_seconds: float) -> list[list[float]]:
    return [engine.time(slice_seconds)]


def _lower(runs: Sequence[float]) -> float:
    """The lower decile in milliseconds; what takes no time at all takes a nanosecond."""
    return max(float(np.percentile(runs, QUANTILE)), 1e-6)


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
