"""Loops tagged `pipeline` -> plain loops in which the maps that end one iteration run beside the reduction of the next.

    pipeline t:4                     local acc
      local acc                      init, reduce, acc = sums         (of tile 0)
      init                           for t:3
      for k: reduce                    init
      acc = sums              ->       for k: reduce                  (of tile t + 1)
      Y = map of acc                          Y = map of acc          (of tile t, a share of its rows)
                                       acc = sums
                                     Y = map of acc                   (of tile 3)

What the maps read was stored a while ago, and units that multiply tiles work beside those that work on vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from modelc.codegen.intrinsics.applications import alike_loops
from modelc.codegen.lower.leaves import accesses
from modelc.codegen.lower.transpose import crossing_moves
from modelc.ir.expr import Const, Expr, Var, op, substitute, variables
from modelc.ir.nest import Alloc, Branch, For, Leaf, Prefetch, Stmt, walk

Body = tuple[Stmt, ...]


def pipelined(loop: For) -> Body:
    """The statements that a loop tagged `pipeline` becomes; itself as a plain loop, where iterations depend on one
    another, or nothing follows the reduction."""
    flat = _flat(loop)
    stages = _stages(flat.body)
    if stages is None or flat.extent == 1:
        return (replace(loop, tag="for"),)
    loop, index = flat, Var(flat.var)
    first = substituted(stages.body, {loop.var: Const(0)})
    then = _beside(substituted(stages.compute, {loop.var: op("add", index, 1)}), stages.maps)
    store = substituted(stages.store, {loop.var: op("add", index, 1)})
    last = substituted(stages.maps, {loop.var: Const(loop.extent - 1)})
    return (*stages.kept, *first, For(loop.var, loop.extent - 1, (*then, *store)), *last)


def _flat(loop: For) -> For:
    """Loops of which each is all that the one around it does, as one."""
    loops = alike_loops(loop)
    extent = prod(x.extent for x in loops)
    body = substituted(loops[-1].body, _digits(loops, Var(loop.var))) if len(loops) > 1 else loop.body
    return replace(loop, extent=extent, body=body)


def _digits(loops: Sequence[For], position: Expr) -> dict[str, Expr]:
    """The iteration of each loop at a position in all of them."""
    values, size = dict[str, Expr](), prod(x.extent for x in loops)
    for x in loops:
        size //= x.extent
        place = op("floordiv", position, size)
        values[x.var] = place if x is loops[0] else op("mod", place, x.extent)
    return values


@dataclass(frozen=True)
class _Stages:
    """The body of a loop: storage that lasts from one iteration into the next; what computes; what stores the sums
    there; and the maps of them."""

    kept: Body
    compute: Body
    store: Body
    maps: Body

    @property
    def body(self) -> Body:
        return (*self.compute, *self.store)


def _stages(body: Body) -> _Stages | None:
    """The stages of a body; None where it has none such, or where a map touches what the next iteration computes."""
    kept = tuple(s for s in body if isinstance(s, Alloc) and s.scope == "local")
    stmts = [s for s in body if s not in kept]
    local = {s.region.name for s in kept}
    end = len(stmts)
    while end and not isinstance(stmts[end - 1], Alloc) and not _written(stmts[end - 1 : end]) & local:
        end -= 1
    begin = end
    while begin and not any(isinstance(s, Leaf) and s.part == "update" for s in walk((stmts[begin - 1],))):
        begin -= 1
    stages = _Stages(kept, tuple(stmts[:begin]), tuple(stmts[begin:end]), tuple(stmts[end:]))
    read, written = _read(stages.maps), _written(stages.maps)
    apart = not written & (_read(stages.body) | _written(stages.body)) and not read & _written(stages.compute)
    return stages if stages.compute and stages.maps and apart and not written & read else None


def _read(body: Iterable[Stmt]) -> set[str]:
    """The buffers that are read, reductions' own results among them."""
    leaves = [s for s in walk(tuple(body)) if isinstance(s, Leaf)]
    return {x.buffer for s in leaves for x in accesses(s) if s.part == "update" or x not in s.writes}


def _written(body: Iterable[Stmt]) -> set[str]:
    return {w.buffer for s in walk(tuple(body)) if isinstance(s, Leaf) for w in s.writes}


