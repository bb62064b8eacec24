"""What is done to a Task before its one reduction, the anchor, is tiled.

Conditions become padded copies, dimensions of groups and phases become two, and operands that lie in the way of vectors
are read through copies.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod

from modelc.ir.affine import linear
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import DTYPES, Var, variables
from modelc.space.analysis.access import Access, accesses, near, vector_iterator
from modelc.space.analysis.around import FAR_BYTES, consumers_of, output_strides, readers, reduction_of, vectors_end
from modelc.space.analysis.words import apart_words
from modelc.space.rules.dimensions import factorable
from modelc.space.rules.rule import DoesNotApply, plain_block
from modelc.space.sketches.clean import applied

LEAST_READERS = 64  # rows that read an operand, for a copy of it to pay
LEAST_SHUFFLES = 16  # rows that read vectors which are shuffled out of others, for a copy without that to pay


def padded(task: Task, stages: list[Stage]) -> Task:
    """Conditions of the reduction become padded copies of what they guard, where that computes the same."""
    for buffer in dict.fromkeys(r.buffer for r in reduction_of(task).reads):
        anchor = reduction_of(task)
        if not anchor.where:
            break
        try:
            task = applied(task, stages, "pad", block=anchor.name, buffer=buffer)
        except DoesNotApply:
            continue
    return task


def factored(task: Task, stages: list[Stage]) -> Task:
    """Dimensions that the reduction or a consumer of it indexes as `a * n + b` (groups, phases) become two, where
    storage is ours; those of a consumer, where they stay long vectors."""
    anchor = reduction_of(task).name
    for name in (b.name for b in (reduction_of(task), *consumers_of(task, reduction_of(task)))):
        accessed = plain_block(task, name)
        for buffer in dict.fromkeys(x.buffer for x in (*accessed.writes, *accessed.reads)):
            dim = 0
            while dim < len(task.buffer(buffer).shape):
                block = plain_block(task, name)
                if factorable(block, buffer, dim) and (name == anchor or not vectorised(task, block, buffer, dim)):
                    with suppress(DoesNotApply):
                        task = applied(task, stages, "factor", block=name, buffer=buffer, dim=dim)
                dim += 1
    return task


def vectorised(task: Task, writer: Block, buffer: str, dim: int) -> bool:
    """Whether a map that reads the result of `writer` vectorises along dimension `dim` of it: splitting the dimension
    would shorten its vectors."""
    for block in task.blocks[task.blocks.index(writer) + 1 :]:
        if isinstance(block, Block) and not block.reduction:
            vector = vector_iterator(block, accesses(task, block)[1])
            if vector and any(r.buffer == buffer and r.indices[dim] == Var(vector) for r in block.reads):
                return True
    return False


def pick_vector(task: Task, anchor: Block, consumer: Block, plain: dict[int, str]) -> str | None:
    """The spatial iterator to vectorise: contiguous in the output, and contiguous, absent or packable in operands.
    Words whose bytes are taken apart are a vector: as scalars, they are so for each row."""
    reads, _ = accesses(task, anchor)
    apart = apart_words(anchor)
    strides = output_strides(task, anchor, consumer, plain)

    def cost(name: str) -> tuple[int, int, int]:
        far = [r for r in reads if r.strides[name] not in (0, 1) and not packable(task, anchor, r, name)]
        odd = sum(not near(r.strides[name]) for r in far)
        odd += sum(r.load in apart and r.strides[name] == 0 for r in reads)
        return odd, 0 if strides.get(name) == 1 else 1, len(far)

    names = [i.name for i in anchor.spatial if i.extent > 1 and i.name in strides]
    names.sort(key=lambda n: (cost(n), -anchor.ranges[n]))
    return names[0] if names and cost(names[0])[0] == 0 else None


def packable(task: Task, anchor: Block, read: Access, vector: str) -> bool:
    """Whether a copy of the operand can be stored with the vector iterator innermost, and pays: the iterator indexes
    one dimension alone, and every element is read more than once."""
    alone = [i for i in read.load.indices if vector in variables(i)]
    if len(alone) != 1 or alone[0] != Var(vector):
        return False
    if read.load.buffer in task.constants:
        return True
    return prod(i.extent for i in anchor.iters if read.strides[i.name] == 0) >= 8


def packed_operands(
    task: Task, anchor: Block, vector: str, lanes: int, stages: list[Stage], unpacked: bool = False
) -> Task:
    """The Task with packed copies of computed operands: of those that are not contiguous along the vector iterator, and
    of those whose reduction steps each read a distant line, if enough rows reuse them (`unpacked`: not of the latter).
    A copy is padded to whole vectors where its last vector is read whole."""
    for read in accesses(task, anchor)[0]:
        buffer = read.load.buffer
        if buffer in task.constants:
            continue
        apart = read.strides[vector] not in (0, 1) and packable(task, anchor, read, vector)
        if apart or (not unpacked and scattered(task, anchor, read, vector)):
            task = applied(task, stages, "cache_read", block=anchor.name, buffer=buffer)
        elif near(read.strides[vector]) and readers(anchor, read) >= LEAST_SHUFFLES:
            task = deinterleaved(task, anchor, read, vector, stages)
    for read in accesses(task, plain_block(task, anchor.name))[0]:
        end = vectors_end(task, plain_block(task, anchor.name), read, vector, lanes)
        if end is not None and end[1] > task.buffer(read.load.buffer).shape[end[0]]:
            with suppress(DoesNotApply):
                task = applied(task, stages, "extend", buffer=read.load.buffer, dim=end[0], extent=end[1])
    return task


def deinterleaved(task: Task, anchor: Block, read: Access, vector: str, stages: list[Stage]) -> Task:
    """`task` with an operand whose lanes lie a few elements apart read through a copy in which they do not."""
    before, noted, buffer = task, len(stages), read.load.buffer
    steps = [form.coefficient(Var(vector)) for i in read.load.indices if (form := linear(i)) is not None]
    dims = [d for d, i in enumerate(read.load.indices) if vector in variables(i)]
    if len(dims) != 1 or len(steps) < len(read.load.indices) or steps[dims[0]] != read.strides[vector]:
        return task
    try:
        if task.buffer(buffer) not in task.locals:
            task = applied(task, stages, "cache_read", block=anchor.name, buffer=buffer)
            (buffer,) = {b.name for b in task.buffers} - {b.name for b in before.buffers}
        return applied(task, stages, "deinterleave", buffer=buffer, dim=dims[0], size=steps[dims[0]])
    except DoesNotApply:
        del stages[noted:]
        return before


def scattered(task: Task, anchor: Block, read: Access, vector: str) -> bool:
    """Whether vectors of successive reduction steps lie far apart, and are read often enough to be copied first."""
    itemsize = DTYPES[task.buffer(read.load.buffer).dtype].itemsize
    steps = [abs(s) * itemsize for i in anchor.reduction if i.extent > 1 and (s := read.strides[i.name])]
    far = bool(steps) and min(steps) >= FAR_BYTES
    return read.strides[vector] == 1 and far and readers(anchor, read) >= LEAST_READERS
