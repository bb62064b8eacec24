"""Windows over maps of one element: which tap meets it is known at every point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from modelc.ir.affine import Linear, bounds, linear
from modelc.ir.block import Block, Iter
from modelc.ir.expr import Const, Expr, Load, Op, Var
from modelc.ops.operator import tidy, within


def single_taps(block: Block) -> Block:
    """`block` without steps of those reduction iterators of which its conditions hold for one value at most, at every
    point; that is put in their place.

        [o h:4 | c r:4] Y[o,h] += X[c,h-r] * W[c,o,r]   where 0 <= h-r < 1
        [o h:4 | c r:1] Y[o,h] += X[c,0] * W[c,o,h]
    """
    for iterator in block.reduction:
        if iterator.extent > 1 and (tapped := _solved(block, iterator)) is not None:
            return single_taps(tapped)
    return block


def _solved(block: Block, iterator: Iter) -> Block | None:
    """`block` where `iterator` is what the conditions on an index leave of it; None where none leaves a single
    value."""
    for index in dict.fromkeys(c.args[0] for c in block.where if isinstance(c, Op) and c.name in ("ge", "lt")):
        form, limits = linear(index), bounds(index, block.ranges)
        sign = form.coefficient(Var(iterator.name)) if form is not None else 0
        if form is None or limits is None or abs(sign) != 1:
            continue
        low, high = float(limits[0]), float(limits[1])
        left: list[Expr] = []
        for condition in block.where:
            limit = _limit(condition, index)
            if limit is None:
                left.append(condition)
            else:
                low, high = max(low, limit[0]), min(high, limit[1])
        if low != high:
            continue
        solution = Linear(
            tuple((x, -sign * c) for x, c in form.terms if x != Var(iterator.name)), sign * (int(low) - form.constant)
        )
        iters = tuple(replace(i, extent=1) if i is iterator else i for i in block.iters)
        tap = tidy(solution.expr(), iters)

        solved = replace(block, iters=iters, where=tuple(left)).mapped(partial(_put, iterator.name, tap))
        solved = solved.mapped(partial(_tidied, iters))
        return replace(solved, where=(*solved.where, *within(tap, iterator.extent, solved.ranges)))
    return None


def _put(name: str, value: Expr, e: Expr) -> Expr | None:
    return value if e == Var(name) else None


def _tidied(iters: Sequence[Iter], e: Expr) -> Expr | None:
    return Load(e.buffer, tuple(tidy(i, iters) for i in e.indices)) if isinstance(e, Load) else None


def _limit(condition: Expr, index: Expr) -> tuple[float, float] | None:
    """The least and the greatest value that a condition leaves `index`; None if it is of something else."""
    if not isinstance(condition, Op) or condition.name not in ("ge", "lt") or condition.args[0] != index:
        return None
    by = condition.args[1]
    if not isinstance(by, Const):
        return None
    value = float(by.value)
    return (value, float("inf")) if condition.name == "ge" else (float("-inf"), value - 1)
