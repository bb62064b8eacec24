"""Operations on bools and whole numbers."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx as tx

from modelc.codegen.math.code import Code, Expr, constant_value, let_operands

# --- bools --------------------------------------------------------------------------------------------------------


def not_(code: Code, a: Expr) -> Expr:
    return tx.Select(a, code.const(False, "bool"), code.const(True, "bool"))


@let_operands
def xor(code: Code, a: Expr, b: Expr) -> Expr:
    return tx.Select(a, not_(code, b), b)


def _and(code: Code, a: Expr, b: Expr) -> Expr:
    return tx.And(a, b)


def _or(code: Code, a: Expr, b: Expr) -> Expr:
    return tx.Or(a, b)


BOOLS: dict[str, Callable[..., Expr]] = {
    "and": _and,
    "or": _or,
    "xor": xor,
    "not": not_,
    "bitand": _and,
    "bitor": _or,
    "bitxor": xor,
    "bitnot": not_,
    "add": _or,
    "mul": _and,
    "max": _or,
    "min": _and,
    "abs": lambda code, a: a,
    "ne": xor,
    "eq": lambda code, a, b: tx.Select(a, b, not_(code, b)),
    "lt": lambda code, a, b: tx.Select(a, code.const(False), b),
    "le": lambda code, a, b: tx.Select(a, b, code.const(True)),
    "gt": lambda code, a, b: tx.Select(b, code.const(False), a),
    "ge": lambda code, a, b: tx.Select(b, a, code.const(True)),
}


# --- integers -----------------------------------------------------------------------------------------------------


@let_operands
def _integer_sign(code: Code, x: Expr) -> Expr:
    zero, one = code.const(0), code.const(1)
    least = zero if code.dtype.startswith("u") else tx.Select(x < zero, code.const(-1), zero)
    return tx.Select(x > zero, one, least)


def _integer_negative(code: Code, x: Expr) -> Expr:
    """On signed integers, for TVM says of unsigned ones that they do not wrap."""
    return tx.reinterpret(code.type(), code.int(0) - code.as_int(x)) if code.dtype[0] == "u" else code.const(0) - x


@let_operands
def _integer_abs(code: Code, x: Expr) -> Expr:
    return x if code.dtype.startswith("u") else tx.Select(x < code.const(0), code.const(0) - x, x)


@let_operands
def _shift_left(code: Code, a: Expr, b: Expr) -> Expr:
    """As NumPy: a shift by the width or more gives 0, where the machine takes it modulo the width."""
    width = code.const(code.bits)
    if (n := constant_value(b)) is not None:
        return tx.shift_left(a, b) if n < code.bits else code.const(0)
    return tx.Select(b < width, tx.shift_left(a, tx.Min(b, width - code.const(1))), code.const(0))


@let_operands
def _shift_right(code: Code, a: Expr, b: Expr) -> Expr:
    shifted = tx.shift_right(a, tx.Min(b, code.const(code.bits - 1)))
    return tx.Select(b < code.const(code.bits), shifted, code.const(0)) if code.dtype.startswith("u") else shifted


@let_operands
def _integer_power(code: Code, base: Expr, exponent: Expr) -> Expr:
    """By repeated squaring over all bits of the exponent (modulo 2**bits, as NumPy); a negative exponent truncates the
    quotient: 0, or +-1 for a base of +-1."""
    known = constant_value(exponent)
    if known is not None and known >= 0:
        return power_by_squaring(code, base, int(known))
    one, zero, result, square = code.const(1), code.const(0), code.const(1), base
    bits = code.bits - (not code.dtype.startswith("u"))
    for k in range(bits):
        odd = tx.bitwise_and(tx.shift_right(exponent, code.const(k)), one)
        result = code.let(tx.Select(tx.NE(odd, zero), result * square, result))
        if k + 1 < bits:
            square = code.let(square * square)
    if code.dtype.startswith("u"):
        return result
    parity = tx.Select(tx.NE(tx.bitwise_and(exponent, one), zero), base, one)
    unit = tx.Or(tx.EQ(base, one), tx.EQ(base, code.const(-1)))
    return tx.Select(exponent < zero, tx.Select(unit, parity, zero), result)


def power_by_squaring(code: Code, base: Expr, exponent: int) -> Expr:
    result = None
    while exponent:
        if exponent & 1:
            result = base if result is None else code.let(result * base)
        exponent >>= 1
        if exponent:
            base = code.let(base * base)
    return code.const(1) if result is None else result


COMPARISONS: dict[str, Callable[..., Expr]] = {
    "lt": lambda code, a, b: tx.LT(a, b),
    "le": lambda code, a, b: tx.LE(a, b),
    "gt": lambda code, a, b: tx.GT(a, b),
    "ge": lambda code, a, b: tx.GE(a, b),
    "eq": lambda code, a, b: tx.EQ(a, b),
    "ne": lambda code, a, b: tx.NE(a, b),
}

INTEGERS: dict[str, Callable[..., Expr]] = {
    **COMPARISONS,
    "add": lambda code, a, b: a + b,
    "sub": lambda code, a, b: a - b,
    "mul": lambda code, a, b: a * b,
    "truncdiv": lambda code, a, b: tx.truncdiv(a, b),
    "fmod": lambda code, a, b: tx.truncmod(a, b),
    "floordiv": lambda code, a, b: tx.floordiv(a, b),
    "mod": lambda code, a, b: tx.floormod(a, b),
    "pow": _integer_power,
    "max": lambda code, a, b: tx.Max(a, b),
    "min": lambda code, a, b: tx.Min(a, b),
    "bitand": lambda code, a, b: tx.bitwise_and(a, b),
    "bitor": lambda code, a, b: tx.bitwise_or(a, b),
    "bitxor": lambda code, a, b: tx.bitwise_xor(a, b),
    "bitnot": lambda code, a: tx.bitwise_xor(a, code.const(-1 if not code.dtype.startswith("u") else 2**code.bits - 1)),
    "shl": _shift_left,
    "shr": _shift_right,
    "neg": _integer_negative,
    "abs": _integer_abs,
    "sign": _integer_sign,
    "floor": lambda code, a: a,
    "ceil": lambda code, a: a,
    "round": lambda code, a: a,
    "isnan": lambda code, a: code.const(False, "bool"),
    "isinf": lambda code, a: code.const(False, "bool"),
}
