"""Operations on floats that select, compare and round, NaNs and signed zeros as NumPy has them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.code import Code, Expr, constant_value, is_arm32, let_operands, target_arch
from modelc.codegen.math.integers import not_, xor


def absolute(code: Code, x: Expr) -> Expr:
    return code.intrinsic("fabs", x)


def _extreme(name: str, wins: Callable[[Expr, Expr], Expr], limited: Callable[..., Expr]) -> Callable[..., Expr]:
    """One instruction on Arm. x86's max returns its second operand if either is NaN: of max(a, b) and max(b, a) one
    then is the NaN, whose bits absorb the other's; otherwise they are equal. Three instructions, no mask."""

    def extreme(code: Code, a: Expr, b: Expr) -> Expr:
        if target_arch().startswith(("aarch64", "arm")) and code.dtype == "float32":
            return code.intrinsic(name, a, b)
        for bound, x in ((a, b), (b, a)):
            if _is_number(bound):
                return limited(code, x, bound)
        return _either(code, tx.Select(wins(a, b), a, b), tx.Select(wins(b, a), b, a))

    return let_operands(extreme)


def _either(code: Code, a: Expr, b: Expr) -> Expr:
    return code.as_float(tx.bitwise_or(code.as_int(a), code.as_int(b)))


def _is_number(e: Expr) -> bool:
    value = constant_value(e)
    return value is not None and not math.isnan(value)


def at_least(code: Code, x: Expr, bound: float | Expr) -> Expr:
    """max(x, bound) in one instruction: a NaN fails the comparison and is kept."""
    least = code.const(bound) if isinstance(bound, float) else bound
    return code.let(tx.Select(least > x, least, x))


def at_most(code: Code, x: Expr, bound: float | Expr) -> Expr:
    most = code.const(bound) if isinstance(bound, float) else bound
    return code.let(tx.Select(most < x, most, x))


maximum = _extreme("maximum", operator.gt, at_least)
minimum = _extreme("minimum", operator.lt, at_most)


@let_operands
def sign(code: Code, x: Expr) -> Expr:
    zero = code.const(0)
    return tx.Select(x > zero, code.const(1), tx.Select(x < zero, code.const(-1), x))


def equal(code: Code, a: Expr, b: Expr) -> Expr:
    return not_(code, tx.isnan(a)) if a.same_as(b) else tx.EQ(a, b)


def differ(code: Code, a: Expr, b: Expr) -> Expr:
    return tx.isnan(a) if a.same_as(b) else not_(code, tx.EQ(a, b))


@let_operands
def round_(code: Code, x: Expr) -> Expr:
    """To the nearest integer, halves to the even one. 32-bit Arm's vectors have no such instruction: there, 2**23 is
    added and taken away from the magnitude."""
    if not (is_arm32() and code.dtype == "float32"):
        return code.intrinsic("rint", x)
    magnitude = code.let(absolute(code, x))
    shifted = code.let(magnitude + code.const(2.0**23))
    rounded = code.intrinsic("copysign", shifted - code.const(2.0**23), x)
    return tx.Select(magnitude < code.const(2.0**23), rounded, x)


def _towards(
    name: str, beyond: Callable[[Expr, Expr], Expr], back: Callable[[Expr, Expr], Expr]
) -> Callable[..., Expr]:
    """To the nearest integer on one side: on 32-bit Arm the nearest, and one back where that is beyond."""

    def rounded_towards(code: Code, x: Expr) -> Expr:
        if not (is_arm32() and code.dtype == "float32"):
            return code.intrinsic(name, x)
        rounded = code.let(round_(code, x))
        return code.intrinsic("copysign", tx.Select(beyond(rounded, x), back(rounded, code.const(1)), rounded), x)

    return let_operands(rounded_towards)


floor_ = _towards("floor", operator.gt, operator.sub)
ceil_ = _towards("ceil", operator.lt, operator.add)


def floor_and_modulus(code: Code, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(a // b, a % b) as NumPy computes them: exactly, from C's fmod."""
    zero, unit = code.const(0), code.const(1)
    remainder = code.let(code.libm("fmod", a, b))
    adjust = code.let(tx.And(differ(code, remainder, zero), xor(code, remainder < zero, b < zero)))
    modulus = tx.Select(
        adjust, remainder + b, tx.Select(tx.EQ(remainder, zero), code.intrinsic("copysign", zero, b), remainder)
    )
    quotient = code.let((a - remainder) / b - tx.Select(adjust, unit, zero))
    floor = code.let(floor_(code, quotient))
    floor = tx.Select(quotient - floor > code.const(0.5), floor + unit, floor)
    floor = tx.Select(tx.EQ(quotient, zero), code.intrinsic("copysign", zero, a / b), floor)
    return tx.Select(tx.EQ(b, zero), a / b, floor), modulus
