"""What a Block's accesses say about its iterators: strides in storage, who is reused by whom.

Closed forms on the affine accesses (TensorIR 4.2's characteristic vectors, Stripe's strides); never operator names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelc.ir.affine import linear, simplify
from modelc.ir.block import Block, Buffer, Task
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, loads, op, variables
from modelc.target import Target

MOST_STEP = 4  # elements from one lane to the next, where vectors are taken out of a few that are loaded whole


def flat_index(buffer: Buffer, access: Load, ranges: Mapping[str, int]) -> Expr:
    """The element offset of an access in the storage of its buffer."""
    flat: Expr = Const(0)
    for index, step in zip(buffer.layout.apply(access.indices, buffer.shape), buffer.physical_strides, strict=True):
        flat = op("add", flat, op("mul", index, step))
    return simplify(flat, ranges)


def stride(flat: Expr, iterator: str) -> int | None:
    """How far one step of `iterator` moves in storage; None if that is not one number."""
    form = linear(flat)
    if form is None:
        return 0 if iterator not in variables(flat) else None
    if any(iterator in variables(atom) for atom, _ in form.terms if isinstance(atom, Op)):
        return None
    return form.coefficient(Var(iterator))


@dataclass(frozen=True)
class Access:
    """One Load of a Block with the stride of each iterator in storage (None: not one number)."""

    load: Load
    strides: Mapping[str, int | None]

    @property
    def moves(self) -> frozenset[str]:
        """The iterators that the address depends on (the row of TensorIR's characteristic matrix)."""
        return frozenset(i for i, s in self.strides.items() if s != 0)


def near(step: int | None) -> bool:
    """Whether lanes lie so close that they are taken out of a few whole vectors."""
    return step is not None and 1 < step <= MOST_STEP


def pieces(step: int | None) -> int:
    """Vectors that are loaded, or shuffled out of others, for one vector whose lanes lie `step` apart."""
    return 2 * step - 1 if step is not None and near(step) else 1


def stored_lanes(target: Target, dtype: str) -> int:
    """Elements of `dtype` in one vector; bools lie in memory as bytes."""
    return target.lanes("uint8" if DTYPES[dtype].itemsize == 1 else dtype)


def accesses(task: Task, block: Block) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """(reads, writes) of a Block. The Task keeps them: most of what is asked of a schedule asks for them."""
    kept: dict[int, tuple[Block, tuple[tuple[Access, ...], tuple[Access, ...]]]]
    kept = vars(task).setdefault("_accesses", {})
    if id(block) not in kept:
        reads, writes = (tuple(_access(task, block, x) for x in loads) for loads in (block.reads, block.writes))
        kept[id(block)] = block, (reads, writes)  # the Block too: else another might get its id
    return kept[id(block)][1]


def _access(task: Task, block: Block, load: Load) -> Access:
    steps = _linear_strides(task.buffer(load.buffer), load, block)
    if steps is None:
        flat = flat_index(task.buffer(load.buffer), load, block.ranges)
        steps = {i.name: stride(flat, i.name) for i in block.iters}
    return Access(load, steps)


def _linear_strides(buffer: Buffer, load: Load, block: Block) -> dict[str, int | None] | None:
    """The strides of an access that is linear in every dimension of a strided buffer (nearly all are): what
    flat_index and stride() give, without building an expression. None for any other."""
    if buffer.layout.primitives and buffer.layout.permutation is None:
        return None
    order = buffer.layout.permutation or range(len(buffer.shape))
    result: dict[str, int | None] = dict.fromkeys(block.ranges, 0)
    long = {i.name for i in block.iters if i.extent > 1}
    for dim, step in zip(order, buffer.physical_strides, strict=True):
        form = linear(load.indices[dim])
        if form is None:
            return None
        for atom, c in form.terms:
            if not isinstance(atom, Var) or atom.name not in result:
                return None
            if atom.name in long:
                result[atom.name] = (result[atom.name] or 0) + c * step
    return result


def vector_iterator(block: Block, writes: tuple[Access, ...]) -> str | None:
    """The spatial iterator that walks through what the Block writes one element at a time."""
    contiguous = [i for i in block.spatial if i.extent > 1 and writes[0].strides[i.name] == 1]
    return contiguous[0].name if contiguous else None


def by_stride(block: Block, writes: tuple[Access, ...]) -> list[str]:
    """Spatial iterators of extent above 1, those that step farthest through the output first."""
    names = [i.name for i in block.spatial if i.extent > 1]
    return sorted(names, key=lambda n: -abs(writes[0].strides[n] or 0))


def moves(value: Expr) -> bool:
    """Whether a value is moved as it is or in another dtype, or a constant where a condition on iterators says so
    (padding)."""
    if isinstance(value, Op) and value.name == "cast":
        return moves(value.args[0])
    if isinstance(value, Op) and value.name == "select":
        condition, *sides = value.args
        return not loads(condition) and all(map(moves, sides))
    return isinstance(value, (Load, Const))


def crossed_iterator(block: Block, vector: str, reads: tuple[Access, ...]) -> str | None:
    """The iterator that some operand is contiguous along while the output is contiguous along `vector`. Not where lanes
    lie three apart: transposed in registers are rectangles with sides of powers of two."""
    for read in reads:
        step = read.strides[vector]
        if step not in (0, 1) and not (near(step) and (step or 0).bit_count() > 1):
            for i in block.spatial:
                if i.name != vector and i.extent > 1 and read.strides[i.name] == 1:
                    return i.name
    return None


def reads_plainly(block: Block, buffer: str) -> dict[int, str] | None:
    """Dimension -> iterator for the one way in which `block` reads `buffer`; None if it reads it otherwise."""
    reads = {r for r in block.reads if r.buffer == buffer}
    if len(reads) != 1:
        return None
    (read,) = reads
    names = {d: i.name for d, i in enumerate(read.indices) if isinstance(i, Var)}
    return names if len(names) == len(read.indices) and len(set(names.values())) == len(names) else None
