"""Functions of float32 by polynomials, for hot loops: no call is left in the machine code.

exp, log, tanh after S. Moshier's Cephes (expf.c, logf.c, tanhf.c); erf is the rational function that XLA and Eigen
have. Nothing depends on whether a*b+c is contracted to one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.code import Code, Expr, let_operands
from modelc.codegen.math.select import absolute, at_least, at_most


def _scaled_exp(code: Code, x: Expr) -> Expr:
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


@let_operands
def exp(code: Code, x: Expr) -> Expr:
    """Results below 2**-126 are 0."""
    scaled = tx.Select(x < code.const(-87.33654), code.const(0), _scaled_exp(code, x))
    return tx.Select(x <= code.const(88.72283), scaled, x + code.const(math.inf))


def _log1p_fraction(code: Code, f: Expr, e: Expr) -> Expr:
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


@let_operands
def log(code: Code, x: Expr) -> Expr:
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


def logistic(exp: Callable[..., Expr]) -> Callable[..., Expr]:
    return let_operands(lambda code, x: code.const(1) / (code.const(1) + exp(code, code.let(-x))))


sigmoid = logistic(exp)


@let_operands
def tanh(code: Code, x: Expr) -> Expr:
    """An odd polynomial near 0, 1 - 2 / (e**2|x| + 1) elsewhere; a NaN takes the first."""
    magnitude, square = code.let(absolute(code, x)), code.let(x * x)
    near = code.polynomial(
        square, (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    )
    power = _scaled_exp(code, at_most(code, magnitude * code.const(2), 60.0))
    far = code.const(1) - code.const(2) / (power + code.const(1))
    result = tx.Select(magnitude > code.const(0.625), far, near * code.let(square * x) + x)
    return code.intrinsic("copysign", result, x)


@let_operands
def erf(code: Code, x: Expr) -> Expr:
    """x P(x**2) / Q(x**2), which is a little more than 1 at 4: limited to 1, it is that from there on."""
    near = code.let(at_most(code, at_least(code, x, -4.0), 4.0))
    square = code.let(near * near)
    p = code.polynomial(square, (2.2905065861e-4, 3.4082910107e-3, 5.0955695062e-2, 1.8520832240e-1, 1.1283791435))
    q = code.polynomial(
        square,
        (-1.1791602955e-7, 2.3547966471e-5, 1.0179625279e-3, 1.4070470171e-2, 1.1098505178e-1, 4.9746925110e-1, 1.0),
    )
    return at_most(code, at_least(code, code.let(near * p / q), -1.0), 1.0)


@let_operands
def softplus(code: Code, x: Expr) -> Expr:
    """max(x, 0) + log(1 + u), u = e**-|x| in [0, 1]. 1 + u is halved above sqrt(2), exactly, without forming it."""
    u = code.let(exp(code, code.let(code.const(0) - absolute(code, x))))
    large = code.let(u > code.const(math.sqrt(2) - 1))
    f = code.let(tx.Select(large, u * code.const(0.5) - code.const(0.5), u))
    e = code.let(tx.Select(large, code.const(1), code.const(0)))
    return tx.Select(code.const(0) > x, code.const(0), x) + _log1p_fraction(code, f, e)
