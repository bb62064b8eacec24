"""The verifiers of Blocks, Tasks and Nests: what a pass has to leave behind.

All raise InvalidIR with a sentence that begins with `where`: the pass and the place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modelc.ir.block import Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.check import accesses, fail, identifiers, inside, statements, static, unsure, uses
from modelc.ir.expr import Expr, Load, Var, loads, show, variables
from modelc.ir.points import TooLarge, boxes, image, remainder
from modelc.ir.verify_nest import verify_nest

# --- Blocks -------------------------------------------------------------------------------------------------------


def verify_block(block: Block, buffers: Mapping[str, Buffer], where: str = "") -> None:
    """Checks one Block over the buffers it names."""
    where = f"{where}, block {block.name}" if where else f"block {block.name}"
    identifiers([i.name for i in block.iters], "iterator", where)
    statements(block, block.ranges, {name: (b.dtype, b.shape) for name, b in buffers.items()}, where)
    if block.aggregation == "assign" and block.reduction:
        fail(where, f"an assign does not reduce over {block.reduction[0].name!r}")
    for write, value in zip(block.writes, block.body, strict=True):
        for it in block.reduction:
            if it.name in variables(write):
                fail(where, f"{show(write)} is indexed by the reduction iterator {it.name!r}")
        shape = buffers[write.buffer].shape
        _injective(write, shape, block, where)
        inside(write, shape, block.ranges, block.where, "written", where)
        for index in write.indices:
            _reads_inside(index, block, buffers, (), where)
        _reads_inside(value, block, buffers, block.where, where)
    for condition in block.where:
        _reads_inside(condition, block, buffers, (), where)


def _reads_inside(e: Expr, block: Block, buffers: Mapping[str, Buffer], guards: tuple[Expr, ...], where: str) -> None:
    for load, conditions in accesses(e, guards):
        inside(load, buffers[load.buffer].shape, block.ranges, conditions, "read", where)


def _injective(write: Load, shape: Sequence[int], block: Block, where: str) -> None:
    """Every spatial point writes an element of its own."""
    if any(loads(i) for i in write.indices):
        return
    spatial = {i.name: i.extent for i in block.spatial}
    conditions = static(block.where) if block.aggregation == "assign" else unsure(write, shape, spatial)
    for it in block.spatial:
        if it.extent > 1 and it.name not in variables(write).union(*map(variables, conditions)):
            fail(where, f"{show(write)} does not depend on {it.name!r}: its {it.extent} points write one element")
    try:
        if not image(write.indices, spatial, conditions).injective:
            fail(where, f"two points of {iterators(block.spatial)} write one element through {show(write)}")
    except TooLarge:
        return


def iterators(iters: Sequence[Iter]) -> str:
    return f"[{' '.join(map(str, iters))}]"


# --- Tasks --------------------------------------------------------------------------------------------------------


def verify_task(task: Task, where: str = "") -> None:
    """Checks a Task: its buffers, the order in which they are written and read, every Block."""
    where = f"{where}: task {task.name}" if where else f"task {task.name}"
    identifiers([b.name for b in task.buffers], "buffer", where)
    names = [b.name for b in task.blocks]
    for name in names:
        if names.count(name) > 1:
            fail(where, f"block {name!r} is there twice")
    if task.anchor not in names:
        fail(where, f"the anchor {task.anchor!r} is no block")
    buffers = {b.name: b for b in task.buffers}
    for kind, listed in (("input", task.inputs), ("output", task.outputs)):
        for name in listed:
            if name not in buffers:
                fail(where, f"{kind} {name!r} is no buffer")
            if listed.count(name) > 1:
                fail(where, f"{kind} {name!r} is there twice")
    for name in sorted(task.constants):
        if name not in task.inputs:
            fail(where, f"constant {name!r} is no input")
    for buffer in task.buffers:
        _stored(buffer, where)
    defined = set(task.inputs)
    for block in task.blocks:
        place = f"{where}, block {block.name}"
        reads, writes = uses(block)
        for name in (*reads, *writes):
            if name not in buffers:
                fail(place, f"unknown buffer {name!r}")
        for name in reads:
            if name not in defined:
                fail(place, f"{name} is read before any block writes it")
        for name in writes:
            if name in task.inputs and name not in task.outputs:
                fail(place, f"input {name} is written")
        if isinstance(block, Block):
            verify_block(block, buffers, where)
        defined.update(writes)
    for name in task.outputs:
        if name not in {w for b in task.blocks for w in uses(b)[1]}:
            fail(where, f"output {name} is never written")
        if name not in task.inputs:
            _covered(task, buffers[name], where)


def _stored(buffer: Buffer, where: str) -> None:
    try:
        shape = buffer.physical_shape
    except ValueError as error:
        fail(where, f"buffer {buffer.name}: {error}")
    if buffer.strides is not None and len(buffer.strides) != len(shape):
        fail(where, f"buffer {buffer.name} has {len(buffer.strides)} strides for {len(shape)} stored dimensions")


def _covered(task: Task, buffer: Buffer, where: str) -> None:
    """Every element of an output is written by some Block, as far as its accesses are affine."""
    written = []
    whole = {f"d{k}": n for k, n in enumerate(buffer.shape)}
    try:
        for block in task.blocks:
            if isinstance(block, OpaqueBlock):
                if buffer.name in block.outputs:
                    return
                continue
            spatial = {i.name: i.extent for i in block.spatial}
            for write in block.writes:
                if write.buffer != buffer.name:
                    continue
                if any(loads(i) for i in write.indices):
                    return
                plain = block.aggregation == "assign"
                conditions = static(block.where) if plain else unsure(write, buffer.shape, spatial)
                written.append(image(write.indices, spatial, conditions))
        frame, (full, *parts) = boxes([image(list(map(Var, whole)), whole), *written], len(whole))
        left = remainder(full, parts)
    except TooLarge:
        return
    if left:
        fail(where, f"element {list(frame.point(left[0]))} of output {buffer.name} is never written")


__all__ = ["verify_block", "verify_nest", "verify_task"]
