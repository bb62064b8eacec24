"""The schedule of a Task: Sketches are listed, points of each constructed, and sorted on one scale of seconds; the
first that its Nest's verifier accepts is taken. Where users' rules propose other Tasks that compute the same
(rules/derivation.py), these have Sketches of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from modelc.errors import InvalidIR
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate, Stage
from modelc.ir.nest import Nest
from modelc.ir.verify_nest import verify_nest
from modelc.policy import Policy
from modelc.space.check import check_knobs, check_scratch, check_unrolled, derived_by
from modelc.space.construct import Constructed, constructed
from modelc.space.cost.seconds import task_seconds
from modelc.space.nest.build import nest_of
from modelc.space.rules.derivation import proposals
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.phases import separate
from modelc.target import Target

DEFAULT = Policy()
KEPT = 3  # of what is constructed in one Sketch: the second is for when the first is rejected


@dataclass(frozen=True)
class Chosen:
    """What a Task is lowered from: its Candidate, the Task after the Candidate's stages, and the Nest of both.
    `rejected` says of each better Candidate what is wrong with it."""

    candidate: Candidate
    task: Task
    nest: Nest
    rejected: tuple[str, ...] = ()


def accepted(task: Task, candidate: Candidate, target: Target) -> Chosen:
    """`task` as `candidate` schedules it on `target`. Raises InvalidCandidate where it is no schedule of this Task, and
    InvalidIR where its Nest breaks a constraint."""
    derived = derived_by(task, candidate.stages)
    check_knobs(derived, candidate)
    nest = nest_of(derived, candidate, target.caches[0].line)
    check_unrolled(nest)
    check_scratch(nest)
    verify_nest(nest, derived)
    return Chosen(candidate, derived, nest)


def chosen(task: Task, target: Target, policy: Policy = DEFAULT) -> Chosen:
    """The best Candidate that its Nest's verifier accepts. Raises InvalidIR if there is none."""
    rejected: list[str] = []
    for candidate in candidates(task, target, policy):
        try:
            return replace(accepted(task, candidate, target), rejected=tuple(rejected))
        except InvalidIR as wrong:
            rejected.append(str(wrong))
    raise InvalidIR(f"every schedule of task {task.name} was rejected; the last one, because {rejected[-1]}")


def candidates(task: Task, target: Target, policy: Policy = DEFAULT) -> Iterator[Candidate]:
    """Candidates for `task` on all cores of `target`, the one of least estimated time first; at the end the one that
    every Task has: a phase for each Block, nothing derived."""
    groups = [_constructed(task, target, policy)]
    groups += [_constructed(derived, target, policy, (stage,)) for stage, derived in proposals(task, target)]
    if len(groups) > 1:  # other Blocks, other Sketches: one formula for all of them compares the best ones
        groups.sort(key=lambda found: _seconds(found[0], target))
    for found in groups:
        for one in found:
            yield one.candidate
    yield separate(task, target)


def _constructed(task: Task, target: Target, policy: Policy, before: Sequence[Stage] = ()) -> list[Constructed]:
    """The best points of all Sketches of one Task: the Sketches by the seconds of their first, each one's points in
    the order in which they were constructed (its doubt may put start() first)."""
    found = [constructed(s, target.cores, KEPT) for s in sketches(task, target, policy, before)]
    return [c for points in sorted(found, key=lambda points: points[0].seconds) for c in points]


def _seconds(one: Constructed, target: Target) -> float:
    task = one.sketch.derived(one.sketch.values(one.point))
    return task_seconds(task, one.candidate, target, target.cores)


def default_candidate(task: Task, target: Target, policy: Policy = DEFAULT) -> Candidate:
    """The Candidate that rules and closed forms choose in milliseconds (chosen() looks longer): where layouts are
    compared, thousands of Tasks are asked for."""
    found = sketches(task, target, policy)
    best = min(found, key=lambda s: s.rough()) if len(found) > 1 else found[0]
    return best.ruled()
