"""The Sketch: one way to compute a Task, with open knobs (DESIGN section 6; Ansor, section 4.1).

    knobs              named, finite and ordered: what of the schedule is open
    start()            the point that closed forms would take
    legal(points)      which points describe a schedule at all
    work(points)       what each does, for a stated number of cores; cost/terms.py makes seconds of it
    candidate(point)   the Candidate that a point describes: plain data

A point is a row of indices, one into the values of each knob; points are arrays [P x knobs], so that construction,
random sampling and evolution work on thousands at once, and on every Sketch alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate, Stage
from modelc.ir.loop import Loop
from modelc.space.analysis.distinct import distinct_rows
from modelc.space.cost.terms import seconds
from modelc.space.cost.work import Work
from modelc.space.tiling.parallel import with_joined_loops
from modelc.target import Target

Value = int | str | Loop | None  # a whole number, a word, or a loop (None: no loop)
Values = Mapping[str, Any]  # of knobs, by name: each a Value
Points = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LISTED = 1 << 12  # points at most of a space that is listed whole
SECOND_BEST = 1e-3  # of a price, for a knob that is not as rules would have it


@dataclass(frozen=True)
class Knob:
    """One open decision: its name in the Sketch, the values that it may take in their order, what it decides."""

    name: str
    values: tuple[Value, ...]
    decides: str


def recorded(value: Value) -> int | str:
    """A knob's value as records keep it: of a loop its text, "" for none."""
    return "" if value is None else str(value) if isinstance(value, str | Loop) else int(value)


