"""Every way to compute a Task. Which there are follows from what its Blocks do, not from names of operators:

opaque       a Block without affine form: nothing is open
elementwise  assignments only: the innermost stored iterator is the vector
attention    contractions before and after reductions of rows: tiles of whole rows, or of parts of long ones
chain        reductions each of which reads what the one before it makes: tile by tile of the last
rows         several reductions over common leading iterators: all Blocks inside one loop over rows
reduction    a whole tensor, few long rows, or columns: phases, one after the other
contraction  one reduction with its prologue and epilogue: a register tile, of vectors or of an intrinsic
parts        the same with a long sum in parts: contractions and rows of another Task
winograd     the same by minimal filtering, for each tile and each place of the transforms
strassen     a product of matrices by fewer products of their parts, cut once or twice
"""

from __future__ import annotations

from collections.abc import Sequence

from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.policy import Policy
from modelc.space.rules.derivation import proposals
from modelc.space.sketch import Sketch
from modelc.space.sketches.attention import attention_sketches
from modelc.space.sketches.attention_parts import attention_in_parts
from modelc.space.sketches.chain import chain_sketches
from modelc.space.sketches.clean import collapsed, exposed, inlined
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.elementwise import Elementwise
from modelc.space.sketches.fusing import fused_taps
from modelc.space.sketches.parts import part_sketches
from modelc.space.sketches.reductions import column_sketch, row_sketches
from modelc.space.sketches.settled import Settled
from modelc.space.sketches.staging import staged
from modelc.space.sketches.strassen import strassen_sketches
from modelc.space.sketches.tensorized import tensorized
from modelc.space.sketches.vectorized import tiled_space
from modelc.space.sketches.winograd import winograd_sketches
from modelc.space.tiling.tiled import Tiled
from modelc.target import Target


def families(task: Task, target: Target, policy: Policy) -> tuple[tuple[Sketch, ...], ...]:
    """The Sketches of `task`, and those of each Task that users' rules propose in its place."""
    every = [(task, ()), *((derived, (stage,)) for stage, derived in proposals(task, target))]
    return tuple(tuple(sketches(alternative, target, policy, before)) for alternative, before in every)


def sketches(task: Task, target: Target, policy: Policy, before: Sequence[Stage] = ()) -> list[Sketch]:
    """Every Sketch of `task` that `policy` allows; at least one. `before` are stages that made `task`."""

    def settled(kind: str, candidate: Candidate) -> list[Sketch]:
        return [Settled(kind, whole, target, candidate, len(before))]

    whole, stages = task, [*before]
    task = inlined(exposed(task, stages), stages)
    blocks = [b for b in task.blocks if isinstance(b, Block)]
    if len(blocks) < len(task.blocks):
        return settled("opaque", Candidate({b.name: BlockSchedule() for b in task.blocks}, tuple(stages)))
    reductions = [b for b in blocks if b.reduction]
    if not reductions:
        task = collapsed(task, blocks[-1].name, stages)
        return [Elementwise(task, target, stages)]
    if len(reductions) > 1:
        attention = attention_sketches(task, target, stages, policy.tensorize)
        if attention and policy.parts:
            attention += attention_in_parts(task, target, stages, attention[-1])
        chains = () if attention else chain_sketches(task, target, stages, policy.tensorize)
        return [*attention, *chains] or row_sketches(task, target, stages)
    by_columns = column_sketch(task, target, stages)
    if by_columns is not None:
        return [by_columns]
    tiled = _of_one_reduction(task, target, policy, stages)
    return tiled if isinstance(tiled, list) else row_sketches(tiled, target, stages)


def _of_one_reduction(task: Task, target: Target, policy: Policy, stages: list[Stage]) -> list[Sketch] | Task:
    """The Sketches of a Task with one reduction, which is none by columns: in units of the target's intrinsics or of
    vectors, with operands packed or as they lie, and by minimal filtering. If it cannot be tiled, the Task that was
    made of it on the way."""
    plain, unstaged = task, [*stages]
    task = staged(task, target, stages)
    orders = len(stages) > len(unstaged)
    filtering = winograd_sketches(task, target, stages) if policy.winograd else []
    filtering = [way for way in filtering if policy.tensorize or way.roles.unit.plain]
    taken = [tiled_space(t, target, s)[1] for t, s in fused_taps(task, target, stages)] if policy.tensorize else []
    fewer = strassen_sketches(plain, target, unstaged) if policy.strassen else []
    uncopied, before = task, tuple(stages)
    task, direct = tiled_space(task, target, stages)
    if direct is None:
        return task
    units = [unit for tiled in (*taken, direct) if tiled is not None and policy.tensorize for unit in tensorized(tiled)]
    others = read_unpacked(uncopied, target, before, direct)
    if orders:
        _, other = tiled_space(plain, target, [*unstaged])
        others += [] if other is None else [other, *read_unpacked(plain, target, unstaged, other)]
    parts = part_sketches(uncopied, before, direct) if policy.parts else []
    return [*(Contraction(tiled) for tiled in unlike([*units, direct, *others])), *parts, *filtering, *fewer]


def read_unpacked(task: Task, target: Target, stages: Sequence[Stage], copying: Tiled) -> list[Tiled]:
    """The choices of a Task that reads vectors where they lie; none where `copying`, its choices otherwise, copies only
    what has to be."""
    if not any(s.rule == "cache_read" for s in copying.stages[len(stages) :]):
        return []
    _, way = tiled_space(task, target, [*stages], unpacked=True)
    return [way] if way is not None and way.stages != copying.stages else []


def unlike(ways: Sequence[Tiled]) -> list[Tiled]:
    """`ways` without those that multiply and add vectors as an earlier one does, or narrower ones: they have the same
    choices, or slower ones."""
    kept: list[Tiled] = []
    for way in ways:
        like = [w for w in kept if w.unit.plain and way.unit.plain and w.unpacked == way.unpacked]
        if not any((w.vector, w.rows) == (way.vector, way.rows) and w.lanes >= way.lanes for w in like):
            kept.append(way)
    return kept
