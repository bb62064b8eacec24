"""A Task of any size gets the schedule that is best at a few sizes on the whole, of those that hold at all sizes: the
same point of the same Sketch, made at several sizes, and what differs explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import log
from typing import Any

from modelc.errors import InvalidIR
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.generalise import generalised, instance, nest_at
from modelc.ir.loop import Loop
from modelc.ir.sizes import DependsOnSize, Sizes
from modelc.ir.verify_nest import verify_nest
from modelc.space.check import check_iterators, check_sizes, derived_by
from modelc.space.choose import Chosen, Offer, Schedule, Schedules
from modelc.space.nest.build import nest_of
from modelc.space.sketch import Sketch
from modelc.space.sketches.phases import separate

OFFERS = 8  # of a Task at one size that are compared at others
CONSTRUCTED = 1.0  # what a size weighs at least at which schedules are constructed; at others they are priced alone
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


def prepared(tasks: Sequence[tuple[Task, Task]], schedules: Schedules, looks: Looks) -> None:
    """Constructs what chosen_at_all_sizes() chooses from, for Tasks of any size and what they are at the usual one."""
    every = [u for _, u in tasks]
    every += [task for t, u in tasks for task, weight in _weighed(t.canonical(), u, looks) if weight >= CONSTRUCTED]
    schedules.prepare({task.hash: task for task in every}.values(), True)


def _weighed(task: Task, usual: Task, looks: Looks) -> list[tuple[Task, float]]:
    """The Task at the sizes that are weighed, and how much they are."""
    at_usual = looks.samples[0]
    return [(usual if run == at_usual else instance(task, run), weight) for run, weight in looks.weighed]


def chosen_at_all_sizes(
    task: Task, usual: Task, schedules: Schedules, looks: Looks, preferred: Schedule | None = None
) -> Chosen:
    """The schedule of a Task of any size, which is `usual` at the usual one: the `preferred` one where that holds at
    all sizes. Raises InvalidIR where there is none."""
    rejected = list[str]()
    for chosen in ranked_at_all_sizes(task, usual, schedules, looks, rejected, preferred):
        return replace(chosen, rejected=tuple(rejected))
    raise InvalidIR(f"no schedule holds for every size; the last one, because {rejected[-1]}")


def ranked_at_all_sizes(
    task: Task,
    usual: Task,
    schedules: Schedules,
    looks: Looks,
    rejected: list[str],
    preferred: Schedule | None = None,
) -> Iterator[Chosen]:
    """The schedules of a Task that hold at all sizes, the `preferred` one and then the best at the usual one first;
    `rejected` gets why others do not."""
    at_samples = [usual, *(instance(task, run) for run in looks.samples[1:])]
    for candidates in _in_order(usual, _weighed(task, usual, looks), schedules, preferred):
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


def _in_order(
    usual: Task, weighed: Sequence[tuple[Task, float]], schedules: Schedules, preferred: Schedule | None = None
) -> Iterator[Candidates]:
    """Schedules of a Task, the `preferred` one and then the best on the whole first, then others that are good at the
    usual size, and those that are for any size: as each is there where it is offered, as the same point of its Sketch
    is at each size, and as that is at the usual one. Then those that are good at sizes that count less, which may have
    loops that no other has. At last one that every Task has."""
    best = _best_on_the_whole(usual, weighed, schedules)
    tried = {id(offer) for offer in best}
    others = [offer for offer in schedules.ranked(usual) if id(offer) not in tried]
    elsewhere = (offer for task, weight in weighed if weight < CONSTRUCTED for offer in schedules.ranked(task)[:OFFERS])
    first = [preferred] if isinstance(preferred, Offer) else []
    for offer in chain(first, best, others, _for_any_size(usual, schedules), elsewhere):

        def as_offered(tasks: Sequence[Task], offer: Offer = offer) -> Sequence[Candidate]:
            return [offer.candidate] * len(tasks)

        def same_point(tasks: Sequence[Task], offer: Offer = offer) -> Sequence[Candidate]:
            values = _values(offer, schedules)
            sketches = [_sketch(offer, task, schedules) for task in tasks]
            for sketch in sketches:
                if missing := sorted({knob.name for knob in sketch.all_knobs()} - values.keys()):
                    raise InvalidIR(f"the knob {missing[0]!r} is not there at each size")
            return [sketch.candidate_of(values) for sketch in sketches]

        def as_at_usual(tasks: Sequence[Task], same_point: Candidates = same_point) -> Sequence[Candidate]:
            return [*same_point(tasks[:1])] * len(tasks)

        yield as_offered
        yield same_point
        if offer.task is not usual:
            yield as_at_usual
    yield lambda tasks: [separate(tasks[-1], schedules.target)] * len(tasks)  # the largest, which has every loop


def _for_any_size(usual: Task, schedules: Schedules) -> Iterator[Offer]:
    """What Sketches of a Task offer for any size, whatever it takes."""
    for family, sketches in enumerate(schedules.families(usual)):
        for number, sketch in enumerate(sketches):
            values = sketch.of_any_size()
            if values is not None:
                yield Offer(schedules, usual, 0.0, family, number, tuple(map(int, sketch.nearest(values))))


def _best_on_the_whole(usual: Task, weighed: Sequence[tuple[Task, float]], schedules: Schedules) -> list[Offer]:
    """What is constructed at the sizes that are `weighed`, the least first by the mean of the logarithms of what it
    takes at these."""
    points: dict[object, Offer] = {}
    for task, weight in weighed:
        for offered in schedules.ranked(task)[:OFFERS] if weight >= CONSTRUCTED else ():
            offer = _with_every_knob(offered, usual, schedules)
            sketch = _sketch(offer, offer.task, schedules)
            points.setdefault((sketch.kind, sketch.name, repr(sketch.recorded(offer.point))), offer)
    offers, totals = [*points.values()], [0.0] * len(points)
    for task, weight in weighed:
        prices = [_price(offer, task, schedules) for offer in offers]
        unknown = UNLIKE * min((price for price in prices if price is not None), default=1.0)
        for number, price in enumerate(prices):
            totals[number] += weight * log(unknown if price is None else price)
    return [offers[number] for number in sorted(range(len(offers)), key=totals.__getitem__)]


def _with_every_knob(offer: Offer, usual: Task, schedules: Schedules) -> Offer:
    """An offer as it is at the usual size, where an iterator has tiles that has one iteration alone, and so no knobs,
    at the offer's own: they are as small as can be. The offer itself, where it lacks no knob or is nothing there."""
    try:
        sketch = _sketch(offer, usual, schedules)
    except InvalidIR:
        return offer
    values = _values(offer, schedules)
    missing = {k.name: [n for n in k.values if isinstance(n, int)] for k in sketch.all_knobs() if k.name not in values}
    if not missing:
        return offer
    smallest_tiles = {name: min(numbers) for name, numbers in missing.items() if numbers}
    try:
        point = sketch.nearest({**sketch.start_values(), **smallest_tiles, **values})
    except ValueError:
        return offer
    if not sketch.legal(point[None, :])[0]:
        return offer
    price = float(sketch.estimate(point[None, :], schedules.target.cores)[0]) * sketch.handicap
    number = schedules.families(usual)[offer.family].index(sketch)
    return Offer(schedules, usual, price, offer.family, number, tuple(map(int, point)))


