"""Whether a Candidate is a schedule of its Task at all: of its stages before they derive, of its knobs before loops are
built, of what is unrolled before it is lowered. A Candidate may come from a file or a database, and from another Task.

Every InvalidCandidate is one sentence that names the stage, the layout, or the block and the knob.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from math import prod

from modelc.errors import InvalidCandidate
from modelc.frontend.building.limits import LARGEST_TENSOR
from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.loop import ROOT
from modelc.ir.nest import INTRINSIC, Alloc, Branch, For, Nest, Stmt
from modelc.space.rules.derivation import derived, rules
from modelc.space.rules.rule import DoesNotApply, Rule

SCOPES = ("register", "local", "arena")
TAGS = ("for", "parallel", "pipeline", "unroll", "vector")
WIDEST = 64  # elements of a tile that may lie beyond what the iterator has: a vector's, or an intrinsic's
LANES = 16  # of a vector loop, at most so many become one statement
MOST_SCRATCH = 1 << 30  # bytes of a thread's own storage
MOST_UNROLLED = 1 << 15  # statements of a phase; construction stays below a tenth of it


# --- stages -----------------------------------------------------------------------------------------------------------


def derived_by(task: Task, stages: tuple[Stage, ...]) -> Task:
    """`task` after `stages`. Raises InvalidCandidate for the first of them that is no rule's, or does not apply."""
    rule_of = rules()
    for stage in stages:
        if stage.rule not in rule_of:
            raise InvalidCandidate(
                f"there is no derivation rule {stage.rule!r}; known are {', '.join(sorted(rule_of))}"
            )
    for number, stage in enumerate(stages):
        place = f"stage {number} ({stage.rule})"
        _check_arguments(rule_of[stage.rule], stage, place)
        for kind, names in (("block", task.blocks), ("buffer", task.buffers)):
            if kind in stage.args and stage.args[kind] not in {x.name for x in names}:
                raise InvalidCandidate(f"{place}: the task has no {kind} {stage.args[kind]!r} there")
        try:
            task = derived(task, stage)
        except DoesNotApply as wrong:
            raise InvalidCandidate(f"{place} does not apply: {wrong}") from wrong
        except MemoryError:
            raise
        except Exception as wrong:  # a rule is written for what Sketches ask of it; this may be anything
            raise InvalidCandidate(f"{place} does not apply: {type(wrong).__name__}: {wrong}") from wrong
    return task


def _check_arguments(rule: Rule, stage: Stage, place: str) -> None:
    takes = _parameters(rule)
    for name, value in stage.args.items():
        if name not in takes:
            raise InvalidCandidate(f"{place} has no argument {name!r}; it takes {', '.join(takes) or 'none'}")
        wanted = {"str": str, "int": int}.get(takes[name][0], (str, int))
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InvalidCandidate(f"{place}: {name} is {value!r}, expected {takes[name][0]}")
    missing = [name for name, (_, needed) in takes.items() if needed and name not in stage.args]
    if missing:
        raise InvalidCandidate(f"{place} needs the argument {missing[0]!r}")


@cache
def _parameters(rule: Rule) -> dict[str, tuple[str, bool]]:
    """The arguments of a rule: the name of each one's type, and whether it has to be said."""
    _, *arguments = inspect.signature(rule.apply).parameters.values()
    return {p.name: (getattr(p.annotation, "__name__", str(p.annotation)), p.default is p.empty) for p in arguments}


# --- knobs ------------------------------------------------------------------------------------------------------------


def check_knobs(task: Task, candidate: Candidate) -> None:
    """Raises InvalidCandidate unless every Block of `task`, which the candidate's stages have derived, has a schedule
    whose knobs name what there is, and layouts fit what they store."""
    blocks = {b.name: b for b in task.blocks}
    for name in candidate.blocks:
        if name not in blocks:
            raise InvalidCandidate(f"block {name}: the task has none of this name; it has {', '.join(blocks)}")
    for name, block in blocks.items():
        if name not in candidate.blocks:
            raise InvalidCandidate(f"the candidate has no entry for block {name!r} of task {task.name}")
        if isinstance(block, Block):
            _check_schedule(task, block, candidate.blocks[name])
            _check_place(candidate, blocks, name)
    _check_layouts(task, candidate)


def check_iterators(task: Task, candidate: Candidate) -> None:
    """Raises InvalidCandidate where a tile or a loop is of an iterator that its Block of `task` does not have; extents
    may depend on Sizes."""
    for block in task.blocks:
        if isinstance(block, Block) and block.name in candidate.blocks:
            _check_iterators(block, candidate.blocks[block.name])


