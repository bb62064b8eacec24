"""Random Tasks under random Candidates: Blocks, Nest and kernel agree whatever the schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from three_ways import Example, check, example_of, host_target, random_array, random_inputs, started, task_of

from modelc.errors import InvalidIR, ModelError
from modelc.ir.block import Block, Task
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.expr import Const, Var
from modelc.ir.loop import ROOT, Inside, Loop, Root
from modelc.space.analysis.access import reads_plainly
from modelc.space.analysis.loops import trips
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive
from modelc.target import Target, VectorUnit

T = TypeVar("T")
EXAMPLES = int(os.environ.get("MODELC_EXAMPLES", "4"))  # of each property; CI's slice by default
UNROLLED = 64  # copies of a leaf at most
LANES = 32
random_schedules = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="MODELC_EXAMPLES" not in os.environ,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if "MODELC_SHRINK" in os.environ else [])],
    suppress_health_check=list(HealthCheck),
)


# --- Candidates -----------------------------------------------------------------------------------------------------


class Scheduler:
    """Draws a legal Candidate for a Task: any tiles, any order that keeps levels in order and completes a reduction
    before it is read, producers and consumers at the root or inside, any tags."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], task: Task, start: Candidate):
        self.draw, self.start = draw, start
        self.task = derive(task, start.stages)
        self.blocks = [b for b in self.task.blocks if isinstance(b, Block)]
        self.owner = self.owner_of()

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.draw(st.integers(0, len(items) - 1)))]

    def owner_of(self) -> Block:
        """The Block whose loops others are placed in, by default or (if none is) any one."""
        hosts = {s.at.block for s in self.start.blocks.values() if s.at is not ROOT}
        found = [b for b in self.blocks if b.name in hosts]
        return found[0] if found else self.pick(self.blocks)

    def candidate(self) -> Candidate:
        position = self.blocks.index(self.owner)
        before, after = self.blocks[:position], self.blocks[position + 1 :]
        padded = self.start.blocks[self.owner.name].padded if self.chance() else ()
        fixed = {n: self.start.blocks[self.owner.name].tiles[n] for n in padded}
        tiles = self.tiles(self.owner, fixed)
        inside = bool(after) and all(self.readable(b) for b in after) and (bool(padded) or self.chance())
        if after and not inside:
            padded = ()
        outer, inner = self.order(self.owner, tiles, padded, cut=inside)
        order = [*outer, *inner]
        hosts = [n for n in order if n not in self.last_levels(padded, tiles)]
        places: dict[str, Inside] = {}
        if inside and outer:
            places = {b.name: Inside(self.owner.name, outer[-1]) for b in after}
        else:
            padded = ()
        together = self.pick(outer or hosts) if outer or hosts else None
        for block in reversed(before):
            readers = [b for b in self.blocks if {r.buffer for r in b.reads} & {w.buffer for w in block.writes}]
            loop = self.place(block, readers, places, hosts, together)
            if loop is not None:
                places[block.name] = Inside(self.owner.name, loop)
        used = {place.loop for place in places.values()}
        schedules = {b.name: self.other(b, places.get(b.name, ROOT)) for b in self.blocks if b is not self.owner}
        tags = self.tags(self.owner, order, tiles, used)
        register = self.unrolled(self.owner, inner, tags) and all(
            self.unrolled(b, list(schedules[b.name].order), dict(schedules[b.name].tags)) for b in after
        )
        scope = "arena" if not (inside and outer) else "register" if register and self.chance() else "local"
        schedules[self.owner.name] = BlockSchedule(ROOT, scope, tiles, tuple(order), tags, padded)
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.start.stages, self.start.layouts)

    def other(self, block: Block, at: Inside | Root) -> BlockSchedule:
        tiles = self.tiles(block, {})
        outer, inner = self.order(block, tiles, (), cut=False)
        order = [*outer, *inner]
        tags = self.tags(block, order, tiles, set(), at is ROOT)
        scope = "arena" if at is ROOT or block.writes[0].buffer in self.task.outputs else "local"
        return BlockSchedule(at, scope, tiles, tuple(order), tags)

    def place(
        self, block: Block, readers: list[Block], places: dict[str, Inside], hosts: list[Loop], together: Loop | None
    ) -> Loop | None:
        """A loop of the owner for a producer, or None for the root."""
        plain = all(isinstance(i, (Var, Const)) for w in block.writes for i in w.indices)
        if not readers or not plain or {w.buffer for w in block.writes} & {*self.task.outputs} or self.chance():
            return None
        if readers == [self.owner] and hosts and self.chance():
            return self.pick(hosts)
        if together is None:
            return None
        at = Inside(self.owner.name, together)
        return together if all(b is self.owner or places.get(b.name) == at for b in readers) else None

    def readable(self, consumer: Block) -> bool:
        """Whether a consumer can run on a part of what is computed before it."""
        first = self.blocks.index(self.owner)
        sources = [b for b in self.blocks[first:] if b is not consumer]
        buffers = {w.buffer for b in sources for w in b.writes} & {r.buffer for r in consumer.reads}
        plain = all(isinstance(i, Var) for w in consumer.writes for i in w.indices)
        return not consumer.reduction and plain and all(reads_plainly(consumer, b) is not None for b in buffers)

    def tiles(self, block: Block, fixed: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        tiles = dict(fixed)
        for i in block.iters:
            if i.name not in tiles and i.extent > 1 and self.chance():
                sizes = [int(self.draw(st.integers(1, i.extent))) for _ in range(1 + self.chance())]
                tiles[i.name] = tuple(sorted(sizes, reverse=True))
        return tiles

    def order(
        self, block: Block, tiles: dict[str, tuple[int, ...]], padded: Sequence[str], cut: bool
    ) -> tuple[list[Loop], list[Loop]]:
        """Loops outside and inside the place of consumers: reductions are inside, whole vectors at the very end."""
        left = {i.name: [Loop(i.name, k) for k in range(len(tiles.get(i.name, ())) + 1)] for i in block.iters}
        left = {i.name: left[i.name] for i in block.iters if i.extent != 1 or i.name in tiles}
        last = [left[n].pop() for n in padded]
        spatial = [i.name for i in block.spatial if i.name in left]
        outer: list[Loop] = []
        while free := [n for n in spatial if len(left[n]) > (n in padded)]:  # at the last tile it is whole vectors
            if not cut or (outer and self.chance()):
                break
            outer.append(left[self.pick(free)].pop(0))
        inner: list[Loop] = []
        while names := [n for n in left if left[n]]:
            inner.append(left[self.pick(names)].pop(0))
        return outer, [*inner, *last]

    def last_levels(self, padded: Sequence[str], tiles: dict[str, tuple[int, ...]]) -> set[Loop]:
        return {Loop(n, k) for n in padded for k in (len(tiles[n]), len(tiles[n]) - 1)}

    def tags(
        self, block: Block, order: list[Loop], tiles: dict[str, tuple[int, ...]], used: set[Loop], root: bool = True
    ) -> dict[Loop, str]:
        tags = {}
        if not order:
            return {}
        spatial = {i.name for i in block.spatial}
        if root and order[0].iterator in spatial and self.chance():
            tags[order[0]] = "parallel"
        copies = 1
        for loop in reversed(order[1:]):
            count = trips(loop, block.ranges, tiles)
            if loop == order[-1] and loop not in used and count <= LANES and self.chance():
                tags[loop] = "vector"
                copies = -(-count // 8)
            elif count * copies <= UNROLLED and self.chance():
                tags[loop] = "unroll"
                copies *= count
        return tags

    def unrolled(self, block: Block, inner: list[Loop], tags: dict[Loop, str]) -> bool:
        spatial = {i.name for i in block.spatial}
        return all(tags.get(n) in ("unroll", "vector") for n in inner if n.iterator in spatial)


def targets() -> list[Target]:
    """This machine with vector units of several widths."""
    target = host_target()
    widths = [bits for bits in (512, 256, 128) if bits <= target.vector.bits]
    return [replace(target, vector=VectorUnit(bits, 32 if bits == 512 else 16)) for bits in widths]


def agree(data: st.DataObject, example: Example) -> None:
    """The default Candidate for some vector width, then one at random."""
    target = targets()[data.draw(st.integers(0, len(targets()) - 1))]
    default = started(example.task, target)
    drawn = default if data.draw(st.booleans()) else Scheduler(data.draw, example.task, default).candidate()
    note(f"{example.task}\n{drawn}")
    try:
        build_nest(example.task, drawn)
    except InvalidIR as error:  # producers of what is read at two unrelated places have no box
        assert "no common box" in str(error)
        return
    check(example, drawn, target)


# --- Tasks ----------------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 17, 20, 31, 33])


@random_schedules
@given(st.data())
def test_convolutions(data: st.DataObject) -> None:
    draw = data.draw
    rank, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 4]))
    c, o = group * draw(st.sampled_from([1, 2, 3, 5])), group * draw(st.sampled_from([1, 2, 4, 9, 17]))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    attrs = {
        "group": group,
        "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
        "pads": [draw(st.integers(0, 2)) for _ in range(2 * rank)],
    }
    image = [draw(st.integers(5, 9)) for _ in range(rank)]
    transposed = draw(st.integers(0, 3)) == 0
    weights = (c, o // group, *kernel) if transposed else (o, c // group, *kernel)
    shapes = [(draw(st.integers(1, 2)), c, *image), weights, (o,)][: draw(st.integers(2, 3))]
    consts = (1, 2)[: len(shapes) - 1] if draw(st.booleans()) else ()
    try:
        task = task_of("ConvTranspose" if transposed else "Conv", attrs, shapes, consts, draw(st.booleans()))
    except ModelError:  # nothing left of the image
        return
    agree(data, Example(task, random_inputs(task)))


@random_schedules
@given(st.data())
def test_matrix_products(data: st.DataObject) -> None:
    draw = data.draw
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "int32"]))
    batch = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    other = [b if draw(st.booleans()) else 1 for b in batch][draw(st.integers(0, 1)) :]
    consts = (1,) if draw(st.booleans()) else ()
    shapes = [(*batch, m, k), (*other, k, n)]
    task = task_of("MatMul", {}, shapes, consts, dtypes=[dtype, dtype])
    agree(data, Example(task, random_inputs(task)))


