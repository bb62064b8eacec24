"""Inputs and outputs of a package."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from modelc.ir.expr import NARROW

DTYPE_BYTES = {  # in the order of modelc_dtype in model.h
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    **dict.fromkeys(NARROW, 1),
}


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output: row-major, without gaps."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)