def _check_iterators(block: Block, schedule: BlockSchedule) -> None:
    there = {i.name: None for i in block.iters}
    named = [("tiles", name, repr(name)) for name in schedule.tiles]
    named += [("order", loop.iterator, f"for its loop '{loop}'") for loop in schedule.order]
    for knob, name, what in named:
        if name not in there:
            raise InvalidCandidate(f"block {block.name}, {knob}: it has no iterator {what}; it has {', '.join(there)}")


def _check_schedule(task: Task, block: Block, schedule: BlockSchedule) -> None:
    def wrong(knob: str, sentence: str) -> InvalidCandidate:
        return InvalidCandidate(f"block {block.name}, {knob}: {sentence}")

    _check_iterators(block, schedule)
    ranges, tiles, order = block.ranges, schedule.tiles, schedule.order
    if schedule.scope not in SCOPES:
        raise wrong("scope", f"{schedule.scope!r} is none of {', '.join(SCOPES)}")
    for name, sizes in tiles.items():
        for size in sizes:
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise wrong("tiles", f"{size!r} of {name} is no positive whole number")
            if size >= ranges[name] + WIDEST:
                raise wrong("tiles", f"{size} is more than iterator {name} has, {ranges[name]}")
    for place, loop in enumerate(order):
        if loop.level > len(tiles.get(loop.iterator, ())):
            raise wrong("order", f"loop '{loop}' is of a level that has no tile")
        if loop in order[:place]:
            raise wrong("order", f"loop '{loop}' is there twice")
    for loop, tag in schedule.tags.items():
        if loop not in order:
            raise wrong("tags", f"there is no loop '{loop}' in its order {', '.join(map(str, order))}")
        if tag not in TAGS and not tag.startswith(INTRINSIC):
            raise wrong("tags", f"{tag!r} of loop {loop} is none of {', '.join(TAGS)}, {INTRINSIC}NAME")
    for name in schedule.padded:
        if not tiles.get(name):
            raise wrong("padded", f"iterator {name!r} has no tile")
    for buffer, outer in schedule.prefetch.items():
        if buffer not in task.dtypes or outer not in (ROOT, *order):
            sentence = f"it cannot prefetch {buffer!r} for loop '{outer}': there is no such buffer or loop"
            raise wrong("prefetch", sentence)


def _check_place(candidate: Candidate, blocks: Iterable[str], name: str) -> None:
    """That `at` leads from loop to loop to a phase."""
    seen = [name]
    while (at := candidate.blocks[seen[-1]].at) is not ROOT:
        outer, loop = at
        if outer not in blocks or outer not in candidate.blocks or loop not in candidate.blocks[outer].order:
            raise InvalidCandidate(f"block {seen[-1]}, at: there is no loop '{at}'")
        if outer in seen:
            raise InvalidCandidate(f"block {name}, at: '{at}' is placed within itself")
        seen.append(outer)


def _check_layouts(task: Task, candidate: Candidate) -> None:
    crossing = {*task.inputs, *task.outputs} - task.constants
    for name, layout in candidate.layouts.items():
        if name not in task.dtypes:
            raise InvalidCandidate(f"layouts: the task has no buffer {name!r}")
        if name in crossing:
            raise InvalidCandidate(f"layouts: {name!r} is stored as the task says, for others read or write it too")
        if name in task.constants:
            try:
                shape = layout.shape(task.buffer(name).shape)
            except ValueError as wrong:
                raise InvalidCandidate(f"layouts: {name!r}: {wrong}") from None
            if prod(shape) > LARGEST_TENSOR:
                raise InvalidCandidate(f"layouts: {name!r} is stored in {prod(shape)} elements, more than are counted")


# --- sizes ------------------------------------------------------------------------------------------------------------


def check_sizes(nest: Nest) -> None:
    """Raises InvalidCandidate where code generation would write out more than any kernel is worth, or a kernel would
    keep more for itself than any machine has for each thread."""
    count = max(map(unrolled, nest.phases), default=0)
    if count > MOST_UNROLLED:
        raise InvalidCandidate(f"it unrolls to {count} statements; at most {MOST_UNROLLED} are written out")
    taken = sum(s.region.bytes for s in nest.statements() if isinstance(s, Alloc))
    if taken > MOST_SCRATCH:
        raise InvalidCandidate(f"it keeps {taken} bytes of its own for each thread; at most {MOST_SCRATCH} are kept")


def unrolled(body: Iterable[Stmt]) -> int:
    """Statements of the innermost bodies, when what is to be unrolled has been."""
    count = 0
    for stmt in body:
        if isinstance(stmt, For):
            copies = {"unroll": stmt.extent, "vector": -(-stmt.extent // LANES)}.get(stmt.tag, 1)
            count += copies * unrolled(stmt.body)
        elif isinstance(stmt, Branch):
            count += unrolled(stmt.then) + unrolled(stmt.otherwise)
        else:
            count += not isinstance(stmt, Alloc)
    return count
