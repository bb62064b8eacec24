"""Quasi-affine index arithmetic: linear forms, bounds, simplification.

An index is a sum of integer multiples of *atoms* plus a constant. An atom is an iterator, a Size, a floordiv/mod of
another quasi-affine form by a constant, or a product of Sizes (and such quotients of them) and at most one iterator.
Everything that analyses accesses (footprints, strides, layouts) works on this form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modelc.ir.expr import Const, Expr, Op, Size, Var, op, rewrite, show, substitute, variables

Ranges = Mapping[str, int]  # iterator -> extent: it runs over [0, extent)


@dataclass(frozen=True)
class Linear:
    """sum(coefficient * atom) + constant, with atoms in order of first appearance and no zero coefficients."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    @property
    def plain(self) -> bool:
        """Whether all atoms are iterators."""
        return all([isinstance(atom, Var) for atom, _ in self.terms])

    def coefficient(self, atom: Expr) -> int:
        return next((c for x, c in self.terms if x == atom), 0)

    def within(self, ranges: Ranges) -> Linear:
        """The same without iterators that are always 0."""
        kept = tuple([(x, c) for x, c in self.terms if not (isinstance(x, Var) and ranges.get(x.name) == 1)])
        return self if len(kept) == len(self.terms) else Linear(kept, self.constant)

    def expr(self) -> Expr:
        result: Expr | None = None
        for atom, c in self.terms:
            if result is None:
                result = _times(atom, c)
            else:
                result = Op("add", (result, _times(atom, c))) if c > 0 else Op("sub", (result, _times(atom, -c)))
        if result is None:
            return Const(self.constant)
        if self.constant == 0:
            return result
        name = "add" if self.constant > 0 else "sub"
        return Op(name, (result, Const(abs(self.constant))))


def _times(atom: Expr, c: int) -> Expr:
    return atom if c == 1 else Op("mul", (atom, Const(c)))


def linear(e: Expr) -> Linear | None:
    """The linear form of an index expression, or None if it is not quasi-affine (a Load, a product of iterators)."""
    if isinstance(e, Const):
        return Linear((), int(e.value)) if e.dtype == "int64" else None
    if isinstance(e, (Var, Size)):
        return Linear(((e, 1),), 0)
    if not isinstance(e, Op):
        return None
    try:
        form: Linear | None = e._linear
    except AttributeError:
        form = _linear(e)
        object.__setattr__(e, "_linear", form)
    return form


