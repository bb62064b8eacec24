"""What the verifiers check of any expression and access: names, dtypes, bounds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import NoReturn

from modelc.errors import InvalidIR
from modelc.ir.affine import bounds
from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, OpaqueBlock
from modelc.ir.expr import DTYPES, FLOATS, INTEGERS, Const, Expr, Load, Op, Size, Var, loads, op, show, variables
from modelc.ir.nest import Leaf
from modelc.ir.points import TooLarge, image
from modelc.ir.scalar import OPERATIONS

Stored = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape
OPERANDS = {"float": FLOATS, "bits": (*INTEGERS, "bool"), "bool": ("bool",), "int32": ("int32",)}  # by ScalarRow.takes


def fail(where: str, message: str) -> NoReturn:
    raise InvalidIR(f"{where}: {message}" if where else message)


def typed(e: Expr, iterators: Collection[str], stored: Stored, where: str) -> str:
    """The dtype of an expression over the variables `iterators`; checks names, operand counts and dtypes."""
    if isinstance(e, Var):
        return "int64" if e.name in iterators else fail(where, f"unknown iterator {e.name!r}")
    if isinstance(e, Size):
        return "int64"
    if isinstance(e, Const):
        return e.dtype
    if isinstance(e, Load):
        if e.buffer not in stored:
            fail(where, f"unknown buffer {e.buffer!r}")
        dtype, shape = stored[e.buffer]
        if len(e.indices) != len(shape):
            fail(where, f"{show(e)} has {len(e.indices)} indices, and {e.buffer} has {len(shape)} dimensions")
        for index in e.indices:
            if (kind := typed(index, iterators, stored, where)) != "int64":
                fail(where, f"index {show(index)} of {e.buffer} is {kind}, expected int64")
        return dtype
    if e.name not in OPERATIONS:
        fail(where, f"unknown operation {e.name!r}")
    operation = OPERATIONS[e.name]
    if len(e.args) != operation.arity:
        fail(where, f"{e.name} takes {operation.arity} operands, found {len(e.args)}")
    kinds = [typed(a, iterators, stored, where) for a in e.args]
    if e.name == "cast":
        return e.dtype or fail(where, f"a cast of {show(e.args[0])} to no dtype")
    if e.name == "bits":
        if e.dtype is None or DTYPES[e.dtype].itemsize != DTYPES[kinds[0]].itemsize or "bool" in (e.dtype, kinds[0]):
            fail(where, f"the bits of {show(e.args[0])}, which is {kinds[0]}, are none of {e.dtype}")
        return e.dtype
    if e.name == "select" and kinds.pop(0) != "bool":
        fail(where, f"the condition {show(e.args[0])} is no bool")
    if len(set(kinds)) > 1:
        fail(where, f"{show(e)} mixes {' and '.join(kinds)}")
    if kinds[0] not in OPERANDS.get(operation.takes, kinds):
        fail(where, f"{show(e)} takes {', '.join(OPERANDS[operation.takes])}, found {kinds[0]}")
    return "bool" if operation.result == "bool" else kinds[0]


def uses(block: AnyBlock) -> tuple[list[str], list[str]]:
    """The names of the buffers that a Block reads and writes."""
    if isinstance(block, OpaqueBlock):
        return list(block.inputs), list(block.outputs)
    return [r.buffer for r in block.reads], [w.buffer for w in block.writes]


def statements(leaf: Block | Leaf, iterators: Collection[str], stored: Stored, where: str) -> None:
    """Checks the aggregation of a Block or Leaf, its conditions, and that what it writes is of the buffers' dtypes."""
    if leaf.aggregation not in AGGREGATIONS:
        fail(where, f"unknown aggregation {leaf.aggregation!r}; known are {', '.join(AGGREGATIONS)}")
    arity, writes, values = AGGREGATIONS[leaf.aggregation].arity, len(leaf.writes), len(leaf.body)
    maps = leaf.aggregation == "assign" and writes == values >= 1  # a map may write several
    if not maps and (writes, values) != (arity, arity):
        fail(where, f"{leaf.aggregation} has {arity} writes, found {writes} for {values} values")
    for condition in leaf.where:
        if (dtype := typed(condition, iterators, stored, where)) != "bool":
            fail(where, f"condition {show(condition)} is {dtype}, expected bool")
    for write, value in zip(leaf.writes, leaf.body, strict=True):
        kept, dtype = typed(write, iterators, stored, where), typed(value, iterators, stored, where)
        if kept != dtype:
            fail(where, f"{dtype} is written to {write.buffer}, which is {kept}")


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
    access: Load,
    shape: Sequence[int],
    ranges: Mapping[str, int],
    guards: tuple[Expr, ...],
    verb: str,
    where: str,
    shown: str = "",
) -> None:
    """Checks that an access stays in its buffer wherever its guards hold; indices that are data are not checked."""
    if 0 in ranges.values():
        return
    for d, (index, n) in enumerate(zip(access.indices, shape, strict=True)):
        limits = bounds(index, ranges)
        if loads(index) or (limits is not None and limits[0] >= 0 and limits[1] < n):
            continue
        if len(static(guards)) < len(guards):  # data may exclude it
            continue
        try:
            reached = image([index], _near(index, guards, ranges), guards)
        except TooLarge:
            continue
        low, high = (0, -1) if reached.empty else reached.limits[0]
        if low < 0 or high >= n:
            fail(where, f"{shown or show(access)} is {verb} at {low}..{high} of dimension {d}, which has {n} elements")


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


def unsure(access: Load, shape: Sequence[int], ranges: Mapping[str, int]) -> tuple[Expr, ...]:
    """The conditions for an access to stay in its buffer that are not certain; data is taken to be in range."""
    conditions: list[Expr] = []
    for index, n in zip(access.indices, shape, strict=True):
        if not loads(index):
            low, high = bounds(index, ranges) or (-1, n)
            conditions += [op("ge", index, 0)] * (low < 0) + [op("lt", index, n)] * (high >= n)
    return tuple(conditions)
