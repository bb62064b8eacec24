"""Measured schedules of a machine, as `targets/cost/MACHINE.jsonl` keeps them, and the regret of a price on them.

The first line of a file says where and when it was measured: the machine, the date, modelc's version, and the target's
YAML, from which the price is computed wherever the file is read. Each other line is a Task: its name (MODEL:TASK), its
text, the bytes of its network's constants (among which it was measured, on one core), and its points. A point is the
number of its Sketch in the Task's first family, the value of every knob, the first digits of its Candidate's key, and
the microseconds of each round that it was measured in: rounds are minutes apart, and the median counts.

Regret is the measured time of the point that is estimated least over the least measured time (1 is perfect).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from modelc.errors import ModelcError
from modelc.ir.block import Task
from modelc.ir.text import parse_task
from modelc.policy import Policy
from modelc.space.sketch import Floats, Points, Sketch, Value
from modelc.space.sketches.listing import families
from modelc.target import Target
from modelc.target.schema import parse_target

KEY_DIGITS = 8
HEADER = ("machine", "date", "version", "cores", "target")


@dataclass(frozen=True)
class MeasuredPoint:
    """One schedule of a Task: `sketch` is its Sketch's number, `key` begins its Candidate's key."""

    sketch: int
    knobs: Mapping[str, Value]
    key: str
    rounds: tuple[float, ...]

    @property
    def microseconds(self) -> float:
        return median(self.rounds)

    def to_json(self) -> list[Any]:
        return [self.sketch, dict(self.knobs), self.key, list(self.rounds)]


@dataclass(frozen=True)
class MeasuredTask:
    """A Task of a network whose constants take `cold_bytes`, and what was measured of it."""

    name: str
    task: Task
    cold_bytes: int
    points: tuple[MeasuredPoint, ...]

    @cached_property
    def microseconds(self) -> Floats:
        """What was measured [points]."""
        return np.array([p.microseconds for p in self.points])

    def to_json(self) -> dict[str, Any]:
        points = [p.to_json() for p in self.points]
        return {"name": self.name, "cold_bytes": self.cold_bytes, "points": points, "task": str(self.task)}


@dataclass(frozen=True)
class Measurements:
    """What one machine measured, on one core."""

    machine: str
    date: str
    version: str
    target: Target
    tasks: tuple[MeasuredTask, ...]

    def write(self, path: Path) -> None:
        """Writes the file whole, beside, and renames it."""
        head = {"machine": self.machine, "date": self.date, "version": self.version, "cores": 1}
        lines = [{**head, "target": self.target.to_yaml()}, *(task.to_json() for task in self.tasks)]
        new = path.with_suffix(".new")
        new.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        new.replace(path)


def read_measurements(path: Path) -> Measurements:
    """The measurements in `path`. Raises ValueError, with the line, where it is no such file."""
    lines = enumerate(path.read_text().splitlines(), 1)
    number = 1
    try:
        number, line = next(lines, (1, "{}"))
        head = json.loads(line)
        machine, date, version, _, yaml = (head[name] for name in HEADER)
        target, tasks = parse_target(yaml, str(path)), []
        for number, line in lines:  # noqa: B007 (the message says it)
            tasks.append(_task(json.loads(line)))
    except (KeyError, TypeError, ValueError, ModelcError) as error:
        raise ValueError(f"{path}, line {number}: expected measurements of schedules: {error}") from error
    return Measurements(machine, date, version, target, tuple(tasks))


def _task(tree: Mapping[str, Any]) -> MeasuredTask:
    points = tuple(MeasuredPoint(n, knobs, key, tuple(map(float, us))) for n, knobs, key, us in tree["points"])
    return MeasuredTask(tree["name"], parse_task(tree["task"]), tree["cold_bytes"], points)


# --- the price of what was measured -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PricedTask:
    """A measured Task with the Sketches that its points are of. `points` are those that a Sketch still has, and makes
    the same Candidate of: `places` says which of those that were measured."""

    name: str
    cold_bytes: int
    sketches: tuple[Sketch, ...]
    numbers: tuple[int, ...]  # of each point's Sketch
    points: tuple[Points, ...]
    microseconds: Floats
    places: tuple[int, ...]

    @property
    def kind(self) -> str:
        """The kind of the Sketch of the fastest point."""
        return self.sketches[self.numbers[int(np.argmin(self.microseconds))]].kind

    def estimates(self, price: Callable[[Sketch, Points], Floats]) -> Floats:
        """What `price` says of every point [points]."""
        result = np.zeros(len(self.points))
        for number in sorted({*self.numbers}):
            places = [k for k, own in enumerate(self.numbers) if own == number]
            result[places] = price(self.sketches[number], np.stack([self.points[k] for k in places]))
        return result

    def regret(self, estimates: Floats) -> float:
        """The time of what is estimated least over the least."""
        return float(self.microseconds[int(np.argmin(estimates))] / self.microseconds.min())


def priced(measured: MeasuredTask, target: Target, policy: Policy, check: bool = True) -> PricedTask:
    """The Sketches of a measured Task, and its points there. `check`: the Candidate of each is compared with what was
    measured."""
    target = replace(target, cores=1, cold_bytes=measured.cold_bytes)
    sketches = families(measured.task, target, policy)[0]
    numbers, points, places = [], [], []
    for place, own in enumerate(measured.points):
        try:
            sketch = sketches[own.sketch]
            point = sketch.point({**sketch.fixed, **own.knobs})
        except (IndexError, KeyError, ValueError):
            continue
        if check and sketch.candidate(point).key[:KEY_DIGITS] != own.key:
            continue
        numbers.append(own.sketch)
        points.append(point)
        places.append(place)
    times = measured.microseconds[places]
    return PricedTask(measured.name, measured.cold_bytes, sketches, tuple(numbers), tuple(points), times, tuple(places))


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; of none, 1."""
    return float(np.exp(np.mean(np.log([*values] or [1.0]))))


def by_kind(tasks: Sequence[PricedTask], regrets: Sequence[float]) -> dict[str, list[float]]:
    """The regrets of the Tasks of each kind."""
    result: dict[str, list[float]] = {}
    for task, regret in zip(tasks, regrets, strict=True):
        result.setdefault(task.kind, []).append(regret)
    return result
