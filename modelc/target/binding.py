"""What an intrinsic's operands are in an expression: the expression has to be that of its semantics, operands for
operands; indices are for whoever asks to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modelc.ir.expr import Const, Expr, Load, Op, dtype_of
from modelc.ir.factors import clamped
from modelc.target.intrinsic import Intrinsic, Operand

_COMMUTES = ("add", "mul", "max", "min")


def bindings(intrinsic: Intrinsic, body: Expr, dtypes: Mapping[str, str]) -> Iterator[dict[str, Load]]:
    """What the operands that the intrinsic multiplies are in `body`, every way round; indices are not looked at."""
    yield from _bound(intrinsic.semantics.body[0], body, {o.name: o for o in intrinsic.operands}, dtypes, {})


def _bound(
    pattern: Expr, e: Expr, kinds: Mapping[str, Operand], dtypes: Mapping[str, str], bound: dict[str, Load]
) -> Iterator[dict[str, Load]]:
    """The ways in which `e` is `pattern`, as what each operand is; indices are not looked at."""
    if isinstance(pattern, Load):
        operand = kinds[pattern.buffer]
        load = e if operand.within is None else _within(e, operand.within)
        if isinstance(load, Load) and dtypes[load.buffer] == operand.dtype:
            yield {**bound, pattern.buffer: load}
        return
    if isinstance(pattern, Const):
        if pattern == e:
            yield bound
        return
    if not isinstance(pattern, Op):
        return
    e = _plain(e, dtypes)
    if not isinstance(e, Op) or (e.name, e.dtype, len(e.args)) != (pattern.name, pattern.dtype, len(pattern.args)):
        return
    orders = [e.args, e.args[::-1]] if e.name in _COMMUTES else [e.args]
    for args in dict.fromkeys(orders):
        matches = [bound]
        for part, arg in zip(pattern.args, args, strict=True):
            matches = [after for before in matches for after in _bound(part, arg, kinds, dtypes, before)]
        yield from matches


def _within(e: Expr, within: tuple[int, int]) -> Expr | None:
    """What `e` clamps to numbers between just these bounds."""
    number, bounds = clamped(e)
    return number if bounds == within else None


def _plain(e: Expr, dtypes: Mapping[str, str]) -> Expr:
    """A cast of a cast that loses nothing is one cast."""
    while isinstance(e, Op) and e.name == "cast" and isinstance(e.args[0], Op) and e.args[0].name == "cast":
        inner = e.args[0]
        if not _lossless(dtype_of(inner.args[0], dtypes), inner.dtype or ""):
            break
        e = Op("cast", inner.args, e.dtype)
    return e


_HOLDS = {  # dtype -> those whose every value it can hold
    "int16": ("int8", "uint8"),
    "int32": ("int8", "uint8", "int16", "uint16"),
    "float32": ("float16", "bfloat16", "int8", "uint8", "int16", "uint16"),
}


def _lossless(dtype: str, to: str) -> bool:
    return dtype in _HOLDS.get(to, ())
