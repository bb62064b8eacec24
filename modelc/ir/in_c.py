"""Numbers that depend on Sizes as expressions in C, over integers of 64 bits."""

from __future__ import annotations

from collections.abc import Mapping

from modelc.ir.expr import Const, Expr, Op, Size
from modelc.ir.sizes import expr_of, is_sized

INFIX = {"add": "+", "sub": "-", "mul": "*"}
CALLED = {"floordiv": "mc_quotient", "mod": "mc_remainder", "min": "mc_smaller", "max": "mc_larger"}
FUNCTIONS = """\
static inline int64_t mc_quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t mc_remainder(int64_t a, int64_t b) { return a - mc_quotient(a, b) * b; }
static inline int64_t mc_smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t mc_larger(int64_t a, int64_t b) { return a > b ? a : b; }
"""  # that the expressions call; quotients round down


def in_c(number: int, names: Mapping[str, str]) -> str:
    """The number in C, of Sizes by the `names` of their variables; one that depends on none is as it is."""
    return _text(expr_of(number), names) if is_sized(number) else str(number)


def _text(e: Expr, names: Mapping[str, str]) -> str:
    if isinstance(e, Size):
        return names[e.name]
    if isinstance(e, Const):
        return f"INT64_C({e.value})"
    assert isinstance(e, Op)
    a, b = (_text(x, names) for x in e.args)
    return f"{CALLED[e.name]}({a}, {b})" if e.name in CALLED else f"({a} {INFIX[e.name]} {b})"
