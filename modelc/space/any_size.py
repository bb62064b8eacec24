"""A Task of any size gets the schedule that is best at the usual one, of those that hold at all sizes: the same point
of the same Sketch, made at several sizes, and what differs explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from modelc.errors import InvalidIR
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.generalise import generalised, instance, nest_at
from modelc.ir.sizes import DependsOnSize, Sizes
from modelc.ir.verify_nest import verify_nest
from modelc.space.check import check_sizes, derived_by
from modelc.space.choose import Chosen, Schedules
from modelc.space.nest.build import nest_of
from modelc.space.sketches.phases import separate

Candidates = Callable[[Sequence[Task]], Sequence[Candidate]]  # of a Task at several sizes


@dataclass(frozen=True)
class Looks:
    """At which sizes a schedule is looked at: what it is like at `samples`, the usual one first, says what it is like
    at all; at `runs` it is verified."""

    explained: Explained
    runs: tuple[Sizes, ...]

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
    for candidates in _in_order(usual, schedules):
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


def _in_order(usual: Task, schedules: Schedules) -> Iterator[Candidates]:
    """Schedules of a Task, the best at the usual size first: as it is there, then as the same point of its Sketch is
    at each size; and one that every Task has."""
    for offer in schedules.ranked(usual):

        def as_usual(tasks: Sequence[Task], candidate: Candidate = offer.candidate) -> Sequence[Candidate]:
            return [candidate] * len(tasks)

        def same_point(
            tasks: Sequence[Task], family: int = offer.family, number: int = offer.number, point: object = offer.point
        ) -> Sequence[Candidate]:
            sketches = [schedules.families(task)[family][number] for task in tasks]
            values = sketches[0].values(point)  # type: ignore[arg-type]
            return [sketch.candidate_of(values) for sketch in sketches]

        yield as_usual
        yield same_point
    yield lambda tasks: [separate(tasks[0], schedules.target)] * len(tasks)


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
