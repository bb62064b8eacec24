"""Operations on bools and whole numbers, defined for all of them: sums and products wrap (modulo 2**bits), a division
by zero gives 0, its rest is 0, and amounts of shifts are taken as unsigned (ir/arithmetic.py has the same in NumPy).

LLVM's division and shifts are undefined there, and the machine's may trap: operands are replaced before, results after.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.bytes import dot_of_bytes
from modelc.codegen.math.code import COMPARED, Code, Expr, constant_value, let_operands, plain
from modelc.codegen.math.llvm_text import call, vector
from modelc.codegen.math.lookup import lookup
from modelc.ir.scalar import DOTS

# --- bools --------------------------------------------------------------------------------------------------------


def not_(code: Code, a: Expr) -> Expr:
    return tx.Select(a, code.const(False, "bool"), code.const(True, "bool"))


@let_operands
def xor(code: Code, a: Expr, b: Expr) -> Expr:
    return tx.Select(a, not_(code, b), b)


_and, _or = plain(tx.And), plain(tx.Or)
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


PLAIN: dict[str, Callable[[Expr, Expr], Expr]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def wrapping(name: str, code: Code, a: Expr, b: Expr) -> Expr:
    """a + b, a - b or a * b modulo 2**bits. TVM's own have LLVM rely on there being no overflow, from 32 bits on."""
    if code.bits < 32:
        return PLAIN[name](a, b)
    function = f"modelc_{name}_i{code.bits}_x{code.lanes}"
    t = vector(f"i{code.bits}", code.lanes)
    text = f"define {t} @{function}({t} %a, {t} %b) {{\n  %r = {name} {t} %a, %b\n  ret {t} %r\n}}"
    return call(code.type(), function, text, a, b)


def _unsigned(code: Code) -> bool:
    return code.dtype.startswith("u")


@let_operands
def _integer_sign(code: Code, x: Expr) -> Expr:
    zero, unit = code.const(0), code.const(1)
    least = zero if _unsigned(code) else tx.Select(x < zero, code.const(-1), zero)
    return tx.Select(x > zero, unit, least)


def _integer_negative(code: Code, x: Expr) -> Expr:
    return wrapping("sub", code, code.const(0), x)


@let_operands
def _integer_abs(code: Code, x: Expr) -> Expr:
    return x if _unsigned(code) else tx.Select(x < code.const(0), _integer_negative(code, x), x)


def _safe(code: Code, b: Expr) -> Expr:
    """The divisor, 1 for those that the machine may trap on: 0 and -1 (which overflows for the least number)."""
    traps = tx.EQ(b, code.const(0))
    if not _unsigned(code):
        traps = tx.Or(traps, tx.EQ(b, code.const(-1)))
    return code.let(tx.Select(traps, code.const(1), b))


def _is_safe(b: Expr) -> bool:
    return constant_value(b) not in (None, 0, -1)


@let_operands
def _quotient(code: Code, a: Expr, b: Expr) -> Expr:
    """Rounded towards zero."""
    if _is_safe(b):
        return tx.truncdiv(a, b)
    quotient = tx.truncdiv(a, _safe(code, b))
    if not _unsigned(code):
        quotient = tx.Select(tx.EQ(b, code.const(-1)), _integer_negative(code, a), quotient)
    return tx.Select(tx.EQ(b, code.const(0)), code.const(0), quotient)


@let_operands
def _remainder(code: Code, a: Expr, b: Expr) -> Expr:
    """What C's % gives: its sign is that of `a`."""
    return tx.truncmod(a, b if _is_safe(b) else _safe(code, b))


def _outside(code: Code, remainder: Expr, b: Expr) -> Expr:
    """Whether rounding down differs from rounding towards zero: there is a rest, and its sign is not that of `b`."""
    zero = code.const(0)
    return tx.And(tx.NE(remainder, zero), xor(code, remainder < zero, b < zero))


@let_operands
def _floor_quotient(code: Code, a: Expr, b: Expr) -> Expr:
    if _unsigned(code):
        return _quotient(code, a, b)
    if _is_safe(b):
        return tx.floordiv(a, b)
    quotient, remainder = code.let(_quotient(code, a, b)), code.let(_remainder(code, a, b))
    return tx.Select(_outside(code, remainder, b), wrapping("sub", code, quotient, code.const(1)), quotient)


