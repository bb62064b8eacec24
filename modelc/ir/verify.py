"""The verifier of Blocks and Tasks; what is checked of any expression and access, for Nests too.

All raise InvalidIR with a sentence that begins with `where`: the pass and the place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import NoReturn

from modelc.errors import InvalidIR
from modelc.ir.affine import bounds
from modelc.ir.block import AGGREGATIONS, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import FLOATS, INTEGERS, OPERATIONS, Const, Expr, Load, Op, Var, loads, op, show, variables
from modelc.ir.points import TooLarge, boxes, image, remainder

Stored = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
BITS = ("bitand", "bitor", "bitxor", "bitnot", "shl", "shr")
FLOATING = (
    *("floor", "ceil", "round", "sqrt", "exp", "log", "erf", "tanh", "sigmoid", "softplus", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "isnan", "isinf"),
)
OPERANDS = {
    **{name: ("bool",) for name in ("and", "or", "xor", "not")},
    **{name: (*INTEGERS, "bool") for name in BITS},
    **{name: FLOATS for name in FLOATING},
}


def fail(where: str, message: str) -> NoReturn:
    raise InvalidIR(f"{where}: {message}" if where else message)


# --- expressions and accesses -------------------------------------------------------------------------------------


def typed(e: Expr, known: Collection[str], stored: Stored, where: str) -> str:
    """The dtype of an expression over the variables `known`; checks names, operand counts and dtypes."""
    if isinstance(e, Var):
        return "int64" if e.name in known else fail(where, f"unknown iterator {e.name!r}")
    if isinstance(e, Const):
        return e.dtype
    if isinstance(e, Load):
        if e.buffer not in stored:
            fail(where, f"unknown buffer {e.buffer!r}")
        dtype, shape = stored[e.buffer]
        if len(e.indices) != len(shape):
            fail(where, f"{show(e)} has {len(e.indices)} indices, and {e.buffer} has {len(shape)} dimensions")
        for index in e.indices:
            if (found := typed(index, known, stored, where)) != "int64":
                fail(where, f"index {show(index)} of {e.buffer} is {found}, expected int64")
        return dtype
    if e.name not in OPERATIONS:
        fail(where, f"unknown operation {e.name!r}")
    operation = OPERATIONS[e.name]
    if len(e.args) != operation.arity:
        fail(where, f"{e.name} takes {operation.arity} operands, found {len(e.args)}")
    kinds = [typed(a, known, stored, where) for a in e.args]
    if e.name == "cast":
        return e.dtype or fail(where, f"a cast of {show(e.args[0])} to no dtype")
    if e.name == "select" and kinds.pop(0) != "bool":
        fail(where, f"the condition {show(e.args[0])} is no bool")
    if len(set(kinds)) > 1:
        fail(where, f"{show(e)} mixes {' and '.join(kinds)}")
    if kinds[0] not in OPERANDS.get(e.name, kinds):
        fail(where, f"{show(e)} takes {', '.join(OPERANDS[e.name])}, found {kinds[0]}")
    return "bool" if operation.result == "bool" else kinds[0]


def accesses(e: Expr, guards: tuple[Expr, ...] = ()) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Every Load of `e` with the conditions under which its value counts: `guards` and those of selects around it."""
    if isinstance(e, Load):
        yield e, guards
        for index in e.indices:
            yield from accesses(index, guards)
    elif isinstance(e, Op) and e.name == "select":
        yield from accesses(e.args[0], guards)
        yield from accesses(e.args[1], (*guards, e.args[0]))
        yield from accesses(e.args[2], (*guards, Op("not", (e.args[0],))))
    elif isinstance(e, Op):
        for a in e.args:
            yield from accesses(a, guards)


def static(conditions: Sequence[Expr]) -> tuple[Expr, ...]:
    """The conditions that depend on iterators alone."""
    return tuple(c for c in conditions if not loads(c))