@random_schedules
@given(st.data())
def test_reductions(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=3)))
    axes = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    op = draw(st.sampled_from(["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceProd"]))
    dtype = draw(st.sampled_from(["float32", "float32", "int32"])) if op in ("ReduceSum", "ReduceMax") else "float32"
    x = random_array(np.random.default_rng(1), dtype, shape)
    agree(data, example_of(op, (x, np.asarray(axes)), {"keepdims": int(draw(st.booleans()))}, steering=(1,)))


@random_schedules
@given(st.data())
def test_rows(data: st.DataObject) -> None:
    draw = data.draw
    op = draw(st.sampled_from(["Softmax", "LayerNormalization", "InstanceNormalization", "LogSoftmax", "ArgMax"]))
    shape = tuple(draw(st.lists(SIZES, min_size=3, max_size=3)))
    axis = draw(st.integers(-3, -1))
    shapes: dict[str, list[tuple[int, ...]]] = {
        "LayerNormalization": [shape, shape[axis:], shape[axis:]],
        "InstanceNormalization": [shape, shape[1:2], shape[1:2]],
    }
    attrs = {} if op == "InstanceNormalization" else {"axis": axis}
    task = task_of(op, attrs, shapes.get(op, [shape]), (), draw(st.booleans()))
    agree(data, Example(task, random_inputs(task), rtol=1e-3))


