"""What the derivation rules have in common."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Block, Buffer, Iter, Task
from modelc.ir.expr import Expr, Load, Op, Var
from modelc.ir.factors import factors_of
from modelc.ir.layout import Layout, stored_in
from modelc.target import Target

Args = Mapping[str, str | int]
SUMMED = 1 << 12  # elements of each part that are added at once: they lie in the caches


class DoesNotApply(Exception):
    """The rule's precondition does not hold for this Task."""


@dataclass(frozen=True)
class Sums:
    """A constant that a rule makes of another by adding up parts of that: of shape (*points, others...), where the
    other's parts are (*taps, others...). Row t of `matrix` [products of points, products of taps] says how much of each
    part is in sum t; they are added in float64, in the order of the parts, and rounded once to `dtype`; the parts are
    of `parts_dtype`. modelc_made.c adds in the same order."""

    matrix: NDArray[np.float64]
    points: tuple[int, ...]
    taps: tuple[int, ...]
    dtype: str
    parts_dtype: str
    parts: Callable[[], NDArray[Any]]

    def whole(self) -> NDArray[Any]:
        """The sums."""
        parts = self.parts()
        others = parts.shape[len(self.taps) :]
        flat = parts.reshape(prod(self.taps), -1)
        result = np.zeros((prod(self.points), flat.shape[1]), self.dtype)
        terms = [[(k, float(x)) for k, x in enumerate(row) if x] for row in self.matrix]  # of each sum
        for start in range(0, flat.shape[1], SUMMED):
            columns = slice(start, start + SUMMED)
            real = flat[:, columns].astype(np.float64)
            for t, ((first, factor), *further) in ((t, row) for t, row in enumerate(terms) if row):
                total = factor * real[first]
                for k, more in further:
                    total += more * real[k]
                result[t, columns] = total
        return result.reshape(*self.points, *others)


@dataclass(frozen=True)
class Rule:
    """What makes of one Task another that computes the same (Ansor, table 1).

    `apply(task, **args)` gives the other Task, or raises DoesNotApply. The arguments are strings and whole numbers: a
    Candidate has them with the rule's name, as one of its stages.

    `proposed(task, target)` says with which arguments it is worth trying before the Task is scheduled; the estimated
    time decides. Rules without it are asked for where schedules are made. `constant(task, name, data, **args)` gives
    what constant `name` of the Task holds afterwards: an array of the shape that the new Task says, or the Sums that
    are that.
    `error_bound(task, **args)` is for rules that round otherwise: by how much an element may then be away from the
    exact sum, times the largest input times the largest weight."""

    name: str
    apply: Callable[..., Task]
    proposed: Callable[[Task, Target], Iterable[Args]] | None = None
    constant: Callable[..., NDArray[Any] | Sums] | None = None
    error_bound: Callable[..., float] | None = None


def replaced(task: Task, blocks: Iterable[AnyBlock], *buffers: Buffer) -> Task:
    """`task` with other blocks, and with `buffers`, each in the place of the one of its name if there is such; buffers
    that nothing mentions go."""
    blocks, used = tuple(blocks), {*task.inputs, *task.outputs}
    for b in blocks:
        used.update([x.buffer for x in (*b.reads, *b.writes)] if isinstance(b, Block) else [*b.inputs, *b.outputs])
    every = {b.name: b for b in (*task.buffers, *buffers)}
    return replace(task, blocks=blocks, buffers=tuple(b for b in every.values() if b.name in used))


def exchanged(task: Task, old: Block, *new: AnyBlock) -> list[AnyBlock]:
    """The blocks of `task` with `new` in the place of `old`."""
    return [x for b in task.blocks for x in (new if b is old else (b,))]


def fresh(task: Task, base: str) -> str:
    """A name that no buffer or block of `task` has: `base`, or with a number."""
    taken = {b.name for b in task.buffers} | {b.name for b in task.blocks}
    return next(name for name in chain([base], (f"{base}_{k}" for k in count(1))) if name not in taken)


def unused(name: str, taken: Container[str]) -> str:
    """`name` for an iterator, longer where it is taken."""
    while name in taken:
        name += "_"
    return name


