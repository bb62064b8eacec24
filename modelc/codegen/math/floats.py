"""Operations on floats: polynomials for float32 in hot loops, LLVM's intrinsics, libm."""

from __future__ import annotations

import math
from collections.abc import Callable

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.code import Code, Expr, constant_value, let_operands, plain
from modelc.codegen.math.integers import COMPARISONS, PLAIN, power_by_squaring
from modelc.codegen.math.periodic import cos, sin
from modelc.codegen.math.polynomials import erf, exp, log, sigmoid, softplus, tanh
from modelc.codegen.math.select import (
    absolute,
    ceil_,
    differ,
    equal,
    floor_,
    floor_and_modulus,
    maximum,
    minimum,
    round_,
    sign,
)


@let_operands
def _power(code: Code, base: Expr, exponent: Expr) -> Expr:
    """A constant exponent that is a small multiple of 1/4 becomes products and square roots; others are libm's."""
    power = constant_value(exponent)
    if power is None or power * 4 != int(power * 4) or abs(power) > 16:
        return code.intrinsic("pow", base, exponent)
    whole, quarters = divmod(int(abs(power) * 4), 4)
    if quarters:  # the roots of -0 and -infinity, as libm has them
        zero, infinity = code.const(0), code.const(math.inf)
        positive = tx.Select(tx.EQ(base, code.const(-math.inf)), infinity, base)
        base = code.let(tx.Select(tx.EQ(base, zero), zero, positive))
    result = power_by_squaring(code, base, whole)
    if quarters:
        half = code.let(code.intrinsic("sqrt", base))
        root = half if quarters == 2 else code.let(code.intrinsic("sqrt", half))
        root = root * half if quarters == 3 else root
        result = result * root if whole else root
    return code.const(1) / result if power < 0 else result


def _divided(code: Code, a: Expr, b: Expr) -> Expr:
    """TIR, which folds constants, takes a division by a constant zero for a mistake: it is a product by infinity."""
    divisor = constant_value(b)
    return a / b if divisor != 0 else a * code.const(math.copysign(math.inf, divisor))


@let_operands
def _float64_softplus(code: Code, x: Expr) -> Expr:
    tail = code.libm("log1p", code.intrinsic("exp", code.const(0) - absolute(code, x)))
    return tx.Select(code.const(0) > x, code.const(0), x) + tail


def _by_width(polynomial: Callable[..., Expr], exact: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda code, *args: (polynomial if code.dtype == "float32" else exact)(code, *args)


def _intrinsic(name: str) -> Callable[..., Expr]:
    return lambda code, *args: code.intrinsic(name, *args)


def _libm(name: str) -> Callable[..., Expr]:
    return lambda code, *args: code.libm(name, *args)


FLOATS: dict[str, Callable[..., Expr]] = {
    **COMPARISONS,
    "eq": equal,
    "ne": differ,
    **{name: plain(node) for name, node in PLAIN.items()},
    "div": _divided,
    "floordiv": let_operands(lambda code, a, b: floor_and_modulus(code, a, b)[0]),
    "mod": let_operands(lambda code, a, b: floor_and_modulus(code, a, b)[1]),
    "truncdiv": lambda code, a, b: code.intrinsic("trunc", _divided(code, a, b)),
    "fmod": _libm("fmod"),
    "pow": _power,
    "max": maximum,
    "min": minimum,
    "neg": lambda code, a: a * code.const(-1),
    "abs": absolute,
    "sign": sign,
    "floor": floor_,
    "ceil": ceil_,
    "round": round_,
    "sqrt": _intrinsic("sqrt"),
    "exp": _by_width(exp, _intrinsic("exp")),
    "log": _by_width(log, _intrinsic("log")),
    "erf": _by_width(erf, _libm("erf")),
    "tanh": _by_width(tanh, _intrinsic("tanh")),
    "sigmoid": _by_width(
        sigmoid, lambda code, x: code.const(1) / (code.const(1) + code.intrinsic("exp", code.const(0) - x))
    ),
    "softplus": _by_width(softplus, _float64_softplus),
    "sin": _by_width(sin, _intrinsic("sin")),
    "cos": _by_width(cos, _intrinsic("cos")),
    **{name: _intrinsic(name) for name in ("tan", "asin", "acos", "atan", "sinh", "cosh")},
    **{name: _libm(name) for name in ("asinh", "acosh", "atanh")},
    "isnan": plain(tx.isnan),
    "isinf": lambda code, x: tx.EQ(absolute(code, x), code.const(math.inf)),
}
