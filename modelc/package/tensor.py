"""Inputs and outputs of a package."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from modelc.ir.expr import DTYPES
from modelc.runtime.loader import DTYPES as NUMBERED

DTYPE_BYTES = {dtype: DTYPES[dtype].itemsize for dtype in NUMBERED}  # in the order of modelc_dtype in model.h


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output: row-major, without gaps."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)
