"""Whether a package, or a kernel of it, is slower than another: by more than the floor and by more than three times the
noise, and again each time that it is measured anew (rounds.py). Of kernels those that cover the same ONNX nodes are
compared, each with its own noise: one that is slower can be too small a share to be seen in the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from modelc.errors import InputError
from modelc.package import Step
from modelc.verify.engine import Engine
from modelc.verify.rounds import Milliseconds, Pair, Say

BELIEVED = 3  # measurements in a row that say the same
LEAST_PART = 0.005  # of a run, that a kernel takes which is compared


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
    that are slower each time, by their names, with the part of a run that each takes."""

    compared: int
    kernels: Mapping[str, Slower]
    parts: Mapping[str, float]
    floor: float

    @property
    def slower(self) -> bool:
        return bool(self.kernels)

    @property
    def share(self) -> float:
        """Of the kernel that is slowest."""
        return max((kernel.share for kernel in self.kernels.values()), default=0.0)

    def to_json(self) -> dict[str, Any]:
        kernels = {name: {**own.to_json(), "of_the_whole": self.parts[name]} for name, own in self.kernels.items()}
        return {"compared": self.compared, "floor": self.floor, "kernels": kernels}

    def sentence(self) -> str:
        if not self.kernels:
            return f"none of {self.compared} kernels is slower by more than {self.floor:.1%} and three times its noise"
        worst = sorted(self.kernels, key=lambda name: -self.kernels[name].share)
        said = [f"{name} ({self.parts[name]:.1%} of the time) is {self.kernels[name].sentence()}" for name in worst]
        return f"of {self.compared} kernels {len(said)} slower: {'; '.join(said)}"


def _silent(_: str) -> None:
    """Says nothing."""


def slower(pair: Pair, floor: float, threads: int = 1, seconds: float = 3.0, say: Say = _silent) -> Slower:
    """Times the packages for about `seconds` each, and again while the first is slower by more than `floor`, a share,
    and the noise. Raises InputError where that is no share."""
    _check_floor(floor)
    for measurement in range(1, BELIEVED + 1):
        say(f"{pair.paths[0]} beside {pair.paths[1]}, measurement {measurement}")
        seen = pair.measured(_whole, floor, threads, seconds, say)
        (share,), (noise,), (limit,) = seen.shares, seen.noises, seen.limits(floor)
        if share <= limit:
            return Slower(share, noise, limit, False, measurement)
    return Slower(share, noise, limit, True, BELIEVED)


def slower_kernels(
    pair: Pair, floor: float, threads: int = 1, seconds: float = 3.0, say: Say = _silent
) -> SlowerKernels:
    """The same of each kernel that covers nodes which one of the other package covers, and takes LEAST_PART of a run
    or more."""
    _check_floor(floor)
    plans = [package.manifest.variants[number] for package, number in pair.variants]
    own, other = (_steps_by_nodes(plan.steps) for plan in plans)
    nodes = [covered for covered in own if covered in other]
    names = [plans[0].steps[own[covered][0]].name for covered in nodes]

    def by_kernel(engine: Engine, place: int, slice_seconds: float) -> Milliseconds:
        which = min(place, 1)  # the other package runs twice
        package, number = pair.variants[which]
        taken, steps = engine.steps(slice_seconds, package.in_library(number)), (own, other)[which]
        return [[sum(taken[step] for step in steps[covered])] for covered in nodes]

    suspects = list(range(len(nodes)))
    kernels: dict[str, Slower] = {}
    parts: dict[str, float] = {}
    for measurement in range(1, BELIEVED + 1):
        if not suspects:
            break
        say(f"kernels of {pair.paths[0]} beside {pair.paths[1]}, measurement {measurement}")
        seen = pair.measured(by_kernel, floor, threads, seconds, say)
        limits, run = seen.limits(floor), sum(seen.milliseconds)
        suspects = [k for k in suspects if seen.shares[k] > limits[k] and seen.milliseconds[k] >= LEAST_PART * run]
        kernels = {names[k]: Slower(seen.shares[k], seen.noises[k], limits[k], True, measurement) for k in suspects}
        parts = {names[k]: seen.milliseconds[k] / run for k in suspects}
    return SlowerKernels(len(nodes), kernels, parts, floor)


def _check_floor(floor: float) -> None:
    """Raises InputError where `floor` is no share by which a package may be slower."""
    if not 0 <= floor < 10:
        raise InputError(f"the share by which a package may be slower is {floor}; expected from 0 to 10")


def _whole(engine: Engine, place: int, slice_seconds: float) -> Milliseconds:
    return [engine.time(slice_seconds)]


def _steps_by_nodes(steps: Sequence[Step]) -> dict[tuple[str, ...], list[int]]:
    """The numbers of the steps that cover the same nodes: phases of one kernel, or several kernels."""
    numbers: dict[tuple[str, ...], list[int]] = {}
    for number, step in enumerate(steps):
        numbers.setdefault(step.nodes or (step.name,), []).append(number)
    return numbers