def inside(
    access: Load, shape: Sequence[int], ranges: Mapping[str, int], guards: tuple[Expr, ...], verb: str, where: str
) -> None:
    """Checks that an access stays in its buffer wherever its guards hold; indices that are data are not checked."""
    for d, (index, n) in enumerate(zip(access.indices, shape, strict=True)):
        limits = bounds(index, ranges)
        if loads(index) or (limits is not None and limits[0] >= 0 and limits[1] < n):
            continue
        if len(static(guards)) < len(guards):  # data may exclude it
            continue
        try:
            found = image([index], _near(index, guards, ranges), guards)
        except TooLarge:
            continue
        low, high = (0, 0) if found.empty else found.limits(0)
        if low < 0 or high >= n:
            fail(where, f"{show(access)} is {verb} at {low}..{high} of dimension {d}, which has {n} elements")


def _near(index: Expr, guards: Sequence[Expr], ranges: Mapping[str, int]) -> dict[str, int]:
    """The iterators of an index and its guards."""
    names = variables(index).union(*(variables(g) for g in guards))
    return {name: n for name, n in ranges.items() if name in names}


def identifiers(names: Sequence[str], kind: str, where: str) -> None:
    """Names that the text form can carry, each once."""
    for name in names:
        if not name.isidentifier() or iskeyword(name) or name in ("inf", "nan"):
            fail(where, f"{kind} {name!r} is no identifier")
        if names.count(name) > 1:
            fail(where, f"{kind} {name!r} is there twice")


# --- Blocks -------------------------------------------------------------------------------------------------------


def verify_block(block: Block, buffers: Mapping[str, Buffer], where: str = "") -> None:
    """Checks one Block over the buffers it names."""
    where = f"{where}, block {block.name}" if where else f"block {block.name}"
    identifiers([i.name for i in block.iters], "iterator", where)
    if block.aggregation not in AGGREGATIONS:
        fail(where, f"unknown aggregation {block.aggregation!r}; known are {', '.join(AGGREGATIONS)}")
    arity = AGGREGATIONS[block.aggregation].arity
    if (len(block.writes), len(block.body)) != (arity, arity):
        fail(where, f"{block.aggregation} has {arity} writes, found {len(block.writes)} for {len(block.body)} values")
    if block.aggregation == "assign" and block.reduction:
        fail(where, f"an assign does not reduce over {block.reduction[0].name!r}")
    stored = {name: (b.dtype, b.shape) for name, b in buffers.items()}
    for condition in block.where:
        if (dtype := typed(condition, block.ranges, stored, where)) != "bool":
            fail(where, f"condition {show(condition)} is {dtype}, expected bool")
    for write, value in zip(block.writes, block.body, strict=True):
        kept, found = typed(write, block.ranges, stored, where), typed(value, block.ranges, stored, where)
        if kept != found:
            fail(where, f"{found} is written to {write.buffer}, which is {kept}")
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
    conditions = static(block.where) if block.aggregation == "assign" else _within(write, shape, spatial)
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
        reads, writes = _uses(block)
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
        if name not in {w for b in task.blocks for w in _uses(b)[1]}:
            fail(where, f"output {name} is never written")
        if name not in task.inputs:
            _covered(task, buffers[name], where)


def _uses(block: Block | OpaqueBlock) -> tuple[list[str], list[str]]:
    """Names of the buffers read and written."""
    if isinstance(block, OpaqueBlock):
        return list(block.inputs), list(block.outputs)
    return [r.buffer for r in block.reads], [w.buffer for w in block.writes]


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
                conditions = static(block.where) if plain else _within(write, buffer.shape, spatial)
                written.append(image(write.indices, spatial, conditions))
        frame, (full, *parts) = boxes([image(list(map(Var, whole)), whole), *written], len(whole))
        left = remainder(full, parts)
    except TooLarge:
        return
    if left:
        fail(where, f"element {list(frame.point(left[0]))} of output {buffer.name} is never written")


def _within(access: Load, shape: Sequence[int], ranges: Mapping[str, int]) -> tuple[Expr, ...]:
    """The conditions for an access to be inside its buffer that are not certain."""
    found: list[Expr] = []
    for index, n in zip(access.indices, shape, strict=True):
        low, high = bounds(index, ranges) or (-1, n)
        found += [op("ge", index, 0)] * (low < 0) + [op("lt", index, n)] * (high >= n)
    return tuple(found)
