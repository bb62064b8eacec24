"""A Task of any size gets the schedule that is best at a few sizes on the whole, of those that hold at all sizes: the
same point of the same Sketch, made at several sizes, and what differs explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from modelc.errors import InvalidIR
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.generalise import generalised, instance, nest_at
from modelc.ir.sizes import DependsOnSize, Sizes
from modelc.ir.verify_nest import verify_nest
from modelc.space.check import check_sizes, derived_by
from modelc.space.choose import Chosen, Offer, Schedules
from modelc.space.nest.build import nest_of
from modelc.space.sketch import Points, Sketch, Values
from modelc.space.sketches.phases import separate

OFFERS = 8  # of a Task at one size that are compared at others
UNLIKE = 1.5  # times the best, of a schedule that is none at a size: what its kernel takes there nobody knows
Candidates = Callable[[Sequence[Task]], Sequence[Candidate]]  # of a Task at several sizes


@dataclass(frozen=True)
class Looks:
    """At which sizes a schedule is looked at: what it is like at `samples`, the usual one first, says what it is like
    at all; at `runs` it is verified; what it takes at `weighed` ones, each by its weight, decides."""

    explained: Explained
    runs: tuple[Sizes, ...]
    weighed: tuple[tuple[Sizes, float], ...]

    @property
    def samples(self) -> tuple[Sizes, ...]:
        return self.explained.samples


def chosen_at_all_sizes(task: Task, usual: Task, schedules: Schedules, looks: Looks) -> Chosen:
    """The schedule of a Task of any size, which is `usual` at the usual one. Raises InvalidIR where there is none."""
    rejected = list[str]()
    for chosen in ranked_at_all_sizes(task, usual, schedules, looks, rejected):
        return replace(chosen, rejected=tuple(rejected))
    raise InvalidIR(f"no schedule holds for every size; the last one, because {rejected[-1]}")


def ranked_at_all_sizes(
    task: Task, usual: Task, schedules: Schedules, looks: Looks, rejected: list[str]
) -> Iterator[Chosen]:
    """The schedules of a Task that hold at all sizes, the best at the usual one first; `rejected` gets why others do
    not."""
    at_samples = [usual, *(instance(task, run) for run in looks.samples[1:])]
    weighed = [(usual if run == looks.samples[0] else instance(task, run), weight) for run, weight in looks.weighed]
    for candidates in _in_order(usual, weighed, schedules):
        try:
            yield _held(task, at_samples, candidates(at_samples), looks, schedules.target.caches[0].line)
        except (Unexplained, DependsOnSize, InvalidIR, ValueError) as wrong:
            rejected.append(str(wrong))


def accepted_at_all_sizes(task: Task, candidate: Candidate, schedules: Schedules, looks: Looks) -> Chosen:
    """The Task of any size with the schedule that was chosen for it before. Raises InvalidIR where it is none."""
    at_samples = [instance(task, run) for run in looks.samples]
    candidates = [instance(candidate, run) for run in looks.samples]
    try:
        return _held(task, at_samples, candidates, looks, schedules.target.caches[0].line)
    except (Unexplained, DependsOnSize) as wrong:
        raise InvalidIR(f"its schedule does not hold for every size: {wrong}") from None


def prepared(tasks: Sequence[tuple[Task, Task]], schedules: Schedules, looks: Looks) -> None:
    """Constructs what chosen_at_all_sizes() chooses from, for Tasks of any size and what they are at the usual one."""
    usual = looks.samples[0]
    every = [
        u if run == usual else instance(t.canonical(), run)
        for t, u in tasks
        for run in (usual, *(run for run, _ in looks.weighed))
    ]
    schedules.prepare({task.hash: task for task in every}.values(), True)


def _in_order(usual: Task, weighed: Sequence[tuple[Task, float]], schedules: Schedules) -> Iterator[Candidates]:
    """Schedules of a Task, the best on the whole first: as it is at its own size, then as the same point of its Sketch
    is at each size; then others that are good at the usual size, and one that every Task has."""
    best = _best_on_the_whole(weighed, schedules)
    tried = {id(offer) for offer in best}
    for offer in (*best, *(offer for offer in schedules.ranked(usual) if id(offer) not in tried)):

        def as_is(tasks: Sequence[Task], candidate: Candidate = offer.candidate) -> Sequence[Candidate]:
            return [candidate] * len(tasks)

        def same_point(tasks: Sequence[Task], offer: Offer = offer) -> Sequence[Candidate]:
            values = _sketch(offer).values(offer.point)
            sketches = (schedules.families(task)[offer.family][offer.number] for task in tasks)
            return [sketch.candidate_of(values) for sketch in sketches]

        yield as_is
        yield same_point
    yield lambda tasks: [separate(tasks[0], schedules.target)] * len(tasks)


def _best_on_the_whole(weighed: Sequence[tuple[Task, float]], schedules: Schedules) -> list[Offer]:
    """What is constructed at the sizes that are `weighed`, the least first by the mean of what it takes at these,
    beside the best of each."""
    best = [schedules.seconds(task) for task, _ in weighed]
    points: dict[object, Offer] = {}
    for task, _ in weighed:
        for offer in schedules.ranked(task)[:OFFERS]:
            points.setdefault((_kind(_sketch(offer)), repr(_sketch(offer).recorded(offer.point))), offer)

    def longer(offer: Offer) -> float:
        sketch, total = _sketch(offer), 0.0
        values = sketch.values(offer.point)
        for (task, weight), seconds in zip(weighed, best, strict=True):
            alike = [s for s in schedules.families(task)[offer.family] if _kind(s) == _kind(sketch)]
            point = _nearest(alike[0], values) if alike else None
            if point is not None and alike[0].legal(point)[0]:
                total += weight * log(alike[0].estimate(point, schedules.target.cores)[0] / seconds)
            else:
                total += weight * log(UNLIKE)
        return total

    return sorted(points.values(), key=longer)


def _sketch(offer: Offer) -> Sketch:
    return offer.schedules.families(offer.task)[offer.family][offer.number]


def _kind(sketch: Sketch) -> object:
    """What Sketches of a Task at several sizes have in common."""
    return sketch.kind, sketch.name, sketch.stages


def _nearest(sketch: Sketch, values: Values) -> Points | None:
    """The point of a Sketch [1 x knobs] at which knobs have `values`, and tiles are as large as they can be where they
    are not that large. None where some loop or word is none of a knob's."""
    place = []
    for knob in sketch.knobs:
        value, every = values.get(knob.name), [*knob.values]
        if value not in every:
            smaller = [x for x in every if isinstance(x, int) and isinstance(value, int) and x <= value]
            if not smaller:
                return None
            value = max(smaller)
        place.append(every.index(value))
    return np.array([place], np.int64)


