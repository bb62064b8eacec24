"""exp, erf, tanh and sigmoid of float32 where what is made of them is rounded to bfloat16: half the instructions, or
(erf) as many as float32 takes, and no division.

Each is off by less than 2**-13 of its value, a sixteenth of what the rounding may be off by, also near zero; and so are
1 + erf(x), 1 + tanh(x) and e**x - 1, but for what float32 itself leaves of them. Coefficients are minimax fits (linear
programs over dense grids).
"""

from __future__ import annotations

import math

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.code import Code, Expr, let_operands
from modelc.codegen.math.polynomials import logistic
from modelc.codegen.math.select import absolute, at_least, at_most

SHIFTER = 1.5 * 2**23  # added, it rounds, and leaves the integer in the low bits of the sum
FRACTION = (9.650430479e-3, 5.584475880e-2, 0.2402248976, 0.6931363187)  # (2**r - 1) / r, |r| <= 1/2
ERFC = (-2.1504405e-4, 3.8279364e-3, -3.0452652e-2, 1.482831e-1, 9.191399e-1, 1.6278385)  # -log2(erfc(x)) / x, x <= 4


def _power(code: Code, y: Expr) -> tuple[Expr, Expr]:
    """(n as the bits of an exponent, 2**(y - n) - 1), n = round(y)."""
    shifted = code.let(y + code.const(SHIFTER))
    r = code.let(y - (shifted - code.const(SHIFTER)))
    return code.as_int(shifted) << code.int(23), code.polynomial(r, FRACTION) * r


def _falling(code: Code, y: Expr) -> tuple[Expr, Expr]:
    """(1 - 2**y, 1 + 2**y) for y in [-126, 0]; the difference is as exact near 0."""
    exponent, fraction = _power(code, y)
    whole = code.let(code.as_float(exponent + code.int(0x3F800000)))
    scaled = code.let(whole * fraction)
    return code.const(1) - whole - scaled, code.const(1) + whole + scaled


@let_operands
def exp(code: Code, x: Expr) -> Expr:
    """Results below 2**-126 are 0."""
    exponent, fraction = _power(code, code.let(x * code.const(math.log2(math.e))))
    scaled = code.as_float(code.as_int(fraction + code.const(1)) + exponent)
    scaled = tx.Select(x < code.const(-87.33654), code.const(0), scaled)
    return tx.Select(x <= code.const(88.72283), scaled, x + code.const(math.inf))


sigmoid = logistic(exp)


@let_operands
def tanh(code: Code, x: Expr) -> Expr:
    """(1 - e**-2|x|) / (1 + e**-2|x|)."""
    y = code.let(absolute(code, x) * code.const(-2 * math.log2(math.e)))
    less, more = _falling(code, at_least(code, y, -60.0))
    return code.intrinsic("copysign", less / more, x)


@let_operands
def erf(code: Code, x: Expr) -> Expr:
    """1 - erfc(|x|), erfc by its logarithm."""
    magnitude = at_most(code, code.let(absolute(code, x)), 4.0)
    less, _ = _falling(code, code.let(code.polynomial(magnitude, tuple(-c for c in ERFC)) * magnitude))
    return code.intrinsic("copysign", less, x)
