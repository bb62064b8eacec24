"""Inputs and outputs of a package, and arrays for them. Standard library and numpy alone."""

from __future__ import annotations

import ctypes
import importlib
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64  # of a cache line

Array = NDArray[Any]


class TensorInfo(NamedTuple):
    """An input or an output. Arrays of bfloat16, and of the dtypes that take less than a byte's worth of digits, are
    ml_dtypes' where that can be imported, and else their bits in uint16 and uint8; inputs may be either."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Variant(NamedTuple):
    """The model as compiled for one set of input shapes."""

    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


_FLOATS = ("float32", "float64", "float16", "bfloat16")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_NARROW = (*_FLOAT8, "float4_e2m1fn", "int4", "uint4", "int2", "uint2")
DTYPES = (*_FLOATS, *_INTEGERS, "bool", *_NARROW)  # in the order of modelc_dtype in model.h


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    bits = bits_dtype(dtype)
    try:
        return bits if bits.name == dtype else np.dtype(getattr(importlib.import_module("ml_dtypes"), dtype))
    except (ImportError, AttributeError):
        return bits


def bits_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else "uint8" if dtype in _NARROW else dtype)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array that begins at a cache line: rows that lie across lines are read and written twice as slowly."""
    memory = np.empty(math.prod(shape) * dtype.itemsize + LINE_BYTES, np.uint8)
    array: Array = np.ndarray(shape, dtype, memory, -address_of(memory) % LINE_BYTES)
    return array


def address_of(array: Array) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only or empty: the way that is always right takes three times as long
        return int(array.__array_interface__["data"][0])
