"""What the C function of an opaque Block is made of."""

from __future__ import annotations

from dataclasses import dataclass

from modelc.ir.expr import DTYPES, INTEGERS, NARROW

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


def rank_of(dtype: str) -> str:
    """C's rank_of(value): unsigned, ordered as the values."""
    bits = 8 * DTYPES[dtype].itemsize
    head = f"static inline uint64_t rank_of({C_TYPES[dtype]} value) {{\n"
    if dtype.startswith(("uint", "bool")):
        return head + "    return value;\n}\n\n"
    sign = f"(UINT64_C(1) << {bits - 1})"
    if dtype.startswith("int"):
        return head + f"    return (uint64_t)(uint{bits}_t)value ^ {sign};\n}}\n\n"
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}[dtype]
    return (
        head
        + f"""\
    uint{bits}_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint64_t magnitude = bits & ({sign} - 1);
    if (magnitude > {infinity:#x}) return UINT64_C(1) << {bits - 1} | {infinity + 1:#x};
    return bits & {sign} ? {sign} - magnitude : {sign} + magnitude;
}}

"""
    )
