"""sin and cos of float32, right for every number.

|x| = n pi/2 + r by Cody and Waite: pi/2 in parts, of which n takes exact multiples; then sin r or cos r (polynomials
after S. Moshier's sinf.c) by n's parity. That holds up to a bound. Where a lane of the vector is beyond, it is libm's:
a reduction by all the bits of 2/pi that its exponent needs is long, and arguments so large are rare.
"""

from __future__ import annotations

import math

from modelc.codegen.lean_tvm import tx
from modelc.codegen.math.code import Code, Expr, fuses, let_operands
from modelc.codegen.math.llvm_text import call, vector
from modelc.codegen.math.select import absolute

# pi/2 in parts, and how large an argument they reduce. One rounding to a product and its sum leaves differences exact:
# whole floats. Else products have to be exact: parts of 12 bits, for n of 12 bits.
FUSED = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
SPLIT = (1.57080078125, -4.453584551811218e-06, -8.706138032721356e-10, 6.223371969669989e-14)
FUSED_BOUND, SPLIT_BOUND = 131072.0, 6400.0


def _reduced(code: Code, x: Expr, n: Expr) -> Expr:
    """x - n pi/2."""
    if not fuses():
        for part in SPLIT:
            x = x - n * code.const(part)
        return x
    negative = code.let(n * code.const(-1))
    for part in FUSED:
        x = code.intrinsic("fma", negative, code.const(part), x)
    return x


def _near(code: Code, x: Expr, magnitude: Expr, quarter: int) -> Expr:
    """sin(x + quarter * pi/2) up to the bound. Adding 1.5 * 2**23 rounds, and leaves n in the low bits."""
    shifter = code.const(1.5 * 2**23)
    shifted = code.let(magnitude * code.const(2 / math.pi) + shifter)
    r = code.let(_reduced(code, magnitude, code.let(shifted - shifter)))
    quadrant = code.let(code.as_int(shifted + code.const(1) if quarter else shifted))
    z = code.let(r * r)
    sine = code.polynomial(z, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)) * (z * r) + r
    cosine = code.polynomial(z, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)) * (z * z)
    cosine = cosine - z * code.const(0.5) + code.const(1)
    odd = tx.NE(tx.bitwise_and(quadrant, code.int(1)), code.int(0))
    sign = tx.bitwise_and(quadrant, code.int(2)) << code.int(30)
    if not quarter:  # sin is odd
        sign = tx.bitwise_xor(sign, tx.bitwise_and(code.as_int(x), code.int(-(2**31))))
    return code.as_float(tx.bitwise_xor(code.as_int(tx.Select(odd, cosine, sine)), sign))


def _periodic(code: Code, x: Expr, quarter: int) -> Expr:
    magnitude = code.let(absolute(code, x))
    near = code.let(_near(code, x, magnitude, quarter))
    name = f"modelc_{'cos' if quarter else 'sin'}_x{code.lanes}"
    text = _far("cosf" if quarter else "sinf", name, code.lanes, FUSED_BOUND if fuses() else SPLIT_BOUND)
    return call(code.type(), name, text, near, x, magnitude)


@let_operands
def sin(code: Code, x: Expr) -> Expr:
    return _periodic(code, x, 0)


@let_operands
def cos(code: Code, x: Expr) -> Expr:
    return _periodic(code, x, 1)


def _far(libm: str, name: str, lanes: int, bound: float) -> str:
    """`near`, and libm's for the lanes whose magnitude is beyond the bound, if any is."""
    t, mask = vector("float", lanes), vector("i1", lanes)
    limit = f"{bound:e}" if lanes == 1 else f"splat (float {bound:e})"
    any_ = "%far" if lanes == 1 else "%any"
    reduced = f"%any = call i1 @llvm.vector.reduce.or.v{lanes}i1({mask} %far)" if lanes > 1 else ""
    if lanes == 1:
        rare = f"""rare:
  %s = call float @{libm}(float %x)
  ret float %s"""
    else:
        rare = f"""rare:
  %k = phi i32 [ 0, %entry ], [ %next, %step ]
  %r = phi {t} [ %near, %entry ], [ %q, %step ]
  %one = extractelement {t} %x, i32 %k
  %size = extractelement {t} %magnitude, i32 %k
  %beyond = fcmp ogt float %size, {bound:e}
  br i1 %beyond, label %lane, label %step
lane:
  %s = call float @{libm}(float %one)
  %p = insertelement {t} %r, float %s, i32 %k
  br label %step
step:
  %q = phi {t} [ %r, %rare ], [ %p, %lane ]
  %next = add i32 %k, 1
  %last = icmp eq i32 %next, {lanes}
  br i1 %last, label %end, label %rare, !llvm.loop !0
end:
  ret {t} %q"""
    return f"""declare float @{libm}(float)
declare i1 @llvm.expect.i1(i1, i1)
{f"declare i1 @llvm.vector.reduce.or.v{lanes}i1({mask})" if lanes > 1 else ""}
define {t} @{name}({t} %near, {t} %x, {t} %magnitude) {{
entry:
  %far = fcmp ogt {t} %magnitude, {limit}
  {reduced}
  %unlikely = call i1 @llvm.expect.i1(i1 {any_}, i1 false)
  br i1 %unlikely, label %rare, label %common
{rare}
common:
  ret {t} %near
}}
!0 = distinct !{{!0, !1}}
!1 = !{{!"llvm.loop.unroll.disable"}}
"""