def _held(task: Task, at_samples: Sequence[Task], candidates: Sequence[Candidate], looks: Looks, line: int) -> Chosen:
    """The schedule that the candidates are at the samples, checked in the runs. Raises Unexplained, DependsOnSize,
    InvalidIR where it is none for every size."""
    derived = [derived_by(sample, c.stages) for sample, c in zip(at_samples, candidates, strict=True)]
    candidate = generalised(candidates, looks.explained)
    whole = _strided_as(task, generalised(derived, looks.explained))
    nest = nest_of(whole, candidate, line)
    check_sizes(nest)
    chosen = Chosen(candidate, whole, nest)
    for run in looks.runs:
        _check(task, chosen, run)
    return chosen


def _check(task: Task, chosen: Chosen, run: Sizes) -> None:
    """Raises InvalidIR unless the stages apply in a run, make a Task of no more there than the general one has, and its
    Nest is right."""
    derived = instance(chosen.task, run)
    expected = derived_by(instance(task, run), instance(chosen.candidate, run).stages)
    there = {block.name: block for block in derived.blocks}
    for block in expected.blocks:
        general = there.get(block.name)
        if not isinstance(block, Block) or not isinstance(general, Block):
            continue
        short = [i.name for i in block.iters if general.ranges.get(i.name, i.extent) < i.extent]
        if short:
            raise InvalidIR(f"iterator {short[0]!r} of block {block.name} is too short at {dict(run)}")
    verify_nest(nest_at(chosen.nest, run), derived)


def _strided_as(task: Task, derived: Task) -> Task:
    """The derived Task over constants that are the beginning of longer ones, as the Task says."""
    own = task.canonical()
    strides = {b.name: b.strides for b in own.buffers if b.name in own.constants and b.strides}
    if not strides:
        return derived
    buffers = tuple(
        replace(b, strides=strides[b.name]) if b.name in strides and b.strides is None else b for b in derived.buffers
    )
    return replace(derived, buffers=buffers)
