"""What the C function of an opaque Block is made of."""

from __future__ import annotations

from dataclasses import dataclass

from modelc.ir.expr import INTEGERS, NARROW

Tensor = tuple[str, tuple[int, ...]]  # dtype, shape
C_TYPES = {"float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t"}
C_TYPES |= {name: f"{name}_t" for name in INTEGERS} | dict.fromkeys(NARROW, "uint8_t")


@dataclass(frozen=True)
class Body:
    """What one meaning becomes: C declarations that come before the function, its statements, its loop's extent and
    the bytes of scratch that each thread needs."""

    helpers: str
    statements: str
    extent: int
    scratch_bytes: int = 0