def _linear(e: Op) -> Linear | None:
    if e.name in ("add", "sub"):
        a, b = linear(e.args[0]), linear(e.args[1])
        return None if a is None or b is None else _sum(a, b, 1 if e.name == "add" else -1)
    if e.name == "neg":
        a = linear(e.args[0])
        return None if a is None else _sum(Linear((), 0), a, -1)
    if e.name == "mul":
        a, b = linear(e.args[0]), linear(e.args[1])
        if a is None or b is None:
            return None
        if a.terms and b.terms:
            return _product(a, b)
        form, scale = (a, b.constant) if not b.terms else (b, a.constant)
        return Linear(tuple([(x, c * scale) for x, c in form.terms if c * scale]), form.constant * scale)
    if e.name in ("floordiv", "mod") and isinstance(e.args[1], Const):
        inner, by = linear(e.args[0]), int(e.args[1].value)
        if inner is None or by <= 0:
            return None
        if not inner.terms:
            value = inner.constant
            return Linear((), value // by if e.name == "floordiv" else value % by)
        return Linear(((Op(e.name, (inner.expr(), e.args[1])), 1),), 0)
    if e.name in ("min", "max") and not variables(e) and all(linear(x) is not None for x in e.args):
        return Linear(((e, 1),), 0)
    return None


def _product(a: Linear, b: Linear) -> Linear | None:
    """The product of two forms of which one has Sizes alone; None where both have iterators."""
    if _with_iterators(a) and _with_iterators(b):
        return None
    total = Linear((), a.constant * b.constant)
    for x, c in (*a.terms, (None, a.constant)):
        for y, k in (*b.terms, (None, b.constant)):
            if c * k and (x is not None or y is not None):
                atom = y if x is None else x if y is None else _atom_of((*_factors(x), *_factors(y)))
                assert atom is not None
                total = _sum(total, Linear(((atom, c * k),), 0), 1)
    return total


def _with_iterators(form: Linear) -> bool:
    return any(variables(atom) for atom, _ in form.terms)


def _factors(atom: Expr) -> tuple[Expr, ...]:
    if isinstance(atom, Op) and atom.name == "mul":
        return tuple(factor for part in atom.args for factor in _factors(part))
    return (atom,)


def _atom_of(factors: Sequence[Expr]) -> Expr:
    """The product of atoms as an atom; of several Sizes in the order of their text, an iterator before them."""
    first, *others = sorted(factors, key=lambda x: (not variables(x), show(x)))
    flat = tuple(others)
    return Op("mul", (first, flat[0])) if len(flat) == 1 else Op("mul", (first, _atom_of(flat)))


def _sum(a: Linear, b: Linear, sign: int) -> Linear:
    terms = dict(a.terms)
    for atom, c in b.terms:
        terms[atom] = terms.get(atom, 0) + sign * c
    return Linear(tuple([term for term in terms.items() if term[1]]), a.constant + sign * b.constant)


def bounds(e: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """Least and greatest value (both included) over the iterators' ranges; None if unknown. Exact for linear forms."""
    form = linear(e)
    if form is None:
        return None
    low = high = form.constant
    for atom, c in form.terms:
        limits = _atom_bounds(atom, ranges)
        if limits is None:
            return None
        a, b = c * limits[0], c * limits[1]
        low, high = low + min(a, b), high + max(a, b)
    return low, high


def _atom_bounds(atom: Expr, ranges: Ranges) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        return (0, ranges[atom.name] - 1) if atom.name in ranges else None
    if isinstance(atom, Size):
        return atom.least, atom.most
    assert isinstance(atom, Op)
    if atom.name in ("mul", "min", "max"):
        a, b = (bounds(x, ranges) for x in atom.args)
        if a is None or b is None:
            return None
        if atom.name != "mul":
            pick = min if atom.name == "min" else max
            return pick(a[0], b[0]), pick(a[1], b[1])
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    assert isinstance(atom.args[1], Const)
    inner, by = bounds(atom.args[0], ranges), int(atom.args[1].value)
    if inner is None:
        return None
    if atom.name == "floordiv":
        return inner[0] // by, inner[1] // by
    if inner[0] // by == inner[1] // by:
        return inner[0] % by, inner[1] % by
    return 0, by - 1


def simplify(e: Expr, ranges: Ranges) -> Expr:
    """An equal, canonical index expression: like terms gathered, divisions and remainders that the ranges decide
    resolved (`(4*a + b) // 4` is `a` when 0 <= b < 4)."""
    if isinstance(e, (Var, Size, Const)):
        return e
    form = linear(e)
    if form is not None and form.plain:
        return _plain(form, ranges)
    if isinstance(e, Op) and e.name in ("floordiv", "mod") and isinstance(e.args[1], Const):
        inner = linear(e.args[0])
        if inner is not None and inner.plain:
            division = op(e.name, inner.within(ranges).expr(), e.args[1])
            return _simplified(division, ranges) or division
    return rewrite(e, lambda x: _simplified(x, ranges))


def _plain(form: Linear, ranges: Ranges) -> Expr:
    """The canonical expression of a form whose atoms are iterators."""
    kept = form.within(ranges)
    expression = kept.expr()
    if isinstance(expression, Op):
        object.__setattr__(expression, "_linear", kept)
    return expression


def _plain_sum(constant: int, terms: Sequence[tuple[Expr, int]]) -> Linear | None:
    """The form of constant + the sum of coefficient * expression; None where its atoms are not iterators alone."""
    coefficients: dict[Expr, int] = {}
    for e, c in terms:
        form = linear(e)
        if form is None or not form.plain:
            return None
        constant += c * form.constant
        for x, k in form.terms:
            coefficients[x] = coefficients.get(x, 0) + c * k
    return Linear(tuple([term for term in coefficients.items() if term[1]]), constant)


def weighted(constant: int, terms: Sequence[tuple[Expr, int]], ranges: Ranges) -> Expr:
    """simplify(constant + the sum of coefficient * expression): at once, where everything is linear."""
    form = _plain_sum(constant, terms)
    if form is not None:
        return _plain(form, ranges)
    total: Expr = Const(constant)
    for e, c in terms:
        total = op("add", total, op("mul", e, c))
    return simplify(total, ranges)


def offset(e: Expr, values: Mapping[str, Expr], base: Expr, ranges: Ranges) -> Expr | None:
    """simplify(e - base) with each iterator named in `values` replaced in `e`: at once, where everything is linear.
    None where `e` is not quasi-affine."""
    form = linear(e)
    if form is None:
        return None
    if form.plain:
        replaced = [(values.get(x.name, x), c) for x, c in form.terms if isinstance(x, Var)]
        difference = _plain_sum(form.constant, [*replaced, (base, -1)])
        if difference is not None:
            return _plain(difference, ranges)
    return simplify(op("sub", substitute(e, values), base), ranges)


def _simplified(e: Expr, ranges: Ranges) -> Expr | None:
    if not isinstance(e, Op) or e.name not in ("add", "sub", "mul", "neg", "floordiv", "mod"):
        return None
    if e.name in ("floordiv", "mod") and isinstance(e.args[1], Const):
        return _divided(e, ranges)
    form = linear(e)
    if form is None:
        return None
    return _rejoined(form.within(ranges)).expr()


def _rejoined(form: Linear) -> Linear:
    """`(x // n) * n*k + (x % n) * k` is `x * k`."""
    terms = dict(form.terms)
    for atom, c in form.terms:
        if not (isinstance(atom, Op) and atom.name == "floordiv" and isinstance(atom.args[1], Const)):
            continue
        by = int(atom.args[1].value)
        remainder = Op("mod", atom.args)
        if c % by == 0 and terms.get(remainder) == c // by and atom in terms:
            whole = linear(atom.args[0])
            assert whole is not None
            kept = Linear(tuple((x, k) for x, k in terms.items() if x not in (atom, remainder)), form.constant)
            scaled = Linear(tuple((x, k * (c // by)) for x, k in whole.terms), whole.constant * (c // by))
            return _rejoined(_sum(kept, scaled, 1))
    return form


def _divided(e: Op, ranges: Ranges) -> Expr | None:
    by = int(e.args[1].value)  # type: ignore[union-attr]
    form = linear(e.args[0])
    if form is None or by <= 0:
        return None
    inner = form.expr()
    limits = bounds(inner, ranges)
    if limits is not None and limits[0] // by == limits[1] // by:
        quotient = limits[0] // by
        return Const(quotient) if e.name == "floordiv" else Linear(form.terms, form.constant - quotient * by).expr()
    whole = Linear(tuple((a, c // by) for a, c in form.terms if c % by == 0), form.constant // by)
    remainder = Linear(tuple((a, c) for a, c in form.terms if c % by), form.constant % by)
    left = bounds(remainder.expr(), ranges)
    if left is not None and left[0] >= 0 and left[1] < by:  # the remainder never carries
        return whole.expr() if e.name == "floordiv" else remainder.expr()
    if not whole.terms and whole.constant == 0:
        return _nested(e.name, remainder.expr(), by)
    if e.name == "mod":
        return _nested("mod", remainder.expr(), by)
    return _sum(whole, Linear(((_nested("floordiv", remainder.expr(), by), 1),), 0), 1).expr()


def _nested(name: str, inner: Expr, by: int) -> Expr:
    """`(x // a) // b` is `x // (a * b)`; `(x % (a * b)) % b` is `x % b`."""
    if isinstance(inner, Op) and inner.name == name and isinstance(inner.args[1], Const):
        a = int(inner.args[1].value)
        if name == "floordiv":
            return Op(name, (inner.args[0], Const(a * by)))
        if a % by == 0:
            return Op(name, (inner.args[0], Const(by)))
    return Op(name, (inner, Const(by)))
