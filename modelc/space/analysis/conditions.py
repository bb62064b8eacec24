"""Conditions on iterators: what loops decide of them, and what is left to be asked where a Block is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from modelc.ir.affine import Linear, bounds, linear, simplify
from modelc.ir.block import Block
from modelc.ir.expr import Const, Expr, Load, Op, Var, loads, op, substitute, walk
from modelc.ir.scalar import OPERATIONS
from modelc.ir.sizes import greatest, never_reaches
from modelc.space.analysis.boxes import Domain, Span

Trips = Mapping[str, Sequence[int]]  # of a loop as long as a run says, numbers that its iterations are all below
NO_TRIPS: Trips = {}


def _below(ranges: Mapping[str, int], trips: Trips) -> Trips:
    return {name: trips.get(name, (extent,)) for name, extent in ranges.items()}


def less_than(condition: Expr) -> Linear | None:
    """A condition as `form < 0`."""
    if not isinstance(condition, Op) or not OPERATIONS[condition.name].otherwise:
        return None
    a, b = condition.args
    if condition.name in ("gt", "ge"):
        a, b = b, a
    difference = op("sub", a, b)
    if condition.name in ("le", "ge"):
        difference = op("sub", difference, 1)
    return linear(difference)


def simplified(condition: Expr, ranges: Mapping[str, int]) -> Expr:
    """A comparison with both sides simplified."""
    if isinstance(condition, Op) and OPERATIONS[condition.name].rounding == "compares":
        return Op(condition.name, tuple(simplify(a, ranges) for a in condition.args))
    if isinstance(condition, Op) and condition.name in ("and", "or", "not"):
        return Op(condition.name, tuple(simplified(a, ranges) for a in condition.args))
    return condition


def decided(condition: Expr, ranges: Mapping[str, int], trips: Trips = NO_TRIPS) -> bool | None:
    """True or False if the ranges decide the condition, or what a run's `trips` are below; else None."""
    form = less_than(condition)
    if form is None:
        return None
    if trips and never_reaches(form.expr(), 0, _below(ranges, trips)):
        return True
    limits = bounds(form.expr(), ranges)
    if limits is None:
        return None
    if limits[1] < 0:
        return True
    return False if limits[0] >= 0 else None


def clipped(name: str, count: int, tile: int, domain: Domain, where: Sequence[Expr]) -> tuple[int, int]:
    """How many of `count` iterations of `tile` values of iterator `name` satisfy every condition of `where` for
    certain, and how many can satisfy them at all.

    Only where the two differ by one iteration (a boundary that is worth its own code) or not at all; otherwise
    `count, count`: the conditions stay at the leaf.
    """
    certain = possible = count
    for condition in where:
        form = less_than(condition)
        step = 0 if form is None else form.coefficient(Var(name)) * tile
        if form is None or step <= 0 or not all(_fixed(domain, a) for a, _ in form.terms):
            continue
        limits = bounds(
            substitute(form.expr(), {n: _shifted(n, s) for n, s in domain.items() if n != name}),
            {n: s.extent for n, s in domain.items()} | {name: 1},
        )
        if limits is None:
            continue
        low, high = (x + form.coefficient(Var(name)) * int(domain[name].base.value) for x in limits)  # type: ignore[union-attr]
        high += form.coefficient(Var(name)) * (tile - 1)
        certain = min(certain, max(0, -(high // step)))  # high + step * v < 0
        possible = min(possible, max(0, -(low // step)))
    return (certain, possible) if possible - certain <= 1 else (count, count)


def clipped_in_run(
    name: str, count: int, tile: int, domain: Domain, where: Sequence[Expr], ranges: Mapping[str, int], trips: Trips
) -> list[int]:
    """The same of a count that a run says: numbers of which the smallest is how many iterations satisfy every condition
    for certain, where it is not negative."""
    certain = [count]
    for condition in where:
        form = less_than(condition)
        coefficient = 0 if form is None else form.coefficient(Var(name))
        if form is None or coefficient <= 0:
            continue
        starts = {n: op("add", Var(f"{n} in its span"), s.base) for n, s in domain.items() if n != name}
        inside_spans = {f"{n} in its span": (s.extent,) for n, s in domain.items()}
        highest = op("add", domain[name].base, tile - 1)
        reached = simplify(substitute(form.expr(), {**starts, name: highest}), {})
        ends = greatest(reached, {**_below(ranges, trips), **inside_spans})
        if not ends:
            continue
        certain.append(-(ends[0] // (coefficient * tile)))  # end + coefficient * tile * v < 0
    return certain


def segments(name: str, span: Span, value: Expr, each: bool = False) -> list[tuple[int, int]]:
    """`span` of iterator `name`, which begins at a constant, cut where a selection in `value` by that iterator alone
    changes: (first, one after the last) of each part. With `each`, cut at every value if it selects together with
    others."""
    assert isinstance(span.base, Const)
    low = int(span.base.value)
    cuts = {low, low + span.extent}
    for selection in (e for e in walk(value) if isinstance(e, Op) and e.name == "select"):
        form = less_than(selection.args[0])
        atoms = [] if form is None else [a for a, _ in form.terms]
        if form is not None and atoms == [Var(name)]:
            step = form.coefficient(Var(name))  # step * v + constant < 0
            cut = -(form.constant // step) if step > 0 else form.constant // -step + 1
            cuts |= {cut} if low < cut < low + span.extent else set()
        elif each and Var(name) in atoms:
            cuts |= {*range(low, low + span.extent)}
    ordered = sorted(cuts)
    return list(pairwise(ordered))


def settled(value: Expr, ranges: Mapping[str, int], values: Mapping[str, Expr]) -> Expr:
    """`value` without the selections that are decided for all `values` of iterators, over variables in `ranges`."""
    while isinstance(value, Op) and value.name == "select":
        decision = decided(simplified(substitute(value.args[0], values), ranges), ranges)
        if decision is None:
            break
        value = value.args[1 if decision else 2]
    if isinstance(value, Op) and value.name == "select":
        condition, *sides = value.args
        return Op("select", (condition, *(settled(side, ranges, values) for side in sides)), value.dtype)
    return value


def inside(block: Block, domain: Domain, ranges: Mapping[str, int], trips: Trips = NO_TRIPS) -> list[Expr]:
    """Conditions that keep `block` to its own iteration space where `domain` may reach beyond it."""
    conditions = []
    for i in block.iters:
        span = domain[i.name]
        limits = bounds(span.base, ranges)
        if limits is None or limits[0] < 0:
            conditions.append(op("ge", Var(i.name), 0))
        end = op("add", span.base, span.extent)
        if not never_reaches(end, i.extent + 1, _below(ranges, trips)):
            conditions.append(op("lt", Var(i.name), i.extent))
    return conditions


def existing(
    write: Load, shape: Sequence[int], values: Mapping[str, Expr], ranges: Mapping[str, int], trips: Trips = NO_TRIPS
) -> list[Expr]:
    """The conditions under which `write` names an element of a buffer of `shape`: only those that the ranges do not
    imply."""
    conditions = []
    for index, extent in zip(write.indices, shape, strict=True):
        if not isinstance(index, Var) and not loads(index):
            index = simplify(substitute(index, values), ranges)
            if not never_reaches(index, extent, _below(ranges, trips)):
                conditions.append(op("lt", index, extent))
    return conditions


def _fixed(domain: Domain, atom: Expr) -> bool:
    return isinstance(atom, Var) and atom.name in domain and isinstance(domain[atom.name].base, Const)


def _shifted(name: str, span: Span) -> Expr:
    return op("add", Var(name), span.base) if span.extent > 1 else span.base
