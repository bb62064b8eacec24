"""One form for every size: Tasks, Programs and Candidates at several sizes as one, with the numbers that differ as
expressions of Sizes.

The forms at all samples must have the same structure. What differs are whole numbers, and float constants that are such
a number or its reciprocal (the count that a mean divides by).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

from modelc.ir.explain import Explained, Unexplained, Values
from modelc.ir.expr import FLOATS, Const, Expr, Load, Op, Size, Var, cast, const, op, rewrite, show, show_conditions
from modelc.ir.nest import Branch, For, Nest, Stmt
from modelc.ir.sizes import Sizes, at, expr_at, expr_of, is_sized

T = TypeVar("T")
SHOWN = 4  # names that are told


def generalised(samples: Sequence[T], explained: Explained) -> T:
    """What the samples are, at each of `explained.samples`, as one form. Raises Unexplained, with the place."""
    return _General(explained).form(samples, "")  # type: ignore[no-any-return]


def instance(form: T, run: Sizes) -> T:
    """The form in a run: numbers in place of what depends on Sizes."""
    return _instance(form, run, {})  # type: ignore[no-any-return]


def nest_at(nest: Nest, run: Sizes) -> Nest:
    """The Nest in a run, without loops that have no iterations there."""
    whole = instance(nest, run)
    return replace(whole, phases=tuple(_running(phase) for phase in whole.phases))


def _running(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            inner = _running(stmt.body) if stmt.extent > 0 else ()
            result += [replace(stmt, body=inner)] if inner else []
        elif isinstance(stmt, Branch):
            then, otherwise = _running(stmt.then), _running(stmt.otherwise)
            result += [replace(stmt, then=then, otherwise=otherwise)] if then or otherwise else []
        else:
            result.append(stmt)
    return tuple(result)


def _instance(form: Any, run: Sizes, made: dict[int, Any]) -> Any:
    if is_sized(form):
        return at(form, run)
    if isinstance(form, str | int | float | type(None) | np.ndarray):
        return form
    if id(form) not in made:
        made[id(form)] = _composed_instance(form, run, made)
    return made[id(form)]


def _composed_instance(form: Any, run: Sizes, made: dict[int, Any]) -> Any:
    if isinstance(form, Var | Const | Load | Op | Size):
        return expr_at(form, run)
    if isinstance(form, tuple):
        parts = [_instance(part, run, made) for part in form]
        if all(part is old for part, old in zip(parts, form, strict=True)):
            return form
        return type(form)(*parts) if hasattr(form, "_fields") else tuple(parts)
    if isinstance(form, Mapping):
        return {k: _instance(v, run, made) for k, v in form.items()}
    if is_dataclass(form) and not isinstance(form, type):
        parts_by_name = {f.name: _instance(getattr(form, f.name), run, made) for f in fields(form)}
        if all(part is getattr(form, name) for name, part in parts_by_name.items()):
            return form
        return replace(form, **parts_by_name)
    return form


def _is_index(e: Expr) -> bool:
    return isinstance(e, Const) and e.dtype == "int64"


def _skeleton(e: Expr) -> str:
    """The form of an expression without its numbers."""
    return re.sub(r"\d+", "0", show(e))


class _General:
    def __init__(self, explained: Explained):
        self.explained = explained
        self.made: dict[tuple[int, ...], tuple[Any, Any]] = {}  # by the identity of the samples, which it keeps

    def form(self, samples: Sequence[Any], where: str) -> Any:
        first = samples[0]
        if all(x is first for x in samples):
            return first
        if any(x is None for x in samples) and not all(x is None for x in samples):
            return self.some_of(samples, where)
        kind = type(first)
        if any(type(x) is not kind for x in samples):
            raise Unexplained(f"{where}: {' and '.join(sorted({type(x).__name__ for x in samples}))}")
        if kind in (str, bool, float, type(None)):
            if any(x != first and (x == x or first == first) for x in samples):
                raise Unexplained(f"{where}: {', '.join(dict.fromkeys(map(str, samples)))}")
            return first
        if kind is int:
            return self.number(tuple(samples), where)
        key = tuple(map(id, samples))
        if key not in self.made:
            self.made[key] = self.composed(samples, where), samples
        return self.made[key][0]

    def some_of(self, samples: Sequence[Expr | None], where: str) -> Expr:
        """A condition that some samples alone have, explained by these; a number that is the same in them, and that of
        something that depends on sizes, is that."""
        there = [k for k, sample in enumerate(samples) if sample is not None]
        explained = self.explained.of(there)
        general = _General(explained).form([samples[k] for k in there], where)

        def known(e: Expr) -> Expr | None:
            number = explained.numbers.get((int(e.value),) * len(there)) if _is_index(e) else None  # type: ignore[union-attr]
            return None if number is None else expr_of(number)

        return rewrite(general, known)

    def number(self, values: Values, where: str) -> int:
        try:
            return self.explained.number(values)
        except Unexplained as wrong:
            raise Unexplained(f"{where}: {wrong}") from None

    def composed(self, samples: Sequence[Any], where: str) -> Any:
        first = samples[0]
        if isinstance(first, Var | Const | Load | Op | Size):
            return self.expr(samples, where)
        if isinstance(first, tuple):
            if where.endswith(".where") and len({len(x) for x in samples}) > 1:
                return self.conditions(samples, where)
            self.same([len(x) for x in samples], f"{where}: lengths")
            parts = [self.form(column, f"{where}[{k}]") for k, column in enumerate(zip(*samples, strict=True))]
            if all(part is old for part, old in zip(parts, first, strict=True)):
                return first
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
        if isinstance(first, Mapping):
            self.same_names([list(x) for x in samples], where)
            return {k: self.form([x[k] for x in samples], f"{where}.{k}") for k in first}
        if isinstance(first, frozenset):
            self.same(list(samples), where)
            return first
        if is_dataclass(first):
            name = getattr(first, "name", None)
            place = f"{where} {name!r}" if isinstance(name, str) and not isinstance(first, Expr) else where
            parts_by_name = {
                f.name: self.form([getattr(x, f.name) for x in samples], f"{place}.{f.name}") for f in fields(first)
            }
            if all(part is getattr(first, n) for n, part in parts_by_name.items()):
                return first
            return replace(first, **parts_by_name)  # type: ignore[type-var]
        if isinstance(first, np.ndarray):
            self.same([(x.shape, x.dtype) for x in samples], where)
            if all(np.array_equal(x.reshape(-1).view(np.uint8), first.reshape(-1).view(np.uint8)) for x in samples):
                return first
            raise Unexplained(f"{where}: the data differs")
        self.same(list(samples), where)
        return first

    def conditions(self, samples: Sequence[tuple[Expr, ...]], where: str) -> tuple[Expr, ...]:
        """Conditions of a Block, of which some sizes imply more than others: all that some sample has."""
        whole = max(samples, key=len)
        by_form = [{_skeleton(c): c for c in sample} for sample in samples]
        if any(
            not by.keys() <= {_skeleton(c) for c in whole} or len(by) < len(x)
            for by, x in zip(by_form, samples, strict=True)
        ):
            raise Unexplained(f"{where}: {' and '.join(show_conditions(x) for x in samples)}")
        return tuple(self.form([by.get(_skeleton(c)) for by in by_form], where) for c in whole)

    def same_names(self, names: Sequence[list[str]], where: str) -> None:
        for number, others in enumerate(names):
            if others != names[0]:
                apart = [name for name in (*names[0], *others) if (name in names[0]) != (name in others)]
                shown = ", ".join(map(str, apart[:SHOWN])) or "in another order"
                at = ", ".join(f"{k}={n}" for k, n in self.explained.samples[number].items())
                raise Unexplained(f"{where} has other names at {at}: {shown}")

    def same(self, facts: Sequence[Any], where: str) -> None:
        if any(fact != facts[0] for fact in facts):
            raise Unexplained(f"{where}: {' and '.join(dict.fromkeys(map(str, facts)))}")

    # --- expressions ----------------------------------------------------------------------------------------------

    def expr(self, samples: Sequence[Any], where: str) -> Expr:
        first = samples[0]
        if isinstance(first, Const):
            return self.constant(samples, where)
        if isinstance(first, Load):
            self.same([x.buffer for x in samples], where)
            indices = self.form([x.indices for x in samples], where)
            return first if indices is first.indices else Load(first.buffer, indices)
        if isinstance(first, Op):
            self.same([(x.name, x.dtype) for x in samples], where)
            args = self.form([x.args for x in samples], where)
            return first if args is first.args else Op(first.name, args, first.dtype)
        self.same(list(samples), where)
        return first  # type: ignore[no-any-return]

    def constant(self, samples: Sequence[Const], where: str) -> Expr:
        first = samples[0]
        if all(x == first for x in samples):
            return first
        self.same([x.dtype for x in samples], where)
        values = tuple(x.value for x in samples)
        if first.dtype == "int64":
            return expr_of(self.number(tuple(map(int, values)), where))
        if first.dtype not in FLOATS:
            return cast(first.dtype, expr_of(self.number(tuple(map(int, values)), where)))
        for reciprocal in (False, True):
            whole = [round(1 / v if reciprocal else v) for v in values if v]
            back = [const(1 / n if reciprocal else n, first.dtype) for n in whole if n]
            if len(back) == len(samples) and all(x == y for x, y in zip(samples, back, strict=True)):
                number = cast(first.dtype, expr_of(self.number(tuple(whole), where)))
                return op("div", const(1, first.dtype), number) if reciprocal else number
        raise Unexplained(f"{where}: {', '.join(map(str, values))}")
