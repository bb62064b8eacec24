"""What surrounds the one reduction of a Task, the anchor."""

from __future__ import annotations

from math import prod

from modelc.ir.affine import bounds
from modelc.ir.block import Block, Task
from modelc.ir.expr import Var, variables
from modelc.space.analysis.access import Access, accesses

FAR_BYTES = 2048  # from one reduction step to the next: a prefetcher does not see the next line coming


def reduction_of(task: Task) -> Block:
    return next(b for b in task.blocks if isinstance(b, Block) and b.reduction)


def consumers_of(task: Task, anchor: Block) -> list[Block]:
    """The maps that read what the anchor writes: they run on its tile."""
    written = {w.buffer for w in anchor.writes}
    later = task.blocks[task.blocks.index(anchor) + 1 :]
    return [b for b in later if isinstance(b, Block) and written & b.buffers_read]


def afterwards(task: Task, anchor: Block) -> list[Block]:
    """The maps after the anchor that read its consumers' results: phases of their own."""
    consumers = consumers_of(task, anchor)
    later = task.blocks[task.blocks.index(anchor) + 1 :]
    return [b for b in later if isinstance(b, Block) and b not in consumers]


def read_afterwards(task: Task, anchor: Block, consumer: Block) -> bool:
    """Whether a later phase reads what `consumer` writes: it has to outlive the tile."""
    written = {w.buffer for w in consumer.writes}
    return any(written & b.buffers_read for b in afterwards(task, anchor))


def output_strides(task: Task, anchor: Block, consumer: Block, plain: dict[int, str]) -> dict[str, int | None]:
    """How far each spatial iterator of the anchor moves through what the first consumer writes."""
    _, writes = accesses(task, consumer)
    result: dict[str, int | None] = {}
    for d, index in enumerate(anchor.writes[0].indices):
        if isinstance(index, Var):
            result[index.name] = writes[0].strides.get(plain[d]) if d in plain else 0
    return result


def vectors_end(task: Task, anchor: Block, read: Access, vector: str, lanes: int) -> tuple[int, int] | None:
    """The dimension of a copy, several rows of which read the same vectors, that these go along, and how long it is
    where the last one is whole; None for any other operand."""
    dims = [d for d, i in enumerate(read.load.indices) if vector in variables(i)]
    if task.buffer(read.load.buffer) not in task.locals or read.strides[vector] != 1 or len(dims) != 1:
        return None
    whole = -(-anchor.ranges[vector] // lanes) * lanes
    limits = bounds(read.load.indices[dims[0]], {**anchor.ranges, vector: whole})
    return None if limits is None or readers(anchor, read) == 1 else (dims[0], limits[1] + 1)


def readers(anchor: Block, read: Access) -> int:
    """How many rows read the same elements at the same reduction step."""
    return prod(i.extent for i in anchor.spatial if read.strides[i.name] == 0)
