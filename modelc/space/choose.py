"""The schedules that are tried for a Task, from the one of least estimated time on: what construction finds in float32
(construct.py), what the rules give for other units, and minimal filtering, on one scale of seconds. Where users' rules
propose other Tasks that compute the same (derivation.py), each has schedules of its own; seconds.py compares the best
ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from modelc.errors import InvalidIR
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.nest import Nest
from modelc.ir.verify_nest import verify_nest
from modelc.space.construct import constructed
from modelc.space.cost.seconds import task_seconds
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive, proposals
from modelc.space.sketches.default import ways_of
from modelc.space.sketches.phases import separate
from modelc.space.sketches.tiled import Tiled, TiledKnobs
from modelc.target import Target

KEPT = 3  # of what is constructed: the second is for when the first is rejected


@dataclass(frozen=True)
class Chosen:
    """What a Task is lowered from: its Candidate, the Task after the Candidate's stages, and the Nest of both.
    `rejected` says of each better Candidate what is wrong with it."""

    candidate: Candidate
    task: Task
    nest: Nest
    rejected: tuple[str, ...] = ()


def accepted(task: Task, candidate: Candidate) -> Chosen:
    """`task` as `candidate` schedules it. Raises InvalidIR where the candidate breaks a constraint."""
    derived = derive(task, candidate.stages)
    nest = build_nest(task, candidate)
    verify_nest(nest, derived)
    return Chosen(candidate, derived, nest)


def chosen(task: Task, target: Target, winograd: bool = True, tensorize: bool = True) -> Chosen:
    """The best Candidate that its Nest's verifier accepts. Raises InvalidIR if there is none."""
    rejected: list[str] = []
    for candidate in candidates(task, target, winograd, tensorize):
        try:
            return replace(accepted(task, candidate), rejected=tuple(rejected))
        except InvalidIR as wrong:
            rejected.append(str(wrong))
    raise InvalidIR(f"every schedule of task {task.name} was rejected; the last one, because {rejected[-1]}")


def candidates(task: Task, target: Target, winograd: bool = True, tensorize: bool = True) -> Iterator[Candidate]:
    """Candidates for `task` on `target`, the best one first, and at the end the one that every Task has: a phase for
    each Block, nothing derived. Arguments as those of default_candidate."""
    yield from _estimated(task, target, winograd, tensorize)
    yield separate(task, target)


def _estimated(task: Task, target: Target, winograd: bool, tensorize: bool) -> Iterator[Candidate]:
    """Candidates for `task`, and for what users' rules make of it, by estimated time."""
    proposed = [((), task), *(((stage,), derived) for stage, derived in proposals(task, target))]
    if len(proposed) == 1:
        yield from _scheduled(task, target, winograd, tensorize)
        return
    found = []
    for before, one in proposed:
        known = [replace(c, stages=(*before, *c.stages)) for c in _scheduled(one, target, winograd, tensorize)]
        found.append((task_seconds(task, known[0], target), known))
    for _, known in sorted(found, key=lambda f: f[0]):
        yield from known


def _scheduled(task: Task, target: Target, winograd: bool, tensorize: bool) -> Iterator[Candidate]:
    """Candidates for `task` as it is."""
    found = ways_of(task, target, winograd, tensorize)
    if isinstance(found, Candidate):
        yield found
        return
    options: list[tuple[float, Callable[[], Candidate]]] = []
    for way in _unlike(found.direct):
        options += [(seconds, partial(way.candidate, knobs)) for seconds, knobs in _knobs(way)]
    options += [(f.together, partial(getattr, f, "candidate")) for f in found.filtering]
    for _, candidate in sorted(options, key=lambda o: o[0]):
        yield candidate()


def _unlike(ways: Sequence[Tiled]) -> list[Tiled]:
    """`ways` without those that multiply and add vectors as an earlier one does, or narrower ones: they have the same
    choices, or slower ones."""
    kept: list[Tiled] = []
    for way in ways:
        like = [w for w in kept if w.plain and way.plain and w.straight == way.straight]
        if not any((w.vector, w.rows) == (way.vector, way.rows) and w.lanes >= way.lanes for w in like):
            kept.append(way)
    return kept


def _knobs(way: Tiled) -> list[tuple[float, TiledKnobs]]:
    """Knobs and the seconds that they are estimated to take."""
    dtype = way.task.buffer(way.anchor.writes[0].buffer).dtype
    if dtype != "float32" or not way.plain:
        knobs = way.default_knobs()
        return [(way.seconds(knobs), knobs)]
    return [(c.seconds, c.knobs) for c in constructed(way, KEPT)]
