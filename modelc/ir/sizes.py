"""Whole numbers that depend on Sizes: what a run's inputs say, within bounds.

    sized(Size("seq", 1, 512) * 384)         a number for extents, strides and offsets
    sized(...) // 14                         computes like an int; the result is an int where no Size is left
    sized(...) < 200                         raises DependsOnSize: some sizes say yes, some no
    at(number, {"seq": 20})                  the number in a run

A Task, a Program or a Nest that has such numbers in place of ints stands for one of each size. What takes decisions by
them (which loops there are, what divides what) may take only those that hold for every size, so a comparison that
sizes decide differently is an error and not a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.expr import Const, Expr, Op, Size, Var, op, rewrite, show, sizes, substitute, variables, walk
from modelc.ir.expr_syntax import parse
from modelc.ir.scalar import OPERATIONS

Sizes = Mapping[str, int]  # what a run's sizes are, by name
MOST_TEXT = 1000  # characters of a number that is read
MOST_NUMBER = 2**63 - 1  # that one may be
MOST_RUNS = 1 << 12  # at which a number is looked at, whose sign is not plain
MOST_FACTORS = 8  # sizes in one of its terms, whose limits take long to find


class DependsOnSize(Exception):
    """What is asked has one answer for some sizes and another for others."""


class Sized:
    """A whole number that depends on Sizes, as the expression that says it."""

    __slots__ = ("_limits", "expr")

    def __init__(self, expr: Expr):
        self.expr = expr
        limits = bounds(expr, {})
        if limits is None:
            raise DependsOnSize(f"nothing is known of the number {show(expr)}")
        low, high = limits
        self._limits = _limits_at_all(expr) or limits if low < 0 <= high else limits

    @property
    def least(self) -> int:
        return self._limits[0]

    @property
    def most(self) -> int:
        return self._limits[1]

    def __add__(self, other: Any) -> int:
        return sized(op("add", self.expr, other))

    def __radd__(self, other: Any) -> int:
        return sized(op("add", self.expr, other))

    def __sub__(self, other: Any) -> int:
        return sized(op("sub", self.expr, other))

    def __rsub__(self, other: Any) -> int:
        return sized(op("sub", other, self.expr))

    def __mul__(self, other: Any) -> int:
        return sized(op("mul", self.expr, other))

    def __rmul__(self, other: Any) -> int:
        return sized(op("mul", self.expr, other))

    def __floordiv__(self, other: Any) -> int:
        return sized(op("floordiv", self.expr, other))

    def __mod__(self, other: Any) -> int:
        return sized(op("mod", self.expr, other))

    def __divmod__(self, other: Any) -> tuple[int, int]:
        return self // other, self % other

    def __neg__(self) -> int:
        return sized(op("neg", self.expr))

    def __abs__(self) -> int:
        return sized(self.expr) if self >= 0 else -sized(self.expr)

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, Sized) and other.expr == self.expr:
            return True
        if not isinstance(other, Sized | int):
            return False
        low, high = _limits(self - other)
        if low == high == 0:
            return True
        if low > 0 or high < 0:
            return False
        raise DependsOnSize(f"{self} is {other} for some sizes alone")

    def __hash__(self) -> int:
        return hash(self.expr)

    def __deepcopy__(self, memo: object) -> Sized:
        return self

    def __lt__(self, other: Any) -> bool:
        low, high = _limits(self - other)
        if high < 0:
            return True
        if low >= 0:
            return False
        raise DependsOnSize(f"{self} is below {other} for some sizes alone")

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __gt__(self, other: Any) -> bool:
        low, high = _limits(self - other)
        if low > 0:
            return True
        if high <= 0:
            return False
        raise DependsOnSize(f"{self} is above {other} for some sizes alone")

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __str__(self) -> str:
        return show(self.expr)

    __repr__ = __str__


def sized(expr: Expr) -> int:
    """The number that `expr`, of Sizes and int64 constants, is: a Sized, or an int where no Size is left. Typed as an
    int, for that is how it computes."""
    form = linear(expr)
    if form is not None:
        expr = _without_multiples(simplify(form.expr(), {}))
    if isinstance(expr, Const):
        return int(expr.value)
    return cast(int, Sized(expr))


def _limits_at_all(expr: Expr) -> tuple[int, int] | None:
    """The least and the greatest over all sizes, where these are not too many: intervals do not see that a quotient
    grows with what it is taken of."""
    several = sizes(expr)
    if prod(size.most - size.least + 1 for size in several) > MOST_RUNS:
        return None
    values = np.meshgrid(*(np.arange(size.least, size.most + 1) for size in several), indexing="ij", sparse=True)
    every = _values(expr, dict(zip(several, values, strict=True)))
    return int(every.min()), int(every.max())


def _values(e: Expr, runs: Mapping[Size, NDArray[Any]]) -> NDArray[Any]:
    if isinstance(e, Op):
        return cast(NDArray[Any], OPERATIONS[e.name].meaning(*(_values(x, runs) for x in e.args)))
    return runs[e] if isinstance(e, Size) else np.asarray(_number(e))


def _without_multiples(e: Expr) -> Expr:
    """`c * (x // c)` as `x - x % c`, of which the limits are known better."""
    form = linear(e)
    assert form is not None
    changed: Expr = Const(form.constant)
    for atom, c in form.terms:
        atom, c = _upwards(atom, c)
        quotient = isinstance(atom, Op) and atom.name == "floordiv" and isinstance(atom.args[1], Const)
        if quotient and c % int(atom.args[1].value) == 0:  # type: ignore[union-attr]
            x, by = atom.args  # type: ignore[union-attr]
            part = op("sub", x, op("mod", x, by))
            changed = op("add", changed, op("mul", part, c // int(by.value)))  # type: ignore[union-attr]
        else:
            changed = op("add", changed, op("mul", atom, c))
    gathered = linear(changed)
    assert gathered is not None
    return gathered.expr()


def text_of(number: int) -> str:
    """The number as text, with Sizes by name: `seq * 384`."""
    return show(rewrite(expr_of(number), lambda e: Var(e.name) if isinstance(e, Size) else None))


def number_of(text: str, named: Mapping[str, Size]) -> int:
    """Reads what text_of() gives, of Sizes by name. Raises ValueError."""
    if len(text) > MOST_TEXT:
        raise ValueError(f"a number of {len(text)} characters; at most {MOST_TEXT} are read")
    e = parse(text)
    if unknown := sorted(variables(e) - named.keys()):
        raise ValueError(f"{text!r} names {unknown[0]!r}, which is no size")
    if _factors(e) > MOST_FACTORS:
        raise ValueError(f"{text!r} multiplies more than {MOST_FACTORS} sizes with each other")
    try:
        number = sized(substitute(e, named))
    except DependsOnSize:
        raise ValueError(f"{text!r} is no whole number of sizes") from None
    if sizes(e) or any(isinstance(x, Const) and x.dtype != "int64" for x in walk(e)):
        raise ValueError(f"{text!r} is no whole number of sizes by name")
    if not -MOST_NUMBER <= least(number) <= most(number) <= MOST_NUMBER:
        raise ValueError(f"{text[:80]!r} has more than 64 bits")
    return number


def _factors(e: Expr) -> int:
    """How many variables are multiplied with each other, at most."""
    if not isinstance(e, Op):
        return int(isinstance(e, Var))
    each = [_factors(x) for x in e.args]
    return sum(each) if e.name == "mul" else max(each, default=0)


def _upwards(atom: Expr, c: int) -> tuple[Expr, int]:
    """`-x // by` as `-((x + by - 1) // by)`, where x is a sum of sizes alone."""
    if isinstance(atom, Op) and atom.name == "floordiv" and isinstance(atom.args[1], Const):
        form, by = linear(atom.args[0]), int(atom.args[1].value)
        if form is not None and form.terms and all(k < 0 for _, k in form.terms):
            positive = linear(op("sub", by - 1, atom.args[0]))
            assert positive is not None
            return op("floordiv", positive.expr(), by), -c
    return atom, c


def is_sized(number: object) -> bool:
    """Whether a number depends on Sizes."""
    return isinstance(number, Sized)


def expr_of(number: int) -> Expr:
    """The expression of a number."""
    return cast(Any, number).expr if is_sized(number) else Const(number)


def _limits(number: int) -> tuple[int, int]:
    return (least(number), most(number))


def most(number: int) -> int:
    """The greatest that a number can be: room for it."""
    return cast(Any, number).most if is_sized(number) else number


def least(number: int) -> int:
    """The smallest that a number can be."""
    return cast(Any, number).least if is_sized(number) else number


def same(a: int, b: int) -> bool:
    """Whether two numbers are known to be the same in every run."""
    try:
        return a == b
    except DependsOnSize:
        return False


def smaller(a: int, b: int) -> int:
    """The smaller of two numbers in every run."""
    if expr_of(b) in _bounded_by(a):
        return a
    try:
        return a if a <= b else b
    except DependsOnSize:
        return sized(Op("min", (expr_of(a), expr_of(b))))


def larger(a: int, b: int) -> int:
    """The larger of two numbers in every run."""
    if expr_of(b) in _bounded_by(a):
        return b
    if expr_of(a) in _bounded_by(b):
        return a
    try:
        return a if a >= b else b
    except DependsOnSize:
        return sized(Op("max", (expr_of(a), expr_of(b))))


def greatest(e: Expr, extents: Mapping[str, Sequence[int]]) -> list[int]:
    """Numbers that `e` does not exceed where each iterator is below every one of its `extents`: several,
    where an iterator has several of which sizes say which is the smallest. None at all where nothing is known."""
    form = linear(e)
    if form is None:
        return []
    totals = [form.constant]
    for atom, c in form.terms:
        names = variables(atom)
        if not names:
            ends = [sized(op("mul", atom, c))]
        elif isinstance(atom, Var):
            ends = [c * (n - 1) for n in extents.get(atom.name, ())] if c > 0 else [0]
        else:
            limits = bounds(atom, {name: min(map(most, extents[name])) for name in names & extents.keys()})
            ends = [] if limits is None else [c * limits[1 if c > 0 else 0]]
        totals = [total + end for total in totals for end in ends]
    return totals


def never_reaches(e: Expr, limit: int, extents: Mapping[str, Sequence[int]]) -> bool:
    """Whether `e` is below `limit` in every run, as far as can be seen."""
    return any(most(total - limit) < 0 for total in greatest(e, extents))


def _bounded_by(number: int) -> tuple[Expr, ...]:
    """Expressions that are no smaller: what a number is the minimum of."""
    expr = expr_of(number)
    return expr.args if isinstance(expr, Op) and expr.name == "min" else ()


def at(number: int, run: Sizes) -> int:
    """The number where the sizes are those of `run`."""
    return _number(expr_at(expr_of(number), run)) if is_sized(number) else number


def expr_at(e: Expr, run: Sizes) -> Expr:
    """The expression with the sizes of `run` in place of Sizes."""
    if not sizes(e):
        return e
    return rewrite(e, lambda x: _folded(x, run))


def _folded(e: Expr, run: Sizes) -> Expr | None:
    if isinstance(e, Size):
        return Const(run[e.name])
    if isinstance(e, Op) and e.name in ("min", "max") and all(isinstance(x, Const) for x in e.args):
        values = [x.value for x in e.args if isinstance(x, Const)]
        return Const(int(min(values) if e.name == "min" else max(values))) if e.args[0].dtype == "int64" else None  # type: ignore[union-attr]
    return None


def _number(e: Expr) -> int:
    assert isinstance(e, Const), f"{e} is no number"
    return int(e.value)


def sizes_of(numbers: Iterable[int]) -> tuple[Size, ...]:
    """The Sizes that numbers depend on, each once."""
    return tuple(dict.fromkeys(size for number in numbers for size in sizes(expr_of(number))))


def room(shape: Iterable[int], strides: Iterable[int]) -> int:
    """The most elements that there can be from the first to the last of an array."""
    shape = [most(n) for n in shape]
    return sum((n - 1) * most(s) for n, s in zip(shape, strides, strict=True)) + 1 if all(shape) else 0
