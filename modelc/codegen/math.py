"""Scalar operations (ir/expr.py's table) as TIR, on scalars and on vectors of any number of lanes.

float32 has polynomials of our own for what occurs in hot loops (exp log erf tanh sigmoid softplus sin cos, and pow by a
constant multiple of 1/4): no call is left in the machine code. The rest becomes LLVM intrinsics or libm calls lane by
lane, float64 always does. float16 and bfloat16 are computed in float32. Bits of a bfloat16 travel as uint16: TVM's code
generator has no bfloat16 of its own.

TIR expressions are trees: what is used twice is bound by a Let, and all Lets are outermost. The caller should make
them statements that go through a local buffer, for TVM substitutes a Let's value into whatever uses it, during its
analyses: a chain of ten takes seconds.

Nothing depends on whether a*b+c is contracted
to one rounding. Three of TVM's readings are wrong for NaN, and avoided: a != b is false if either is NaN, x != x is
always false, and not (a < b) is taken for b <= a. Where a NaN goes is said by the order of a select's arms.

The polynomials: exp, log, tanh, sin, cos after S. Moshier's Cephes (expf.c, logf.c, tanhf.c, sinf.c); erf after
N. Juffa's erff.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import tirx as tx

from modelc.codegen.rounding import rounded_bits, rounds
from modelc.errors import InvalidIR

Expr = Any  # a TIR expression
FLOATS = ("float32", "float64", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")


def lower_op(name: str, args: list[Expr], dtype: str, lanes: int) -> Expr:
    """Operation `name` on `args`, all of `lanes` lanes. `dtype` is that of the value operands (of a comparison the
    operands', of a select the arms'), with bfloat16 as uint16 bits. The current TVM target, if any, decides between
    equivalent instruction sequences. Raises InvalidIR for an operation that `dtype` does not have."""
    if name == "select":
        return tx.Select(*args)
    if name == "cast":
        raise InvalidIR("a cast is lowered by lower_cast, which knows the dtype it goes to")
    compute = "float32" if dtype in HALVES else dtype
    code = _Code(compute, lanes)
    table = _BOOLS if dtype == "bool" else _FLOATS if dtype in FLOATS else _INTEGERS
    if name not in table:
        raise InvalidIR(f"operation {name!r} is not defined on {dtype}")
    result = table[name](code, *[_cast(code, compute, code.opened(a), dtype) for a in args])
    return code.wrapped(result if name in _PREDICATES else _cast(code, dtype, result, compute))


def lower_cast(dtype: str, x: Expr, from_dtype: str, lanes: int) -> Expr:
    """`x` of `from_dtype` converted to `dtype`. Floats go to integers by truncation (out of range: unspecified), to
    bool by not (x = 0), so that NaN is true; float64 goes to 16-bit floats through float32, which may round twice."""
    code = _Code("float32", lanes)
    return code.wrapped(_cast(code, dtype, code.opened(x), from_dtype))


def _cast(code: _Code, dtype: str, x: Expr, from_dtype: str) -> Expr:
    if dtype == from_dtype:
        return x
    if from_dtype == "bfloat16":
        wide = tx.Cast(code.type("uint32"), x) << code.const(16, "uint32")
        return _cast(code, dtype, tx.reinterpret(code.type("float32"), wide), "float32")
    if (dtype in HALVES and from_dtype != "float32") or (from_dtype == "float16" and dtype != "float32"):
        return _cast(code, dtype, _cast(code, "float32", x, from_dtype), "float32")
    if dtype == "bfloat16":
        return _to_bfloat16(code, x)
    if from_dtype == "float16" and _is_risc_v():
        return _half_to_float(code, x)
    if dtype == "float16" and _is_risc_v():
        return _float_to_half(code, x)
    if dtype == "bool":
        return _not(code, tx.EQ(x, code.const(0, from_dtype)))
    if from_dtype == "bool":
        return tx.Select(x, code.const(1, dtype), code.const(0, dtype))
    return tx.Cast(code.type(dtype), x)


# --- writing TIR --------------------------------------------------------------------------------------------------


class _Code:
    """An expression being written: its dtype, its lanes, and the Lets around it, outermost first."""

    def __init__(self, dtype: str, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        self.bits = int("".join(c for c in dtype if c.isdigit()) or 1)
        self.lets: list[tuple[Expr, Expr]] = []

    def type(self, dtype: str | None = None) -> str:
        return _vector(dtype or self.dtype, self.lanes)

    def const(self, value: float | int | bool, dtype: str | None = None) -> Expr:
        return _constant(value, dtype or self.dtype, self.lanes)

    def let(self, value: Expr) -> Expr:
        """A variable with this value. Constants and variables stand for themselves, and so do comparisons, which are
        cheap to repeat and which TVM's analyses cannot bind."""
        dtype = str(value.dtype if hasattr(value, "dtype") else value.ty.dtype)
        if isinstance(value, tx.Var) or _constant_value(value) is not None or dtype.startswith("bool"):
            return value
        var = tx.Var("t", dtype)
        self.lets.append((var, value))
        return var

    def opened(self, value: Expr) -> Expr:
        """`value` with its own Lets among those of this expression."""
        while isinstance(value, tx.Let):
            self.lets.append((value.var, value.value))
            value = value.body
        return value

    def wrapped(self, result: Expr) -> Expr:
        for var, value in reversed(self.lets):
            result = tx.Let(var, value, result)
        return result

    def intrinsic(self, name: str, *args: Expr) -> Expr:
        """LLVM's intrinsic; the backend splits it into libm calls where no instruction exists."""
        return tx.call_llvm_pure_intrin(self.type(), f"llvm.{name}", *args)

    def libm(self, name: str, *args: Expr) -> Expr:
        """A libm function called for each lane."""
        name = name + "f" * (self.dtype == "float32")
        if self.lanes == 1:
            return tx.call_pure_extern(self.dtype, name, *args)
        lanes = [[tx.Shuffle([a], [tx.IntImm("int32", k)]) for a in args] for k in range(self.lanes)]
        calls = [tx.call_pure_extern(self.dtype, name, *lane) for lane in lanes]
        return tx.Shuffle(calls, [tx.IntImm("int32", k) for k in range(self.lanes)])

    def as_int(self, x: Expr) -> Expr:
        return tx.reinterpret(self.type(f"int{self.bits}"), x)

    def as_float(self, x: Expr) -> Expr:
        return tx.reinterpret(self.type(), x)

    def int(self, value: int) -> Expr:
        """A constant of the signed integer as wide as this number."""
        return self.const(value, f"int{self.bits}")

    def polynomial(self, x: Expr, coefficients: tuple[float, ...]) -> Expr:
        """Horner's rule, highest power first."""
        result = self.const(coefficients[0])
        for c in coefficients[1:]:
            result = result * x + self.const(c)
        return result


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _constant(value: float | int | bool, dtype: str, lanes: int) -> Expr:
    if dtype.startswith("float"):
        scalar = tx.FloatImm(dtype, float(np.dtype(dtype).type(value)))
    else:
        scalar = tx.IntImm(dtype, int(value))
    return scalar if lanes == 1 else tx.Broadcast(scalar, lanes)


