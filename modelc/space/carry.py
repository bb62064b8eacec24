"""Schedules that travel between the machines of a family (transfer-tuning; Gibson and Cano, 2022): a Task gets what was
measured to be faster for an equal Task or for a near one, with the nearest values of its knobs, where the price allows.

Two Tasks are of one kind where their texts differ in numbers alone, and in none below LEAST_SIZE: strides, windows,
axes and groups are equal then. Their distance is the largest factor between the extents of an iterator, in powers of
two; up to MOST_DISTANCE they are near.

A record says that a point took a part `relative` of the time of the untuned one, whatever the price said of both. The
price errs alike for like Tasks: there the carried point is expected to take

    price(carried) / price(untuned) * error ** (1 - distance),    error = relative / (price(faster) / price(untuned))

of the untuned time, on the threads of the record and on all cores; an `error` above 1 counts whole at any distance. It
is taken where both are at most 1 - LEAST_GAIN. The untuned schedule has to be of the Sketch of the record's one, which
carried to this Task is priced at most ALIKE higher: of another schedule the record says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import log2

import numpy as np

from modelc.ir.block import Block, Task
from modelc.space.choose import Offer, Schedules
from modelc.space.sketch import Sketch
from modelc.target.records import FamilyRecord, FamilyRecords, Point

LEAST_SIZE = 8  # of a number that may differ
MOST_DISTANCE = 1.0  # a factor of two
LEAST_GAIN = 0.02  # of the untuned time, that a carried schedule is expected to take less
ALIKE = 0.05  # of the untuned schedule's price, that the record's one may be priced higher
SHOWN = 3  # reasons that a note says
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Carried:
    """`offers` are the schedules of Tasks, by their hash; `stale` says of records which of their Sketches or knobs are
    not there any more."""

    offers: Mapping[str, Offer] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    def then(self, other: Carried) -> Carried:
        """Both, of which the `other` is newer."""
        return Carried({**self.offers, **other.offers}, tuple(dict.fromkeys((*self.stale, *other.stale))))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what was left out."""
        if not self.stale:
            return ()
        which = "; ".join(self.stale[:SHOWN])
        return (f"records of the target's family are left alone, for they are of another version's schedules: {which}",)


def kind_of(task: Task) -> str:
    """What a canonical Task has in common with others of its kind: its text without numbers that may differ. Factors in
    floating point are among these: a mean's is its size."""
    return _NUMBER.sub(lambda match: match[0] if match[0].isdigit() and int(match[0]) < LEAST_SIZE else "#", str(task))


def distance(task: Task, other: Task) -> float:
    """Of two Tasks of one kind."""
    pairs = zip(_extents(task), _extents(other), strict=True)
    return max((abs(log2(extent / another)) for extent, another in pairs), default=0.0)


def _extents(task: Task) -> list[int]:
    return [iterator.extent for block in task.blocks if isinstance(block, Block) for iterator in block.iters]


def carried(
    tasks: Iterable[Task],
    schedules: Schedules,
    families: Iterable[FamilyRecords],
    threads: int,
    place_of: Callable[[Task], str],
) -> Carried:
    """Schedules of canonical `tasks` by the records of `families` that hold for kernels on so many `threads`;
    `place_of` says where the parameters of a Task lie. The nearest records are tried first."""
    by_kind: dict[str, list[FamilyRecord]] = {}
    for family in families:
        for record in family.records if family.threads == threads else ():
            by_kind.setdefault(kind_of(record.task), []).append(record)
    offers, stale = dict[str, Offer](), dict[str, None]()
    for task in tasks if by_kind else ():
        near = [(distance(task, record.task), record) for record in by_kind.get(kind_of(task), ())]
        for far, record in sorted(near, key=lambda pair: (pair[0], pair[1].relative)):
            if far > MOST_DISTANCE or record.constants != place_of(task):
                continue
            try:
                offer = offer_of(record, task, schedules, threads)
            except ValueError as wrong:
                stale[str(wrong)] = None
                continue
            if offer is not None:
                offers[task.hash] = offer
                break
    return Carried(offers, tuple(stale))


@dataclass(frozen=True)
class Placed:
    """A point of the Sketch `number` of a Task."""

    number: int
    sketch: Sketch
    point: tuple[int, ...]

    def price(self, cores: int) -> float:
        """Seconds on so many cores."""
        return float(self.sketch.estimate(np.array([self.point], np.int64), cores)[0])


def offer_of(record: FamilyRecord, task: Task, schedules: Schedules, threads: int) -> Offer | None:
    """The schedule that `record` gives `task`, which is of the kind of its own, if the price allows it. Raises
    ValueError where the record's own Task has not its points."""
    faster, untuned = (named(schedules.families(record.task)[0], point) for point in (record.faster, record.untuned))
    error = record.relative / (faster.price(threads) / untuned.price(threads))  # of the price, by the record
    first, sketches = schedules.ranked(task)[0], schedules.families(task)
    chosen = Placed(first.number, sketches[first.family][first.number], first.point)
    like_faster, like_untuned = (nearest(sketches[0], point) for point in (record.faster, record.untuned))
    if like_faster is None or like_untuned is None or like_untuned.sketch is not chosen.sketch or like_faster == chosen:
        return None
    if like_untuned.price(threads) > (1 + ALIKE) * chosen.price(threads):
        return None
    scale = max(error, error ** (1 - distance(task, record.task)))
    expected = [scale * like_faster.price(n) / chosen.price(n) for n in (threads, schedules.target.cores)]
    if max(expected) > 1 - LEAST_GAIN:
        return None
    seconds = like_faster.price(schedules.target.cores)
    return Offer(schedules, task, seconds, 0, like_faster.number, like_faster.point)


def named(sketches: Sequence[Sketch], point: Point) -> Placed:
    """The point of one of a Task's Sketches. Raises ValueError where there is none, which says what is not there."""
    for number, sketch in enumerate(sketches):
        if sketch.name == point.sketch:
            place = sketch.nearest(point.knobs)
            if sketch.recorded(place) != point.knobs:
                raise ValueError(f"the knobs of {point.sketch!r} are not what the record says")
            return Placed(number, sketch, tuple(map(int, place)))
    raise ValueError(f"there is no Sketch {point.sketch!r}")


def nearest(sketches: Sequence[Sketch], point: Point) -> Placed | None:
    """The nearest legal point of a Sketch of that name, if there is one."""
    placed = like(sketches, point)
    return next((near for near in placed if near.sketch.legal(np.array([near.point], np.int64))[0]), None)


def like(sketches: Sequence[Sketch], point: Point) -> Iterator[Placed]:
    """The nearest points of the Sketches of that name, legal or not; none of a Sketch without such a knob or loop."""
    for number, sketch in enumerate(sketches):
        if sketch.name == point.sketch:
            with suppress(ValueError):
                yield Placed(number, sketch, tuple(map(int, sketch.nearest(point.knobs))))