# --- maps beside a reduction ------------------------------------------------------------------------------------------


def _beside(compute: Body, maps: Body) -> Body:
    """`compute`, with a share of `maps` in every iteration of its reduction, and what is left after it."""
    *before, reduction = compute
    loops = _chain(reduction)
    taken = {s.var for s in walk(compute) if isinstance(s, For)}
    shares = [_shares(_renamed(s, taken), [(x.var, x.extent) for x in loops]) for s in maps]
    inside = tuple(s for share, _ in shares for s in share)
    after = tuple(s for _, left in shares for s in left)
    for loop in reversed(loops):
        reduction = replace(loop, body=(*loop.body[:-1], reduction) if loop is not loops[-1] else (*loop.body, *inside))
    return (*before, reduction, *(after if loops else inside + after))


def _chain(stmt: Stmt) -> list[For]:
    """The loops of a reduction, as far as each is all that the one around it does."""
    loops: list[For] = []
    while isinstance(stmt, For) and stmt.tag == "for":
        loops.append(stmt)
        hints, stmt = stmt.body[:-1], stmt.body[-1]
        if not all(isinstance(s, Prefetch) for s in hints):
            break
    return loops


def _crossing(loop: For) -> bool:
    """Whether a loop moves what is stored across its vectors: all of its rows are needed for that."""
    moves = crossing_moves(loop)
    return moves is not None and moves[0].var not in variables(moves[1].writes[0].indices[-1])


def _shares(stmt: Stmt, steps: Sequence[tuple[str, int]]) -> tuple[Body, Body]:
    """(what of a map runs in every iteration of `steps`, what is left): its outermost unrolled loops, in order."""
    rows: list[For] = []
    inner, count = stmt, prod(extent for _, extent in steps)
    crosses = any(isinstance(s, For) and _crossing(s) for s in walk((stmt,)))
    while isinstance(inner, For) and inner.tag == "unroll" and prod(x.extent for x in rows) < count and not crosses:
        rows.append(inner)
        if len(inner.body) > 1:
            break
        (inner,) = inner.body
    if not rows:
        return (), (stmt,)
    items = prod(x.extent for x in rows)
    each = -(-items // count)
    step: Expr = Const(0)
    for var, extent in steps:
        step = op("add", op("mul", step, extent), Var(var))

    def piece(start: Expr, many: int) -> Stmt:
        item: Expr = op("add", start, Var(rows[0].var)) if many > 1 else start
        return For(rows[0].var, many, substituted(rows[-1].body, _digits(rows, item)), "unroll")

    share = piece(op("mul", step, each), each)
    full, left_over = divmod(items, each)
    inside = (share,) if full == count else (Branch(op("lt", step, full), (share,), ()),)
    return inside, (piece(Const(full * each), left_over),) if left_over else ()


# --- statements with other variables ----------------------------------------------------------------------------------


def substituted(body: Body, values: Mapping[str, Expr]) -> Body:
    """A body with variables of loops around it replaced."""

    def at(e: Expr) -> Any:
        return substitute(e, values)

    def replaced(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return replace(s, body=substituted(s.body, values))
        if isinstance(s, Branch):
            return Branch(at(s.condition), substituted(s.then, values), substituted(s.otherwise, values))
        if isinstance(s, Prefetch):
            return replace(s, access=at(s.access))
        if isinstance(s, Leaf):
            writes, leaf_body, where = (tuple(map(at, x)) for x in (s.writes, s.body, s.where))
            binding = tuple((name, at(e)) for name, e in s.binding)
            return replace(s, writes=writes, body=leaf_body, where=where, binding=binding)
        return s

    return tuple(map(replaced, body))


def _renamed(stmt: Stmt, taken: Set[str]) -> Stmt:
    """A statement whose loops have no name that is taken."""
    if not isinstance(stmt, For):
        return stmt
    name = stmt.var
    while name in taken:
        name += "_"
    inside = substituted(stmt.body, {stmt.var: Var(name)}) if name != stmt.var else stmt.body
    return replace(stmt, var=name, body=tuple(_renamed(s, taken) for s in inside))