def _price(offer: Offer, task: Task, schedules: Schedules) -> float | None:
    """What a schedule is estimated to take that is offered at another size: with tiles that are no larger than what
    there is, and on one core where the loop whose iterations go to threads has one. None where its Sketch is none of
    the Task's, or has no such point."""
    try:
        sketch = _sketch(offer, task, schedules)
        values = _values(offer, schedules)
        absent = {k.name: k.values[0] for k in sketch.all_knobs() if _is_absent(values.get(k.name), k.values, sketch)}
        point = sketch.nearest({**values, **absent})[None, :]
    except (InvalidIR, ValueError):
        return None
    if not sketch.legal(point)[0]:
        return None
    return float(sketch.estimate(point, 1 if absent else schedules.target.cores)[0]) * sketch.handicap


def _is_absent(value: Any, there: Sequence[Any], sketch: Sketch) -> bool:
    """Whether a knob's value is a loop that is not `there`, for its iterator has one iteration."""
    if not isinstance(value, Loop) or value in there:
        return False
    extents = (block.ranges.get(value.iterator, 1) for block in sketch.task.blocks if isinstance(block, Block))
    return all(extent == 1 for extent in extents)


def _values(offer: Offer, schedules: Schedules) -> dict[str, Any]:
    """What each knob is in an offer."""
    return _sketch(offer, offer.task, schedules).values(offer.point)


def _sketch(offer: Offer, task: Task, schedules: Schedules) -> Sketch:
    """The Sketch of an offer as it is at another size. Raises InvalidIR where the Task has none there."""
    own, there = schedules.families(offer.task)[offer.family], schedules.families(task)
    wanted = own[offer.number]
    named = (
        [s for s in there[offer.family] if (s.kind, s.name) == (wanted.kind, wanted.name)]
        if offer.family < len(there)
        else []
    )
    if not named:
        raise InvalidIR(f"the sketch {wanted.kind} {wanted.name!r} is none of this size")
    before = [s for s in own[: offer.number] if (s.kind, s.name) == (wanted.kind, wanted.name)]
    return named[min(len(before), len(named) - 1)]


def _held(task: Task, at_samples: Sequence[Task], candidates: Sequence[Candidate], looks: Looks, line: int) -> Chosen:
    """The schedule that the candidates are at the samples, checked in the runs. Raises Unexplained, DependsOnSize,
    InvalidIR where it is none for every size."""
    derived = [derived_by(sample, c.stages) for sample, c in zip(at_samples, candidates, strict=True)]
    explained, candidate = looks.explained, generalised(candidates, looks.explained)
    while True:
        general = _strided_as(task, generalised(derived, explained))
        check_iterators(general, candidate)
        nest = nest_of(general, candidate, line)
        check_sizes(nest)
        chosen = Chosen(candidate, general, nest)
        try:
            for run in looks.runs:
                _check(task, chosen, run)
            return chosen
        except _TooShort as short:  # the samples leave several expressions, and the first was another
            if short.run in explained.samples:
                raise
            explained = explained.also_at(short.run)
            derived.append(derived_by(instance(task, short.run), instance(candidate, short.run).stages))


class _TooShort(InvalidIR):
    """An iterator has fewer iterations in a run than the stages give it there."""

    def __init__(self, iterator: str, block: str, run: Sizes) -> None:
        super().__init__(f"iterator {iterator!r} of block {block} is too short at {dict(run)}")
        self.run = run


def _check(task: Task, chosen: Chosen, run: Sizes) -> None:
    """Raises _TooShort where the stages make more of a Task in a run than the general one has there, and InvalidIR
    where they do not apply, or its Nest is wrong."""
    derived = instance(chosen.task, run)
    expected = derived_by(instance(task, run), instance(chosen.candidate, run).stages)
    there = {block.name: block for block in derived.blocks}
    for block in expected.blocks:
        general = there.get(block.name)
        if not isinstance(block, Block) or not isinstance(general, Block):
            continue
        short = [i.name for i in block.iters if general.ranges.get(i.name, i.extent) < i.extent]
        if short:
            raise _TooShort(short[0], block.name, run)
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
