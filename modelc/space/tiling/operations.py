"""Vector operations of what a Block computes at one point, beside its loads and stores."""

from __future__ import annotations

from collections.abc import Collection

from modelc.ir.block import Block, Task
from modelc.ir.expr import FLOATS, Const, Expr, Load, Op, children, loads
from modelc.ir.scalar import DOTS, OPERATIONS
from modelc.target import CostParameters


def operations(task: Task, block: Block, cost: CostParameters) -> float:
    """Vector operations of one point of `block`; a product that is added counts once."""
    dtype = task.buffer(block.writes[0].buffer).dtype
    extreme = cost.extreme_operations if dtype in FLOATS else 1.0
    count = sum(_counted(e, cost.slow_cycles, extreme) for e in block.body)
    if block.aggregation in ("max", "min"):
        return count + extreme * len(block.body)
    if block.reduction and dtype not in FLOATS:  # no instruction multiplies whole numbers of 32 bits and adds as well
        return count + cost.integer_add_operations * len(block.body)
    return max(1.0, count) if block.reduction else count


def shared_operations(block: Block, cost: CostParameters, still: Collection[Load]) -> float:
    """The part of them on what the Loads `still` give alone: done once for all points that these are the same at."""

    def counted(e: Expr) -> float:
        if {*loads(e)} <= {*still}:
            return _counted(e, cost.slow_cycles, cost.extreme_operations)
        return sum(counted(c) for c in children(e)) if isinstance(e, Op) else 0.0

    return sum(counted(e) for e in block.body)


def cast_before(block: Block, load: Load) -> bool:
    """Whether `block` takes what `load` gives in another dtype."""
    return any(e.name == "cast" and load in e.args for e in block.operations)


def _counted(e: Expr, slow: float, extreme: float) -> float:
    """Vector operations on what is loaded: neither indices, nor the conditions of padding, cost a vector anything."""
    if isinstance(e, Load) or not isinstance(e, Op) or not loads(e):
        return 0.0
    cost = OPERATIONS[e.name].cost
    own = {"slow": slow, "free": 0.0}.get(cost, 1.0)
    if cost == "extreme" and not any(isinstance(a, Const) for a in e.args):
        own = extreme
    if e.name in DOTS:
        own = len(e.args) - 1.0  # a product of each pair, and their sum
    return own + sum(_counted(c, slow, extreme) for c in children(e))
