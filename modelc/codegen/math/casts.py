"""Conversions between dtypes. Bits of a bfloat16 travel as uint16."""

from __future__ import annotations

from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.math.code import Code, Expr, is_risc_v, let_operands, target_arch
from modelc.codegen.math.integers import not_
from modelc.codegen.math.llvm_text import call
from modelc.codegen.math.select import at_most
from modelc.ir.expr import INTEGERS

HALVES = ("float16", "bfloat16")
FLOATS = ("float32", "float64")  # that the machine converts
TO_BFLOAT16 = {"x86_64": "avx512bf16", "aarch64": "bf16"}  # the features with an instruction, for so many lanes
LANES = (4, 8, 16, 32, 64)


def cast(code: Code, dtype: str, x: Expr, from_dtype: str) -> Expr:
    """`x` of `from_dtype` as `dtype`, where a bfloat16 is its bits."""
    if dtype == from_dtype:
        return x
    if from_dtype == "bfloat16":
        wide = tx.Cast(code.type("uint32"), x) << code.const(16, "uint32")
        return cast(code, dtype, tx.reinterpret(code.type("float32"), wide), "float32")
    if (dtype in HALVES and from_dtype != "float32") or (from_dtype == "float16" and dtype != "float32"):
        return cast(code, dtype, cast(code, "float32", x, from_dtype), "float32")
    if dtype == "bfloat16":
        return _to_bfloat16(code, x)
    if from_dtype == "float16" and is_risc_v():
        return _half_to_float(code, x)
    if dtype == "float16" and is_risc_v():
        return _float_to_half(code, x)
    if dtype == "bool":
        return not_(code, tx.EQ(x, code.const(0, from_dtype)))
    if from_dtype == "bool":
        return tx.Select(x, code.const(1, dtype), code.const(0, dtype))
    if from_dtype in FLOATS and dtype in INTEGERS:
        return _truncated(code, dtype, x, from_dtype)
    return tx.Cast(code.type(dtype), x)


def between(code: Code, x: Expr, least: float, most: float) -> Expr:
    """`x` limited to that; a NaN fails the first comparison, and is `least`."""
    x, low = code.let(x), code.const(least)
    return at_most(code, code.let(tx.Select(x > low, x, low)), most)


def _truncated(code: Code, dtype: str, x: Expr, from_dtype: str) -> Expr:
    """`x` rounded towards zero, as ir/arithmetic.py says. LLVM's conversion is undefined for what does not fit, and its
    own saturating one is computed lane by lane on x86."""
    wide = "int64" if dtype.endswith("64") else "int32"
    least = -(2.0 ** (int(wide[3:]) - 1))
    x, bound, lowest = code.let(x), code.const(-least, from_dtype), code.const(least, from_dtype)
    if dtype not in ("uint32", "uint64"):
        return tx.Cast(code.type(dtype), _signed(code, wide, x, bound, lowest))
    upper = x >= bound
    number = _signed(code, wide, code.let(tx.Select(upper, x + lowest, x)), bound, lowest)
    top = tx.Select(upper, code.const(int(least), wide), code.const(0, wide))
    return tx.reinterpret(code.type(dtype), tx.bitwise_xor(number, top))


def _signed(code: Code, wide: str, x: Expr, bound: Expr, lowest: Expr) -> Expr:
    """The least number for what does not fit: a NaN fails the first comparison."""
    below = code.let(tx.Select(x < bound, x, lowest))
    return tx.Cast(code.type(wide), tx.Select(below > lowest, below, lowest))


@let_operands
def _to_bfloat16(code: Code, x: Expr) -> Expr:
    """The upper half of the bits, rounded to nearest even; a NaN keeps its sign and becomes quiet."""
    if _rounds(code.lanes):
        return _rounded(code, x)
    bits = code.let(tx.reinterpret(code.type("uint32"), x))
    sixteen = code.const(16, "uint32")
    even = tx.bitwise_and(bits >> sixteen, code.const(1, "uint32"))
    # two additions that cannot carry out of 32 bits for a number that is not NaN
    rounded = (bits + (even + code.const(0x7FFF, "uint32"))) >> sixteen
    quiet = tx.bitwise_or(bits >> sixteen, code.const(0x40, "uint32"))
    return tx.Cast(code.type("uint16"), tx.Select(tx.isnan(x), quiet, rounded))


def _rounds(lanes: int) -> bool:
    """Whether the current TVM target has an instruction for it."""
    target, feature = tvm.target.Target.current(allow_none=True), TO_BFLOAT16.get(target_arch())
    return target is not None and lanes in LANES and f"+{feature}" in list(target.attrs.get("mattr", ()))


def _rounded(code: Code, x: Expr) -> Expr:
    """By the CPU's own instruction (vcvtneps2bf16, bfcvtn). x86's takes subnormal numbers as zero whatever the mode, as
    its products of bfloat16 do; they are below 1.2e-38 in bfloat16 as in float32."""
    n, name = code.lanes, f"modelc_bfloat16_x{code.lanes}"
    text = f"""define <{n} x i16> @{name}(<{n} x float> %x) {{
  %r = fptrunc <{n} x float> %x to <{n} x bfloat>
  %b = bitcast <{n} x bfloat> %r to <{n} x i16>
  ret <{n} x i16> %b
}}"""
    return call(f"uint16x{n}", name, text, x)


@let_operands
def _half_to_float(code: Code, x: Expr) -> Expr:
    """float16 as float32 by its bits, after F. Giesen: for RISC-V without half floats, where the functions that LLVM
    calls and TVM defines pass them in different registers. Subnormals must not be flushed."""
    bits = code.let(tx.Cast(code.type("uint32"), tx.reinterpret(code.type("uint16"), x)))
    magnitude = code.let(tx.bitwise_and(bits, code.const(0x7FFF, "uint32")))
    shifted = code.let(magnitude << code.const(13, "uint32"))
    number = tx.reinterpret(code.type("uint32"), code.as_float(shifted) * code.const(2.0**112))
    infinite = tx.bitwise_or(shifted, code.const(0x7F800000, "uint32"))  # or a NaN
    value = tx.Select(magnitude < code.const(0x7C00, "uint32"), number, infinite)
    return code.as_float(tx.bitwise_or(value, (bits - magnitude) << code.const(16, "uint32")))


@let_operands
def _float_to_half(code: Code, x: Expr) -> Expr:
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