@random_schedules
@given(st.data())
def test_maps(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=4)))
    dtype = draw(st.sampled_from(["float32", "float64", "int64", "int32"]))
    op = draw(st.sampled_from(["Add", "Mul", "Max", "Less", "Equal"]))
    other = tuple(n if draw(st.booleans()) else 1 for n in shape)[draw(st.integers(0, len(shape) - 1)) :]
    task = task_of(op, {}, [shape, other], (), draw(st.booleans()), [dtype, dtype])
    agree(data, Example(task, random_inputs(task)))


@random_schedules
@given(st.data())
def test_moves(data: st.DataObject) -> None:
    draw = data.draw
    shape = tuple(draw(st.lists(SIZES, min_size=2, max_size=4)))
    x = random_array(np.random.default_rng(1), draw(st.sampled_from(["float32", "int64", "uint8", "bool"])), shape)
    kind = draw(st.sampled_from(["Transpose", "Concat", "Pad", "Gather"]))
    last = draw(st.booleans())
    if kind == "Transpose":
        agree(data, example_of(kind, (x,), {"perm": draw(st.permutations(range(len(shape))))}, channels_last=last))
    elif kind == "Concat":
        agree(data, example_of(kind, (x, x), {"axis": draw(st.integers(0, len(shape) - 1))}, channels_last=last))
    elif kind == "Pad":
        pads = np.asarray([draw(st.integers(0, 3)) for _ in range(2 * len(shape))])
        agree(data, example_of(kind, (x, pads), {}, (), last, (1,)))
    else:
        axis = draw(st.integers(0, len(shape) - 1))
        indices = np.asarray(draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=9)))
        agree(data, example_of(kind, (x, indices), {"axis": axis}))


@random_schedules
@given(st.data())
def test_pools(data: st.DataObject) -> None:
    draw = data.draw
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    pads = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    attrs = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 3)) for _ in range(2)], "pads": pads}
    attrs["ceil_mode"] = draw(st.integers(0, 1))
    shape = (1, draw(SIZES), draw(st.integers(4, 10)), draw(st.integers(4, 10)))
    task = task_of(op, attrs, [shape], (), draw(st.booleans()))
    agree(data, Example(task, random_inputs(task)))
