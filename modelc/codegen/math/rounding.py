"""float32 to bfloat16 by the CPU's own instruction (vcvtneps2bf16, bfcvtn), for vectors.

It rounds to nearest even and keeps NaNs quiet, as the shifts in math.py do. x86's takes subnormal numbers as zero
whatever the mode, as its products of bfloat16 do; they are below 1.2e-38 in bfloat16 as in float32. TVM's code
generator has no bfloat16, so the conversion is a function of LLVM's own text that gives the bits.
"""

from __future__ import annotations

from typing import Any

from modelc.codegen.lean_tvm import tvm
from modelc.codegen.math.llvm_text import call

FEATURES = {"x86_64": "avx512bf16", "aarch64": "bf16"}
LANES = (4, 8, 16, 32, 64)


def rounds(lanes: int) -> bool:
    """Whether the current TVM target has the instruction, and the text a function for so many lanes."""
    target = tvm.target.Target.current(allow_none=True)
    if target is None or lanes not in LANES:
        return False
    arch = str(target.attrs.get("mtriple", "")).partition("-")[0]
    return arch in FEATURES and f"+{FEATURES[arch]}" in list(target.attrs.get("mattr", ()))


def rounded_bits(x: Any, lanes: int) -> Any:
    """The bits of `x` in bfloat16, as TIR."""
    name = f"modelc_bfloat16_x{lanes}"
    return call(f"uint16x{lanes}", name, _text(name, lanes), x)


def _text(name: str, n: int) -> str:
    return f"""define <{n} x i16> @{name}(<{n} x float> %x) {{
  %r = fptrunc <{n} x float> %x to <{n} x bfloat>
  %b = bitcast <{n} x bfloat> %r to <{n} x i16>
  ret <{n} x i16> %b
}}"""
