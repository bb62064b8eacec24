"""Numbers of less than a byte's worth of digits: their bits taken apart, and put together.

Floats of eight and four bits have a sign, digits (`digits` of them behind the point) and an exponent with a `bias`;
they go through float32, which holds each of them. Whole numbers of four and two bits are in the lower part of their
byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from modelc.ir.expr import NARROW, NARROW_INTEGERS, Const, Expr, Op, cast, const, op, select

WORD, HIDDEN, BIAS = "uint32", 23, 127  # of float32


@dataclass(frozen=True)
class Format:
    """Of the codes without sign: `largest` is that of the largest finite number, `above` what is beyond it becomes
    where it is not clamped, `nan` that of a NaN; those from `special` on are no numbers. `signed_zero`: whether the
    sign of zero, and of `nan`, counts; otherwise a NaN is minus zero."""

    digits: int
    bias: int
    largest: int
    above: int
    nan: int
    special: int
    sign: int = 7
    signed_zero: bool = True


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 0x7E, 0x7F, 0x7F, 0x7F),
    "float8_e4m3fnuz": Format(3, 8, 0x7F, 0x80, 0x80, 0x80, signed_zero=False),
    "float8_e5m2": Format(2, 15, 0x7B, 0x7C, 0x7E, 0x7C),
    "float8_e5m2fnuz": Format(2, 16, 0x7F, 0x80, 0x80, 0x80, signed_zero=False),
    "float4_e2m1fn": Format(1, 1, 7, 7, 8, 8, sign=3),
}


def bits(dtype: str, x: Expr) -> Expr:
    """The bits of `x` as a number of `dtype`, which is as wide."""
    return Op("bits", (x,), dtype)


def is_narrow(dtype: str) -> bool:
    return dtype in NARROW


def wide_of(dtype: str) -> str:
    """The dtype that holds every number of `dtype`, and is computed in."""
    return "int32" if dtype in NARROW_INTEGERS else "float32"


def limits_of(dtype: str) -> tuple[int, int]:
    """The least and the largest number of four or two bits."""
    values = 4 if dtype.endswith("int2") else 16
    return (0, values - 1) if dtype.startswith("u") else (-values // 2, values // 2 - 1)


def decoded(x: Expr, dtype: str) -> Expr:
    """A number of a narrow dtype as wide_of(dtype) has it."""
    code = bits("uint8", x)
    if dtype in NARROW_INTEGERS:
        return _whole(code, dtype)
    word = cast(WORD, code)
    if dtype == "float8_e8m0fnu":
        power = select(op("eq", word, _word(0)), _word(1 << (HIDDEN - 1)), op("shl", word, _word(HIDDEN)))
        return bits("float32", select(op("eq", word, _word(0xFF)), _word(0x7FC00000), power))
    f = FORMATS[dtype]
    magnitude = op("bitand", word, _word((1 << f.sign) - 1))
    sign = op("shl", op("bitand", word, _word(1 << f.sign)), _word(31 - f.sign))
    shifted = op("add", op("shl", magnitude, _word(HIDDEN - f.digits)), _word((BIAS - f.bias) << HIDDEN))
    small = cast("float32", magnitude) * const(2.0 ** (1 - f.bias - f.digits), "float32")
    number = select(op("lt", magnitude, _word(1 << f.digits)), bits(WORD, small), shifted)
    if f.special < 1 << f.sign:
        none: Expr = _word(0x7FC00000)
        if f.above < f.nan:
            none = select(op("eq", magnitude, _word(f.above)), _word(0x7F800000), none)
        number = select(op("ge", magnitude, _word(f.special)), none, number)
    number = op("bitor", number, sign)
    if not f.signed_zero:
        number = select(op("eq", word, _word(f.nan)), _word(0x7FC00000), number)
    return bits("float32", number)


def encoded(x: Expr, of: str, dtype: str, saturate: bool = True, rounding: str = "up") -> Expr:
    """A float32 or a whole number of dtype `of` as a narrow dtype: floats are rounded to nearest, halves to even, and
    clamped where they `saturate`; whole numbers lose what does not fit. `rounding` is for powers of two."""
    if dtype in NARROW_INTEGERS:
        mask = 3 if dtype.endswith("int2") else 15
        return bits(dtype, cast("uint8", op("bitand", cast("int32", x), const(mask, "int32"))))
    word = bits(WORD, x if of == "float32" else cast("float32", x))
    magnitude = op("bitand", word, _word(0x7FFFFFFF))
    nan = op("gt", magnitude, _word(0x7F800000))
    if dtype == "float8_e8m0fnu":
        return bits(dtype, cast("uint8", select(nan, _word(0xFF), _power(magnitude, saturate, rounding))))
    f = FORMATS[dtype]
    least = (BIAS + 1 - f.bias) << HIDDEN  # the bits of the smallest number whose first digit is hidden
    drop = HIDDEN - f.digits
    odd = op("bitand", op("shr", magnitude, _word(drop)), _word(1))
    normal = op("shr", magnitude + odd + _word((1 << (drop - 1)) - 1 - ((BIAS - f.bias) << HIDDEN)), _word(drop))
    steps = bits("float32", op("min", magnitude, _word(least))) * const(2.0 ** (f.bias - 1 + f.digits), "float32")
    code = select(op("lt", magnitude, _word(least)), cast(WORD, op("round", steps)), normal)
    code = select(op("gt", code, _word(f.largest)), _word(f.largest if saturate else f.above), code)
    sign = op("shr", op("bitand", word, _word(1 << 31)), _word(31 - f.sign))
    if f.signed_zero:
        code = op("bitor", select(nan, _word(f.nan), code), sign)
    else:
        signed = select(op("eq", code, _word(0)), code, op("bitor", code, sign))
        code = select(nan, _word(f.nan), signed)
    return bits(dtype, cast("uint8", code))


def _word(value: int) -> Const:
    return Const(value % (1 << 32), WORD)


def _whole(code: Expr, dtype: str) -> Expr:
    """What the lower bits of a byte are, with their sign."""
    width = 2 if dtype.endswith("int2") else 4
    number = op("bitand", cast("int32", code), const((1 << width) - 1, "int32"))
    if dtype.startswith("u"):
        return number
    half = const(1 << (width - 1), "int32")
    return op("bitxor", number, half) - half


def _power(magnitude: Expr, saturate: bool, rounding: str) -> Expr:
    """The exponent of a power of two near a number, from its bits."""
    exponent, mantissa = op("shr", magnitude, _word(HIDDEN)), op("bitand", magnitude, _word((1 << HIDDEN) - 1))
    if rounding != "down":
        more = op("gt", mantissa, _word(0)) if rounding == "up" else op("ge", mantissa, _word(1 << (HIDDEN - 1)))
        exponent = exponent + cast(WORD, more)
    if saturate:
        return op("min", exponent, _word(0xFE))
    return select(op("eq", magnitude, _word(0)), _word(0xFF), op("min", exponent, _word(0xFF)))
