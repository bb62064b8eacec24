"""What is told of a softmax from its Blocks."""

from __future__ import annotations

from modelc.ir.block import Block
from modelc.ir.expr import Load, Op, loads, uncast


def subtracted_maximum(block: Block) -> Load | None:
    """M, where the block is the map exp(X - M); else None."""
    power = uncast(block.body[0])
    if block.aggregation != "assign" or block.where or len(block.body) > 1 or not isinstance(power, Op):
        return None
    difference = power.args[0] if power.name == "exp" else None
    if not isinstance(difference, Op) or difference.name != "sub" or not isinstance(difference.args[1], Load):
        return None
    maximum = difference.args[1]
    return maximum if [x.buffer for x in loads(power)].count(maximum.buffer) == 1 else None
