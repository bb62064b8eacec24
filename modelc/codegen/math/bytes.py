"""Dot products of four bytes with four bytes, in each lane of 32 bits: by the CPU's own instructions, or by shifts.

x86, AVX2     vpmaddubsw, vpmaddwd with ones: exact, for no byte of the first is above 127 (2 * 127 * 128 < 2^15)
x86, VNNI     vpdpbusd
AArch64       sdot
"""

from __future__ import annotations

from typing import Any

from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.math.code import Code, Expr, let_operands, target_arch
from modelc.codegen.math.llvm_text import call

PAIRS = """define <{n} x i32> @{name}(<{n} x i32> %w, <{n} x i32> %a) {{
  %wb = bitcast <{n} x i32> %w to <{bytes} x i8>
  %ab = bitcast <{n} x i32> %a to <{bytes} x i8>
  %p = call <{half} x i16> @llvm.x86.avx2.pmadd.ub.sw(<{bytes} x i8> %wb, <{bytes} x i8> %ab)
  %s = call <{n} x i32> @llvm.x86.avx2.pmadd.wd(<{half} x i16> %p, <{half} x i16> splat (i16 1))
  ret <{n} x i32> %s
}}
declare <{half} x i16> @llvm.x86.avx2.pmadd.ub.sw(<{bytes} x i8>, <{bytes} x i8>)
declare <{n} x i32> @llvm.x86.avx2.pmadd.wd(<{half} x i16>, <{half} x i16>)"""
ADDED = """define <{n} x i32> @{name}(<{n} x i32> %w, <{n} x i32> %a) {{
  %wb = bitcast <{n} x i32> %w to <{bytes} x i8>
  %ab = bitcast <{n} x i32> %a to <{bytes} x i8>
  %s = call <{n} x i32> @{intrinsic}(<{n} x i32> zeroinitializer, <{bytes} x i8> %wb, <{bytes} x i8> %ab)
  ret <{n} x i32> %s
}}
declare <{n} x i32> @{intrinsic}(<{n} x i32>, <{bytes} x i8>, <{bytes} x i8>)"""


@let_operands
def dot4(code: Code, a: Expr, b: Expr) -> Expr:
    """Of int32."""
    text, intrinsic = _instruction(code.lanes)
    if text:
        name = f"modelc_dot4_x{code.lanes}"
        sizes = {"n": code.lanes, "half": 2 * code.lanes, "bytes": 4 * code.lanes}
        return call(code.type(), name, text.format(name=name, intrinsic=intrinsic, **sizes), a, b)
    eight, low = code.const(24), code.const(255)
    total = None
    for shift in range(0, 32, 8):
        left = tx.bitwise_and(a >> code.const(shift), low)
        product = left * ((b << code.const(24 - shift)) >> eight)
        total = product if total is None else total + product
    return total


def _instruction(lanes: int) -> tuple[str, str]:
    """The text and the intrinsic of LLVM for so many lanes; empty where there is none."""
    target: Any = tvm.target.Target.current(allow_none=True)
    if target is None or lanes not in (4, 8, 16):
        return "", ""
    has = tvm.target.codegen.llvm_cpu_has_features
    if target_arch() == "aarch64" and lanes == 4 and has("dotprod"):
        return ADDED, "llvm.aarch64.neon.sdot.v4i32.v16i8"
    if target_arch() == "x86_64" and lanes == 16 and has("avx512vnni"):
        return ADDED, "llvm.x86.avx512.vpdpbusd.512"
    if target_arch() == "x86_64" and lanes == 8 and has("avx512vnni") and has("avx512vl"):
        return ADDED, "llvm.x86.avx512.vpdpbusd.256"
    if target_arch() == "x86_64" and lanes == 8 and has("avx2"):
        return PAIRS, ""
    return "", ""
