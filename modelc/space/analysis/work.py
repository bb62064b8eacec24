"""What a Block computes, counted in operations, and what a Task reaches of its buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, children, dtype_of, variables
from modelc.ir.scalar import DOTS, OPERATIONS


def block_flops(block: Block) -> int:
    """Operations on values; a multiplication and the addition that combines it are two, also those of numbers in
    words."""
    combining = len(block.body) if block.reduction else 0
    counted = [op for e in block.body for op in _operations(e) if not _is_free(op) and not _bounds(op)]
    return block.points() * (combining + sum(8 * DOTS[op.name] - 1 if op.name in DOTS else 1 for op in counted))


def _is_free(e: Op) -> bool:
    return OPERATIONS[e.name].cost == "free" or OPERATIONS[e.name].rounding == "compares"


def _bounds(e: Op) -> bool:
    """Whether it says within which bounds small whole numbers are, for who needs to know."""
    return e.name in ("min", "max") and isinstance(e.args[1], Const) and e.args[1].dtype in ("int8", "int16")


def _operations(e: Expr) -> Iterator[Op]:
    """The operations on values: not those inside indices."""
    if isinstance(e, Load):
        return
    if isinstance(e, Op):
        yield e
    for child in children(e):
        yield from _operations(child)


def executed_dtype(block: Block, dtypes: Mapping[str, str]) -> str:
    """The dtype of the multiplications of a contraction in plain vectors, else of the result; int8 for words of
    bytes."""
    for e in block.body:
        for operation in _operations(e):
            if operation.name in DOTS:
                return "int8"
            if operation.name == "mul" and block.reduction:
                return dtype_of(operation, dtypes)
    return dtype_of(block.body[0], dtypes)


def reached_bytes(task: Task, name: str) -> int:
    """At the least, of a buffer: every element that is addressed crosses the boundary once."""
    buffer = task.buffer(name)
    blocks = [block for block in task.blocks if isinstance(block, Block)]
    accesses = ((block, load) for block in blocks for load in (*block.writes, *block.reads) if load.buffer == name)
    elements = sum(_places(block, load) for block, load in accesses)
    return min(prod(buffer.shape), elements) * DTYPES[buffer.dtype].itemsize


def _places(block: Block, load: Load) -> int:
    """Elements that an access can reach, one for each point of the iterators in its indices."""
    used = {name for index in load.indices for name in variables(index)}
    return prod(extent for name, extent in block.ranges.items() if name in used)
