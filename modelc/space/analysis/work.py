"""What a Block computes, counted in operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modelc.ir.block import Block
from modelc.ir.expr import Expr, Load, Op, children, dtype_of

_FREE = {"cast", "select", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not"}


def block_flops(block: Block) -> int:
    """Operations on values; a multiplication and the addition that combines it are two."""
    combining = len(block.body) if block.reduction else 0
    return block.points() * (combining + sum(op.name not in _FREE for e in block.body for op in _operations(e)))


def _operations(e: Expr) -> Iterator[Op]:
    """The operations on values: not those inside indices."""
    if isinstance(e, Load):
        return
    if isinstance(e, Op):
        yield e
    for child in children(e):
        yield from _operations(child)


def executed_dtype(block: Block, dtypes: Mapping[str, str]) -> str:
    """The dtype of the multiplications of a contraction in plain vectors, else of the result."""
    for e in block.body:
        for operation in _operations(e):
            if operation.name == "mul" and block.reduction:
                return dtype_of(operation, dtypes)
    return dtype_of(block.body[0], dtypes)