class Sketch(ABC):
    """One way to compute `task`, the Task after `stages`, on `target`. `kind` is what it has in common with Sketches of
    other Tasks ("contraction", "attention"), `name` tells it from others of the same Task ("vectors", "amx-bf16").

    `doubt` is the relative error of its price, where that is large: within it, start() wins. Construction prices a
    space of at most `listed` points whole: all at once take less time than the steps of a walk."""

    doubt = 0.0
    listed = 1 << 8
    handicap = 1.0  # factor of its price in comparisons with other Sketches: above 1 for what rules would not take

    def __init__(self, kind: str, name: str, task: Task, target: Target, stages: Sequence[Stage]):
        self.kind, self.name, self.task, self.target, self.stages = kind, name, task, target, tuple(stages)
        self._first: dict[int, float] = {}  # by the cores
        self.visited: dict[tuple[int, ...], Points] = {}  # where construction's walks came by (construct.py)

    @abstractmethod
    def all_knobs(self) -> list[Knob]:
        """Every decision that is open in this kind of schedule, those with a single value on this Task too."""

    @abstractmethod
    def candidate_of(self, values: Values) -> Candidate:
        """The schedule in which every knob has the value that `values` say."""

    @abstractmethod
    def start_values(self) -> Values:
        """What closed forms would take for every knob."""

    @abstractmethod
    def work(self, points: Points, cores: int) -> Work:
        """What `points` do on `cores` cores, with data where it lies in a network: constants beyond the second-level
        cache."""

    def away(self, points: Points) -> Floats:
        """How many knobs that no Work sees are otherwise than rules would have them [P]: what no formula tells apart,
        rules decide."""
        return np.zeros(len(points))

    def estimate(self, points: Points, cores: int) -> Floats:
        """The price of `points` [P]: seconds of their Work on `cores` cores, longer by a trifle for every knob that it
        does not see and that is not as rules would have it."""
        price = seconds(self.work(points, cores), self.target.cost)
        return np.asarray(price * (1 + SECOND_BEST * self.away(points)), np.float64)

    def first(self, cores: int) -> float:
        """The price of start(), in seconds."""
        if cores not in self._first:
            self._first[cores] = float(self.estimate(self.start()[None, :], cores)[0])
        return self._first[cores]

    def of_any_size(self) -> Values | None:
        """The values of all knobs with which a Task of any size can be scheduled where others do not hold, if such
        values are known."""
        return None

    def derived(self, values: Values) -> Task:
        """The Task after the stages of the Candidate that `values` describe: knobs may choose stages too."""
        return self.task

    def legal(self, points: Points) -> Bools:
        """Which of `points` describe a schedule [P]."""
        return np.ones(len(points), np.bool_)

    # --- points ---------------------------------------------------------------------------------------------------

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """The decisions that are open on this Task: those with more than one value."""
        return tuple(k for k in self.all_knobs() if len(k.values) > 1)

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """The knobs that have a single value on this Task."""
        return {k.name: k.values[0] for k in self.all_knobs() if len(k.values) == 1}

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many values each knob has."""
        return tuple(len(k.values) for k in self.knobs)

    @property
    def size(self) -> int:
        """Points of the space, legal or not."""
        return prod(self.sizes)

    def candidate(self, point: Sequence[int] | Points) -> Candidate:
        """The schedule that `point` describes: with further loops on threads, where cores have uneven parts without."""
        values = self.values(point)
        return with_joined_loops(self.derived(values), self.candidate_of(values), self.target)

    def values(self, point: Sequence[int] | Points) -> dict[str, Any]:
        """What each knob is at `point`."""
        return self.fixed | {k.name: k.values[int(i)] for k, i in zip(self.knobs, point, strict=True)}

    def recorded(self, point: Sequence[int] | Points) -> dict[str, int | str]:
        """What each knob is at `point`, as records keep it."""
        return {name: recorded(value) for name, value in self.values(point).items()}

    def point(self, values: Values) -> Points:
        """The point at which knobs have `values` [knobs], which may be as recorded. Raises ValueError where a knob does
        not have that value."""
        return np.array([[*map(recorded, k.values)].index(recorded(values[k.name])) for k in self.knobs], np.int64)

    def nearest(self, values: Values) -> Points:
        """The point at which whole numbers are the largest that are not above `values`, or the least, and other knobs
        are as `values` say [knobs]. Raises ValueError where they say nothing of a knob, or a word or a loop that it has
        not."""
        point = []
        for knob in self.knobs:
            if knob.name not in values:
                raise ValueError(f"nothing is said of {knob.name}")
            wanted = values[knob.name]
            if isinstance(wanted, int) and wanted not in knob.values:
                numbers = {n: k for k, n in enumerate(knob.values) if isinstance(n, int)}
                below = [n for n in numbers if n <= wanted]
                if not numbers:
                    raise ValueError(f"{knob.name} is {wanted}, and no number here")
                point.append(numbers[max(below) if below else min(numbers)])
            else:
                point.append([*map(recorded, knob.values)].index(recorded(wanted)))
        return np.array(point, np.int64)

    def column(self, points: Points, name: str) -> NDArray[np.int64]:
        """The values of the whole-number knob `name` at each of `points` [P]."""
        for place, knob in enumerate(self.knobs):
            if knob.name == name:
                return np.array(knob.values, np.int64)[points[:, place]]
        return np.full(len(points), self.fixed[name], np.int64)

    def columns(self, points: Points, names: Sequence[str]) -> NDArray[np.int64]:
        """The same of several knobs [P x names]."""
        return np.column_stack([self.column(points, name) for name in names]) if names else points[:, :0]

    def index(self, points: Points, name: str) -> NDArray[np.int64]:
        """Which of its values the knob `name` has at each of `points` [P]; 0 where there is one alone."""
        places = [place for place, knob in enumerate(self.knobs) if knob.name == name]
        return points[:, places[0]] if places else np.zeros(len(points), np.int64)

    def start(self) -> Points:
        """The point that closed forms would take [knobs]."""
        return self.point(self.start_values())

    def random(self, count: int, rng: np.random.Generator) -> Points:
        """At most `count` different legal points, each as likely as any, in no order [P x knobs]."""
        if self.size <= max(LISTED, 2 * count):
            points = self.every()
            return points[rng.permutation(len(points))[:count]]
        accepted = np.zeros((0, len(self.sizes)), np.int64)
        for _ in range(16):
            drawn = np.column_stack([rng.integers(0, n, 4 * count) for n in self.sizes])
            accepted = distinct_rows(np.concatenate([accepted, drawn[self.legal(drawn)]]))[0]
            if len(accepted) >= count:
                break
        return accepted[rng.permutation(len(accepted))[:count]]

    def every(self) -> Points:
        """All legal points [P x knobs]."""
        points = np.stack([i.reshape(-1) for i in np.indices(self.sizes)], axis=1) if self.sizes else _NONE
        return points[self.legal(points)]


_NONE = np.zeros((1, 0), np.int64)  # the one point of a Sketch without knobs


def one_by_one(sketch: Sketch, points: Points, work: Callable[[Values], Work]) -> Work:
    """The Work of points that is a closed form on numbers, not on arrays: equal points are asked for once."""
    distinct, back = distinct_rows(points)
    return Work.join([work(sketch.values(p)) for p in distinct]).take(back)


def otherwise(sketch: Sketch, points: Points) -> Floats:
    """How many knobs are not as at start() [P]."""
    return np.asarray(np.count_nonzero(points != sketch.start()[None, :], axis=1), np.float64)