def over(shape: Sequence[int]) -> tuple[tuple[Iter, ...], tuple[Var, ...]]:
    """Iterators over every element of a buffer, and the indices of one."""
    iters = tuple(Iter(f"p{chr(97 + d)}", extent) for d, extent in enumerate(shape))
    return iters, tuple(Var(i.name) for i in iters)


def accesses_moved(block: Block, visit: Callable[[Expr], Expr | None]) -> Block:
    """`block` with its accesses, those that write too, rewritten by `visit`."""
    new = block.mapped(visit)
    writes = tuple(w if (moved := visit(w)) is None else moved for w in new.writes)
    return replace(new, writes=writes)  # type: ignore[arg-type]


def reindexed(block: Block, read: Load, new: Load, values: Mapping[str, Expr]) -> Block:
    """`block` at other `values` of its iterators; `read`, at its own, becomes `new`."""
    marker = Load(new.buffer, ())
    mapped = block.mapped(lambda x: marker if x == read else None)
    mapped = mapped.mapped(lambda x: values.get(x.name) if isinstance(x, Var) else None)
    return mapped.mapped(lambda x: new if x == marker else None)


def with_split(layout: Layout, dim: int) -> Layout:
    """The layout of a buffer whose dimension `dim` becomes two, side by side; row-major stays so."""
    wide = ((d + (d > dim),) if d != dim else (d, d + 1) for d in layout.permutation or ())
    return stored_in([x for dims in wide for x in dims])


# --- preconditions ----------------------------------------------------------------------------------------------------


def plain_block(task: Task, name: str) -> Block:
    """Block `name` of `task`. Raises DoesNotApply if it is opaque."""
    block = task.block(name)
    if not isinstance(block, Block):
        raise DoesNotApply(f"block {name} is opaque")
    return block


def map_named(task: Task, name: str) -> Block:
    """Block `name` of `task`, which writes one buffer without conditions. Raises DoesNotApply if it is another one."""
    block = plain_block(task, name)
    if not _is_map(block):
        raise DoesNotApply(f"block {name} is no unconditional map")
    return block


def _is_map(block: Block) -> bool:
    return block.aggregation == "assign" and not block.where and len(block.writes) == 1


def sole_map(task: Task, buffer: str, dim: int) -> Block | None:
    """The unconditional map that alone writes the local `buffer`, all of dimension `dim` by one iterator; None if it is
    written otherwise, or its layout splits dimensions."""
    source = task.buffer(buffer)
    writers = [b for b in task.blocks if isinstance(b, Block) and buffer in {w.buffer for w in b.writes}]
    split = source.layout.primitives and source.layout.permutation is None
    if source not in task.locals or split or len(writers) != 1 or not _is_map(writers[0]):
        return None
    (writer,) = writers
    index = writer.writes[0].indices[dim]
    return writer if isinstance(index, Var) and writer.ranges[index.name] == source.shape[dim] else None


def contracted(task: Task, block: Block) -> tuple[Load, Load] | None:
    """(data, constant), where `block` is a sum of their products, each cast or not; None if it is not."""
    body = block.body[0]
    if block.aggregation != "add" or len(block.body) > 1 or not isinstance(body, Op) or body.name != "mul":
        return None
    operands = sorted((x for x in factors_of(body) if isinstance(x, Load)), key=lambda x: x.buffer in task.constants)
    if len(factors_of(body)) != 2 or [x.buffer in task.constants for x in operands] != [False, True]:
        return None
    return operands[0], operands[1]


def sole_consumer(task: Task, anchor: Block) -> tuple[Block, Load]:
    """The Block that alone reads what `anchor` writes, a local, and how it does. Raises DoesNotApply if there are
    several, or none."""
    (write,) = anchor.writes
    consumers = [b for b in task.blocks if isinstance(b, Block) and write.buffer in b.buffers_read]
    reads = [r for b in consumers for r in b.reads if r.buffer == write.buffer]
    if write.buffer in task.outputs or len(consumers) != 1 or len(reads) != 1:
        raise DoesNotApply(f"what block {anchor.name} writes is not consumed in place")
    return consumers[0], reads[0]
