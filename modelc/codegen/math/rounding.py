"""float32 to bfloat16 by the CPU's own instruction (vcvtneps2bf16, bfcvtn), for vectors.

It rounds to nearest even and keeps NaNs quiet, as the shifts in math.py do. x86's takes subnormal numbers as zero
whatever the mode, as its products of bfloat16 do; they are below 1.2e-38 in bfloat16 as in float32. TVM's code
generator has no bfloat16, so the conversion is a function of LLVM's own text that gives the bits; LLVM inlines it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx as tx

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
    """The bits of `x` in bfloat16, as TIR; the function around it has to be `with_rounding`."""
    return tx.call_pure_extern(f"uint16x{lanes}", f"modelc_bfloat16_x{lanes}", x)


def with_rounding(body: Any) -> Any:
    """`body` with the functions that `rounded_bits` calls."""
    return tx.AttrStmt(tx.IntImm("int32", 0), "pragma_import_llvm", tvm.ir.StringImm(_TEXT), body)


_TEXT = "\n".join(
    f"""define <{n} x i16> @modelc_bfloat16_x{n}(<{n} x float> %x) {{
  %r = fptrunc <{n} x float> %x to <{n} x bfloat>
  %b = bitcast <{n} x bfloat> %r to <{n} x i16>
  ret <{n} x i16> %b
}}"""
    for n in LANES
)