@let_operands
def _modulus(code: Code, a: Expr, b: Expr) -> Expr:
    """Its sign is that of `b`."""
    if _unsigned(code):
        return _remainder(code, a, b)
    if _is_safe(b):
        return tx.floormod(a, b)
    remainder = code.let(_remainder(code, a, b))
    return tx.Select(_outside(code, remainder, b), wrapping("add", code, remainder, b), remainder)


def _amount(code: Code, b: Expr) -> tuple[Expr, Expr]:
    """Whether an amount is less than the width, and the amount, at most width - 1. Negative ones are large."""
    kind = f"uint{code.bits}"
    amount = code.let(tx.reinterpret(code.type(kind), b))
    most = code.const(code.bits - 1, kind)
    return tx.LE(amount, most), tx.reinterpret(code.type(), tx.Min(amount, most))


@let_operands
def _shift_left(code: Code, a: Expr, b: Expr) -> Expr:
    """A shift by the width or more gives 0."""
    inside, amount = _amount(code, b)
    return tx.Select(inside, tx.shift_left(a, amount), code.const(0))


@let_operands
def _shift_right(code: Code, a: Expr, b: Expr) -> Expr:
    """A shift by the width or more leaves the sign alone."""
    inside, amount = _amount(code, b)
    shifted = tx.shift_right(a, amount)
    return tx.Select(inside, shifted, code.const(0)) if _unsigned(code) else shifted


@let_operands
def _integer_power(code: Code, base: Expr, exponent: Expr) -> Expr:
    """By repeated squaring over all bits of the exponent (modulo 2**bits); a negative exponent truncates the quotient:
    0, or +-1 for a base of +-1."""
    power = constant_value(exponent)
    if power is not None and power >= 0:
        return power_by_squaring(code, base, int(power))
    unit, zero, result, square = code.const(1), code.const(0), code.const(1), base
    bits = code.bits - (not _unsigned(code))
    for k in range(bits):
        odd = tx.bitwise_and(tx.shift_right(exponent, code.const(k)), unit)
        result = code.let(tx.Select(tx.NE(odd, zero), _product(code, result, square), result))
        if k + 1 < bits:
            square = code.let(_product(code, square, square))
    if _unsigned(code):
        return result
    parity = tx.Select(tx.NE(tx.bitwise_and(exponent, unit), zero), base, unit)
    is_unit = tx.Or(tx.EQ(base, unit), tx.EQ(base, code.const(-1)))
    return tx.Select(exponent < zero, tx.Select(is_unit, parity, zero), result)


def _product(code: Code, a: Expr, b: Expr) -> Expr:
    return a * b if code.dtype.startswith("float") else wrapping("mul", code, a, b)


def power_by_squaring(code: Code, base: Expr, exponent: int) -> Expr:
    result = None
    while exponent:
        if exponent & 1:
            result = base if result is None else code.let(_product(code, result, base))
        exponent >>= 1
        if exponent:
            base = code.let(_product(code, base, base))
    return code.const(1) if result is None else result


COMPARISONS = {name: plain(node) for name, node in COMPARED.items()}
INTEGERS: dict[str, Callable[..., Expr]] = {
    **COMPARISONS,
    **{name: partial(wrapping, name) for name in PLAIN},
    "truncdiv": _quotient,
    "fmod": _remainder,
    "floordiv": _floor_quotient,
    "mod": _modulus,
    "pow": _integer_power,
    "max": plain(tx.Max),
    "min": plain(tx.Min),
    "bitand": plain(tx.bitwise_and),
    "bitor": plain(tx.bitwise_or),
    "bitxor": plain(tx.bitwise_xor),
    "bitnot": lambda code, a: tx.bitwise_xor(a, code.const(2**code.bits - 1 if _unsigned(code) else -1)),
    **dict.fromkeys(DOTS, dot_of_bytes),
    "lookup": lookup,
    "shl": _shift_left,
    "shr": _shift_right,
    "neg": _integer_negative,
    "abs": _integer_abs,
    "sign": _integer_sign,
    **dict.fromkeys(("floor", "ceil", "round"), lambda code, a: a),
    **dict.fromkeys(("isnan", "isinf"), lambda code, a: code.const(False, "bool")),
}
