"""What is multiplied in an expression, and between which bounds it says that numbers are."""

from __future__ import annotations

from modelc.ir.expr import Const, Expr, Op, uncast


def clamped(e: Expr) -> tuple[Expr, tuple[int, int] | None]:
    """What `e` clamps to whole numbers between two bounds, min(max(X, LEAST), LARGEST), and these; or `e` itself."""
    number, bounds = e, list[int]()
    for name in ("min", "max"):
        bound = number.args[1] if isinstance(number, Op) and number.name == name else None
        if not isinstance(number, Op) or not isinstance(bound, Const) or not isinstance(bound.value, int):
            return e, None
        number, bounds = number.args[0], [bound.value, *bounds]
    return number, (bounds[0], bounds[1])


def factors_of(e: Expr) -> list[Expr]:
    """What is multiplied in `e`, a single factor if there is no product; casts, and clamps that leave a zero as it is,
    are left out."""
    e = uncast(e)
    number, bounds = clamped(e)
    if bounds is not None and bounds[0] <= 0 <= bounds[1]:
        return factors_of(number)
    return [f for a in e.args for f in factors_of(a)] if isinstance(e, Op) and e.name == "mul" else [e]