def _constant_value(x: Expr) -> float | int | None:
    """The number, if `x` is a constant or a broadcast of one."""
    if isinstance(x, tx.Broadcast):
        x = x.value
    return x.value if isinstance(x, (tx.IntImm, tx.FloatImm)) else None


def _target_arch() -> str:
    """aarch64, arm, x86_64, ... of the current TVM target; empty if there is none."""
    target = tvm.target.Target.current(allow_none=True)
    return str(target.attrs.get("mtriple", "")).partition("-")[0] if target is not None else ""


def _is_arm32() -> bool:
    return _target_arch().startswith("armv7") or _target_arch() == "arm"


def _is_risc_v() -> bool:
    return _target_arch().startswith("riscv")


def _bound(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """For an operation that uses an operand more than once: its operands become variables."""
    return lambda code, *args: function(code, *[code.let(a) for a in args])


# --- bools --------------------------------------------------------------------------------------------------------


def _not(code: _Code, a: Expr) -> Expr:
    return tx.Select(a, code.const(False, "bool"), code.const(True, "bool"))


@_bound
def _xor(code: _Code, a: Expr, b: Expr) -> Expr:
    return tx.Select(a, _not(code, b), b)


def _and(code: _Code, a: Expr, b: Expr) -> Expr:
    return tx.And(a, b)


def _or(code: _Code, a: Expr, b: Expr) -> Expr:
    return tx.Or(a, b)


_BOOLS: dict[str, Callable[..., Expr]] = {
    "and": _and,
    "or": _or,
    "xor": _xor,
    "not": _not,
    "bitand": _and,
    "bitor": _or,
    "bitxor": _xor,
    "bitnot": _not,
    "add": _or,
    "mul": _and,
    "max": _or,
    "min": _and,
    "abs": lambda code, a: a,
    "ne": _xor,
    "eq": lambda code, a, b: tx.Select(a, b, _not(code, b)),
    "lt": lambda code, a, b: tx.Select(a, code.const(False), b),
    "le": lambda code, a, b: tx.Select(a, b, code.const(True)),
    "gt": lambda code, a, b: tx.Select(b, code.const(False), a),
    "ge": lambda code, a, b: tx.Select(b, a, code.const(True)),
}


# --- integers -----------------------------------------------------------------------------------------------------


@_bound
def _integer_sign(code: _Code, x: Expr) -> Expr:
    zero, one = code.const(0), code.const(1)
    least = zero if code.dtype.startswith("u") else tx.Select(x < zero, code.const(-1), zero)
    return tx.Select(x > zero, one, least)


def _integer_negative(code: _Code, x: Expr) -> Expr:
    """On signed integers, for TVM says of unsigned ones that they do not wrap."""
    return tx.reinterpret(code.type(), code.int(0) - code.as_int(x)) if code.dtype[0] == "u" else code.const(0) - x


@_bound
def _integer_abs(code: _Code, x: Expr) -> Expr:
    return x if code.dtype.startswith("u") else tx.Select(x < code.const(0), code.const(0) - x, x)


@_bound
def _shift_left(code: _Code, a: Expr, b: Expr) -> Expr:
    """As NumPy: a shift by the width or more gives 0, where the machine takes it modulo the width."""
    width = code.const(code.bits)
    if (n := _constant_value(b)) is not None:
        return tx.shift_left(a, b) if n < code.bits else code.const(0)
    return tx.Select(b < width, tx.shift_left(a, tx.Min(b, width - code.const(1))), code.const(0))


@_bound
def _shift_right(code: _Code, a: Expr, b: Expr) -> Expr:
    shifted = tx.shift_right(a, tx.Min(b, code.const(code.bits - 1)))
    return tx.Select(b < code.const(code.bits), shifted, code.const(0)) if code.dtype.startswith("u") else shifted


@_bound
def _integer_power(code: _Code, base: Expr, exponent: Expr) -> Expr:
    """By repeated squaring over all bits of the exponent (modulo 2**bits, as NumPy); a negative exponent truncates the
    quotient: 0, or +-1 for a base of +-1."""
    known = _constant_value(exponent)
    if known is not None and known >= 0:
        return _power_by_squaring(code, base, int(known))
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


def _power_by_squaring(code: _Code, base: Expr, exponent: int) -> Expr:
    result = None
    while exponent:
        if exponent & 1:
            result = base if result is None else code.let(result * base)
        exponent >>= 1
        if exponent:
            base = code.let(base * base)
    return code.const(1) if result is None else result


_COMPARISONS: dict[str, Callable[..., Expr]] = {
    "lt": lambda code, a, b: tx.LT(a, b),
    "le": lambda code, a, b: tx.LE(a, b),
    "gt": lambda code, a, b: tx.GT(a, b),
    "ge": lambda code, a, b: tx.GE(a, b),
    "eq": lambda code, a, b: tx.EQ(a, b),
    "ne": lambda code, a, b: tx.NE(a, b),
}
_PREDICATES = {*_COMPARISONS, "isnan", "isinf"}

_INTEGERS: dict[str, Callable[..., Expr]] = {
    **_COMPARISONS,
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


# --- floats: selection and rounding -------------------------------------------------------------------------------


def _isnan(code: _Code, x: Expr) -> Expr:
    return tx.isnan(x)


def _abs(code: _Code, x: Expr) -> Expr:
    return code.intrinsic("fabs", x)


@_bound
def _maximum(code: _Code, a: Expr, b: Expr) -> Expr:
    """One instruction on Arm. x86's max returns its second operand if either is NaN: of max(a, b) and max(b, a) one
    then is the NaN, whose bits absorb the other's; otherwise they are equal. Three instructions, no mask."""
    if _target_arch().startswith(("aarch64", "arm")) and code.dtype == "float32":
        return code.intrinsic("maximum", a, b)
    for bound, x in ((a, b), (b, a)):
        if _is_number(bound):
            return _at_least(code, x, bound)
    return _either(code, tx.Select(a > b, a, b), tx.Select(b > a, b, a))


@_bound
def _minimum(code: _Code, a: Expr, b: Expr) -> Expr:
    if _target_arch().startswith(("aarch64", "arm")) and code.dtype == "float32":
        return code.intrinsic("minimum", a, b)
    for bound, x in ((a, b), (b, a)):
        if _is_number(bound):
            return _at_most(code, x, bound)
    return _either(code, tx.Select(a < b, a, b), tx.Select(b < a, b, a))


def _either(code: _Code, a: Expr, b: Expr) -> Expr:
    return code.as_float(tx.bitwise_or(code.as_int(a), code.as_int(b)))


def _is_number(e: Expr) -> bool:
    value = _constant_value(e)
    return value is not None and not math.isnan(value)


def _at_least(code: _Code, x: Expr, bound: float | Expr) -> Expr:
    """max(x, bound) in one instruction: a NaN fails the comparison and is kept."""
    least = code.const(bound) if isinstance(bound, float) else bound
    return code.let(tx.Select(least > x, least, x))


def _at_most(code: _Code, x: Expr, bound: float | Expr) -> Expr:
    most = code.const(bound) if isinstance(bound, float) else bound
    return code.let(tx.Select(most < x, most, x))


@_bound
def _sign(code: _Code, x: Expr) -> Expr:
    zero = code.const(0)
    return tx.Select(x > zero, code.const(1), tx.Select(x < zero, code.const(-1), x))


def _equal(code: _Code, a: Expr, b: Expr) -> Expr:
    return _not(code, tx.isnan(a)) if a.same_as(b) else tx.EQ(a, b)


def _differ(code: _Code, a: Expr, b: Expr) -> Expr:
    return tx.isnan(a) if a.same_as(b) else _not(code, tx.EQ(a, b))


@_bound
def _round(code: _Code, x: Expr) -> Expr:
    """To the nearest integer, halves to the even one. 32-bit Arm's vectors have no such instruction: there, 2**23 is
    added and taken away from the magnitude."""
    if not (_is_arm32() and code.dtype == "float32"):
        return code.intrinsic("rint", x)
    magnitude = code.let(_abs(code, x))
    shifted = code.let(magnitude + code.const(2.0**23))
    rounded = code.intrinsic("copysign", shifted - code.const(2.0**23), x)
    return tx.Select(magnitude < code.const(2.0**23), rounded, x)


@_bound
def _floor(code: _Code, x: Expr) -> Expr:
    if not (_is_arm32() and code.dtype == "float32"):
        return code.intrinsic("floor", x)
    rounded = code.let(_round(code, x))
    return code.intrinsic("copysign", tx.Select(rounded > x, rounded - code.const(1), rounded), x)


@_bound
def _ceil(code: _Code, x: Expr) -> Expr:
    if not (_is_arm32() and code.dtype == "float32"):
        return code.intrinsic("ceil", x)
    rounded = code.let(_round(code, x))
    return code.intrinsic("copysign", tx.Select(rounded < x, rounded + code.const(1), rounded), x)


def _floor_and_modulus(code: _Code, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """(a // b, a % b) as NumPy computes them: exactly, from C's fmod."""
    zero, one = code.const(0), code.const(1)
    rest = code.let(code.libm("fmod", a, b))
    adjust = code.let(tx.And(_differ(code, rest, zero), _xor(code, rest < zero, b < zero)))
    modulus = tx.Select(adjust, rest + b, tx.Select(tx.EQ(rest, zero), code.intrinsic("copysign", zero, b), rest))
    quotient = code.let((a - rest) / b - tx.Select(adjust, one, zero))
    floor = code.let(_floor(code, quotient))
    floor = tx.Select(quotient - floor > code.const(0.5), floor + one, floor)
    floor = tx.Select(tx.EQ(quotient, zero), code.intrinsic("copysign", zero, a / b), floor)
    return tx.Select(tx.EQ(b, zero), a / b, floor), modulus


# --- float32 polynomials ------------------------------------------------------------------------------------------


@_bound
def _to_bfloat16(code: _Code, x: Expr) -> Expr:
    """The upper half of the bits, rounded to nearest even; a NaN keeps its sign and becomes quiet."""
    if rounds(code.lanes):
        return rounded_bits(x, code.lanes)
    bits = code.let(tx.reinterpret(code.type("uint32"), x))
    sixteen = code.const(16, "uint32")
    even = tx.bitwise_and(bits >> sixteen, code.const(1, "uint32"))
    # two additions that cannot carry out of 32 bits for a number that is not NaN
    rounded = (bits + (even + code.const(0x7FFF, "uint32"))) >> sixteen
    quiet = tx.bitwise_or(bits >> sixteen, code.const(0x40, "uint32"))
    return tx.Cast(code.type("uint16"), tx.Select(tx.isnan(x), quiet, rounded))


@_bound
def _half_to_float(code: _Code, x: Expr) -> Expr:
    """float16 as float32 by its bits, after F. Giesen: for RISC-V without half floats, where the functions that LLVM
    calls and TVM defines pass them in different registers. Subnormals must not be flushed."""
    bits = code.let(tx.Cast(code.type("uint32"), tx.reinterpret(code.type("uint16"), x)))
    magnitude = code.let(tx.bitwise_and(bits, code.const(0x7FFF, "uint32")))
    shifted = code.let(magnitude << code.const(13, "uint32"))
    number = tx.reinterpret(code.type("uint32"), code.as_float(shifted) * code.const(2.0**112))
    infinite = tx.bitwise_or(shifted, code.const(0x7F800000, "uint32"))  # or a NaN
    value = tx.Select(magnitude < code.const(0x7C00, "uint32"), number, infinite)
    return code.as_float(tx.bitwise_or(value, (bits - magnitude) << code.const(16, "uint32")))


@_bound
def _float_to_half(code: _Code, x: Expr) -> Expr:
    """The nearest float16, halves to even; numbers too large are infinite, a NaN is quiet. After F. Giesen."""
    bits = code.let(tx.reinterpret(code.type("uint32"), x))
    magnitude = code.let(tx.bitwise_and(bits, code.const(0x7FFFFFFF, "uint32")))
    thirteen = code.const(13, "uint32")
    odd = tx.bitwise_and(magnitude >> thirteen, code.const(1, "uint32"))
    normal = (magnitude + (odd + code.const(0xFFF, "uint32")) - code.const(112 << 23, "uint32")) >> thirteen
    # Adding 1/2 leaves 24 bits after the point of a half's smallest number; the bits of 1/2 go away again.
    sum_ = tx.reinterpret(code.type("uint32"), code.as_float(magnitude) + code.const(0.5))
    small = sum_ - code.const(126 << 23, "uint32")
    large = tx.Select(tx.isnan(x), code.const(0x7E00, "uint32"), code.const(0x7C00, "uint32"))
    result = tx.Select(magnitude < code.const(0x38800000, "uint32"), small, normal)
    result = tx.Select(magnitude < code.const(0x47800000, "uint32"), result, large)
    sign = (bits - magnitude) >> code.const(16, "uint32")
    return tx.reinterpret(code.type("float16"), tx.Cast(code.type("uint16"), tx.bitwise_or(result, sign)))


def _scaled_exp(code: _Code, x: Expr) -> Expr:
    """e**x for x in [-87.33, 88.72], garbage elsewhere: 2**n * e**r, n = round(x / ln 2), |r| <= ln(2)/2.

    Adding 1.5 * 2**23 rounds, and leaves n in the low bits of the sum: shifted to the exponent's place, it is added to
    the exponent of e**r.
    """
    shifter = code.const(1.5 * 2**23)
    shifted = code.let(x * code.const(math.log2(math.e)) + shifter)
    n = code.let(shifted - shifter)
    r = code.let(x - n * code.const(0.693359375) - n * code.const(-2.12194440e-4))
    p = code.polynomial(
        r,
        (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
    )
    power = p * (r * r) + r + code.const(1)
    return code.as_float(code.as_int(power) + (code.as_int(shifted) << code.int(23)))


@_bound
def _exp(code: _Code, x: Expr) -> Expr:
    """Results below 2**-126 are 0."""
    scaled = tx.Select(x < code.const(-87.33654), code.const(0), _scaled_exp(code, x))
    return tx.Select(x <= code.const(88.72283), scaled, x + code.const(math.inf))


def _log1p_fraction(code: _Code, f: Expr, e: Expr) -> Expr:
    """e * ln 2 + log(1 + f), for sqrt(1/2) - 1 <= f < sqrt(2) - 1."""
    z = code.let(f * f)
    p = code.polynomial(
        f,
        (
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ),
    )
    y = f * z * p + e * code.const(-2.12194440e-4) - z * code.const(0.5)
    return f + y + e * code.const(0.693359375)


@_bound
def _log(code: _Code, x: Expr) -> Expr:
    """x = 2**e * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), taken from the bits; subnormals are scaled first."""
    small = code.let(x < code.const(2.0**-126))
    bits = code.as_int(tx.Select(small, x * code.const(2.0**23), x))
    root = code.int(0x3F3504F3)  # the bits of sqrt(1/2)
    offset = code.let(bits - root)
    e = tx.Cast(code.type(), offset >> code.int(23)) - tx.Select(small, code.const(23), code.const(0))
    f = code.let(code.as_float(tx.bitwise_and(offset, code.int(0x7FFFFF)) + root) - code.const(1))
    result = _log1p_fraction(code, f, code.let(e))
    result = tx.Select(x < code.const(math.inf), result, x)  # +inf, NaN
    result = tx.Select(x > code.const(0), result, tx.Select(tx.isnan(x), x, code.const(math.nan)))
    return tx.Select(tx.EQ(x, code.const(0)), code.const(-math.inf), result)


@_bound
def _sigmoid(code: _Code, x: Expr) -> Expr:
    return code.const(1) / (code.const(1) + _exp(code, code.let(-x)))


@_bound
def _tanh(code: _Code, x: Expr) -> Expr:
    """An odd polynomial near 0, 1 - 2 / (e**2|x| + 1) elsewhere; a NaN takes the first."""
    magnitude, square = code.let(_abs(code, x)), code.let(x * x)
    near = code.polynomial(
        square, (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    )
    power = _scaled_exp(code, _at_most(code, magnitude * code.const(2), 60.0))
    far = code.const(1) - code.const(2) / (power + code.const(1))
    return tx.Select(magnitude > code.const(0.625), code.intrinsic("copysign", far, x), near * code.let(square * x) + x)


@_bound
def _erf(code: _Code, x: Expr) -> Expr:
    """An odd polynomial near 0, 1 - e**-p(|x|) elsewhere; a NaN takes the first."""
    magnitude, square = code.let(_abs(code, x)), code.let(x * x)
    near = code.polynomial(
        square,
        (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1),
    )
    exponent = code.polynomial(
        magnitude,
        (-1.7285347e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1),
    )
    far = code.const(1) - _scaled_exp(code, _at_least(code, code.let(exponent * magnitude - magnitude), -20.0))
    return tx.Select(magnitude > code.const(0.927734375), code.intrinsic("copysign", far, x), near * x + x)


@_bound
def _softplus(code: _Code, x: Expr) -> Expr:
    """max(x, 0) + log(1 + u), u = e**-|x| in [0, 1]. 1 + u is halved above sqrt(2), exactly, without forming it."""
    u = code.let(_exp(code, code.let(code.const(0) - _abs(code, x))))
    large = code.let(u > code.const(math.sqrt(2) - 1))
    f = code.let(tx.Select(large, u * code.const(0.5) - code.const(0.5), u))
    e = code.let(tx.Select(large, code.const(1), code.const(0)))
    return tx.Select(code.const(0) > x, code.const(0), x) + _log1p_fraction(code, f, e)


def _sine(code: _Code, x: Expr, quarter: int) -> Expr:
    """sin(x + quarter * pi/2): x = n pi/2 + r in three steps (Cody and Waite), then sin r or cos r by n's parity.

    Absolute errors: 8e-8 for |x| <= 1e4; with FMA also up to 1e6, without it 1e-6 up to 1e5. Beyond, the result is a
    number of [-1, 1] that means less and less.
    """
    shifter = code.const(1.5 * 2**23)
    shifted = code.let(x * code.const(2 / math.pi) + shifter)
    n = code.let(shifted - shifter)
    r = x - n * code.const(1.5703125) - n * code.const(4.837512969970703125e-4) - n * code.const(7.54978995489e-8)
    r = _at_most(code, _at_least(code, code.let(r), -1.0), 1.0)
    quadrant = code.let(code.as_int(shifted) + code.int(quarter))
    z = code.let(r * r)
    sine = code.polynomial(z, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)) * (z * r) + r
    cosine = code.polynomial(z, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)) * (z * z)
    cosine = cosine - z * code.const(0.5) + code.const(1)
    odd = tx.NE(tx.bitwise_and(quadrant, code.int(1)), code.int(0))
    value = code.as_int(tx.Select(odd, cosine, sine))
    sign = tx.bitwise_and(quadrant, code.int(2)) << code.int(30)
    return code.as_float(tx.bitwise_xor(value, sign))


@_bound
def _power(code: _Code, base: Expr, exponent: Expr) -> Expr:
    """A constant exponent that is a small multiple of 1/4 becomes products and square roots; others are libm's."""
    known = _constant_value(exponent)
    if known is None or known * 4 != int(known * 4) or abs(known) > 16:
        return code.intrinsic("pow", base, exponent)
    whole, quarters = divmod(int(abs(known) * 4), 4)
    result = _power_by_squaring(code, base, whole)
    if quarters:
        half = code.let(code.intrinsic("sqrt", base))
        root = half if quarters == 2 else code.let(code.intrinsic("sqrt", half))
        root = root * half if quarters == 3 else root
        result = result * root if whole else root
    return code.const(1) / result if known < 0 else result


@_bound
def _float64_softplus(code: _Code, x: Expr) -> Expr:
    tail = code.libm("log1p", code.intrinsic("exp", code.const(0) - _abs(code, x)))
    return tx.Select(code.const(0) > x, code.const(0), x) + tail


# --- the tables ---------------------------------------------------------------------------------------------------


def _by_width(polynomial: Callable[..., Expr], exact: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda code, *args: (polynomial if code.dtype == "float32" else exact)(code, *args)


def _intrinsic(name: str) -> Callable[..., Expr]:
    return lambda code, *args: code.intrinsic(name, *args)


def _libm(name: str) -> Callable[..., Expr]:
    return lambda code, *args: code.libm(name, *args)


_FLOATS: dict[str, Callable[..., Expr]] = {
    **_COMPARISONS,
    "eq": _equal,
    "ne": _differ,
    "add": lambda code, a, b: a + b,
    "sub": lambda code, a, b: a - b,
    "mul": lambda code, a, b: a * b,
    "div": lambda code, a, b: a / b,
    "floordiv": _bound(lambda code, a, b: _floor_and_modulus(code, a, b)[0]),
    "mod": _bound(lambda code, a, b: _floor_and_modulus(code, a, b)[1]),
    "truncdiv": lambda code, a, b: code.intrinsic("trunc", a / b),
    "fmod": _libm("fmod"),
    "pow": _power,
    "max": _maximum,
    "min": _minimum,
    "neg": lambda code, a: a * code.const(-1),
    "abs": _abs,
    "sign": _sign,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
    "sqrt": _intrinsic("sqrt"),
    "exp": _by_width(_exp, _intrinsic("exp")),
    "log": _by_width(_log, _intrinsic("log")),
    "erf": _by_width(_erf, _libm("erf")),
    "tanh": _by_width(_tanh, _intrinsic("tanh")),
    "sigmoid": _by_width(
        _sigmoid, lambda code, x: code.const(1) / (code.const(1) + code.intrinsic("exp", code.const(0) - x))
    ),
    "softplus": _by_width(_softplus, _float64_softplus),
    "sin": _by_width(_bound(lambda code, x: _sine(code, x, 0)), _intrinsic("sin")),
    "cos": _by_width(_bound(lambda code, x: _sine(code, x, 1)), _intrinsic("cos")),
    **{name: _intrinsic(name) for name in ("tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: _libm(name) for name in ("asinh", "acosh", "atanh")},
    "isnan": _isnan,
    "isinf": lambda code, x: tx.EQ(_abs(code, x), code.const(math.inf)),
}
