"""What lowering asks of a Leaf: how accesses move from lane to lane, which conditions guard it, what is constant."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from modelc.ir.affine import Linear, linear
from modelc.ir.expr import Const, Expr, Load, Op, Var, loads, op, operations, rewrite, variables, walk
from modelc.ir.nest import Branch, For, Leaf, Region, Stmt
from modelc.ir.nest import walk as statements


@lru_cache(maxsize=4096)
def flattened(access: Load, strides: tuple[int, ...]) -> tuple[Expr, Linear | None]:
    """The element offset of an access in terms of loop variables, and its linear form."""
    flat: Expr = Const(0)
    for index, stride in zip(access.indices, strides, strict=True):
        flat = op("add", flat, op("mul", index, stride))
    return flat, linear(flat)


def lane_step(flat: Expr, var: str) -> int | None:
    """How far one lane moves; None if lanes are not evenly apart."""
    form = linear(flat)
    if form is None:
        return None if depends(flat, var) else 0
    if any(depends(atom, var) for atom, _ in form.terms if not isinstance(atom, Var)):
        return None
    return form.coefficient(Var(var))


def depends(e: Expr, var: str) -> bool:
    return var in variables(e)


def one_condition_each(e: Expr) -> Expr | None:
    """`select(a and b, x, fill)` as `select(a, select(b, x, fill), fill)`."""
    if not (isinstance(e, Op) and e.name == "select"):
        return None
    result = e.args[1]
    for condition in reversed(conjuncts(e.args[0])):
        result = Op("select", (condition, result, e.args[2]))
    return result


def conjuncts(e: Expr) -> list[Expr]:
    return [c for a in e.args for c in conjuncts(a)] if isinstance(e, Op) and e.name == "and" else [e]


def selects_by_lanes(leaf: Leaf, var: str) -> tuple[Leaf, list[Expr], list[Op]]:
    """A Leaf with one condition in each select; the inequalities of its selects over loads that differ from lane to
    lane; and all selects whose conditions do."""
    if not any("select" in operations(b) for b in leaf.body):
        return leaf, [], []
    split = replace(leaf, body=tuple(rewrite(b, one_condition_each) for b in leaf.body))
    every = [x for b in split.body for x in walk(b) if isinstance(x, Op) and x.name == "select"]
    selects = [x for x in every if depends(x.args[0], var)]
    return split, [x.args[0] for x in selects if loads(x.args[1]) and is_inequality(x.args[0], var)], selects


def is_inequality(e: Expr, var: str) -> bool:
    """Whether a condition orders two index expressions that grow, fall or stay from lane to lane: of a row of lanes the
    first and the last decide."""
    return isinstance(e, Op) and e.name in ("lt", "le", "gt", "ge") and all(_moves(a, var) is not None for a in e.args)


def holds_from_first(e: Expr, var: str) -> bool:
    """Whether a condition that some lane meets is met by every lane before it."""
    if not isinstance(e, Op) or e.name not in ("lt", "le"):
        return False
    low, high = (_moves(a, var) for a in e.args)
    return low is not None and low > 0 and high == 0


def _moves(e: Expr, var: str) -> int | None:
    """By how much an index expression is more from lane to lane; None where not each time by as much."""
    form = linear(e)
    if form is None or any(depends(atom, var) for atom, _ in form.terms if atom != Var(var)):
        return None
    return form.coefficient(Var(var))


def guarded_value(e: Expr, var: str) -> tuple[list[Expr], Expr, Expr] | None:
    """`select(a, select(b, x, fill), fill)` as ([a, b], x, fill), for conditions that are the same for all lanes."""
    conditions: list[Expr] = []
    fill: Expr | None = None
    while isinstance(e, Op) and e.name == "select" and (fill is None or e.args[2] == fill):
        if depends(e.args[0], var):
            break
        conditions.append(e.args[0])
        fill, e = e.args[2], e.args[1]
    return None if fill is None else (conditions, e, fill)


def first_sides(e: Expr, guards: list[Expr]) -> Expr:
    return rewrite(e, lambda x: x.args[1] if isinstance(x, Op) and x.name == "select" and x.args[0] in guards else None)


def slot_pieces(start: int, lanes: int, width: int) -> list[tuple[int, int, int]]:
    """(slot, offset, count) of the slots that [start, start + lanes) covers."""
    result = []
    while lanes:
        count = min(lanes, width - start % width)
        result.append((start // width, start % width, count))
        start, lanes = start + count, lanes - count
    return result


def slot_width(region: Region, body: tuple[Stmt, ...], most: int) -> int:
    """How many elements of a row of `region` make a slot: as many as can be of those that divide it, at most `most`,
    and of these such that no vector of `body` lies across two, if there are any."""
    last = region.shape[-1] if region.shape else 1
    widths = [w for w in range(min(most, last), 0, -1) if last % w == 0]
    vectors = vectors_along(region.name, body)
    return next((w for w in widths if all(w % n == 0 for n in vectors)), widths[0])


def vectors_along(name: str, body: tuple[Stmt, ...]) -> set[int]:
    """Lanes of the vectors in `body` that go along the last dimension of `name`."""
    loops = [s for s in statements(body) if isinstance(s, For) and (s.tag == "vector" or s.intrinsic)]
    return {
        loop.extent
        for loop in loops
        for leaf in statements(loop.body)
        if isinstance(leaf, Leaf)
        for x in (*leaf.writes, *(e for b in leaf.body for e in loads(b)))
        if x.buffer == name and depends(x.indices[-1], loop.var)
    }


def accesses(leaf: Leaf) -> list[Load]:
    exprs = (*leaf.body, *leaf.where, *leaf.writes)
    return [x for e in exprs for x in loads(e)]


def indexed_by_constants(name: str, body: tuple[Stmt, ...]) -> bool:
    """Whether every access to `name` in `body` has constant indices once loops are unrolled."""
    fixed: set[str] = set()

    def check(stmts: tuple[Stmt, ...]) -> bool:
        for s in stmts:
            if isinstance(s, For):
                if s.tag in ("unroll", "vector") or s.intrinsic:
                    fixed.add(s.var)
                else:
                    fixed.discard(s.var)
                if not check(s.body):
                    return False
            elif isinstance(s, Branch):
                if not (check(s.then) and check(s.otherwise)):
                    return False
            elif isinstance(s, Leaf):
                for access in accesses(s):
                    if access.buffer == name and any(variables(i) - fixed for i in access.indices):
                        return False
        return True

    return check(body)
