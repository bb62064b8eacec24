"""Inputs and outputs of a package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from modelc.ir.expr import DTYPES
from modelc.ir.sizes import Sizes, at, is_sized, most, text_of
from modelc.runtime.tensors import DTYPES as NUMBERED

DTYPE_BYTES = {dtype: DTYPES[dtype].itemsize for dtype in NUMBERED}  # in the order of modelc_dtype in model.h


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output: row-major, without gaps. `extents` are those of a run, where its sizes are free: then
    `shape` is the most that they can be."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    extents: tuple[int, ...] = ()

    @classmethod
    def of(cls, name: str, dtype: str, shape: tuple[int, ...]) -> TensorInfo:
        """A tensor whose shape may depend on sizes."""
        return cls(name, dtype, tuple(map(most, shape)), shape if any(map(is_sized, shape)) else ())

    @property
    def shown(self) -> tuple[Any, ...]:
        """The shape, with texts where sizes of a run say the extents."""
        return tuple(text_of(n) if is_sized(n) else n for n in self.extents) if self.extents else self.shape

    def at(self, run: Sizes) -> TensorInfo:
        """The tensor in a run."""
        return TensorInfo(self.name, self.dtype, tuple(at(n, run) for n in self.extents)) if self.extents else self

    @property
    def bytes(self) -> int:
        """Room for it: the most that it has."""
        return DTYPE_BYTES[self.dtype] * prod(self.shape)

    @property
    def bytes_in_run(self) -> int:
        """What it has in a run, a number that its sizes say."""
        return DTYPE_BYTES[self.dtype] * prod(self.extents or self.shape)


def with_shapes(variants: Sequence[Sequence[TensorInfo]], shapes: Sequence[tuple[int, ...]]) -> int | None:
    """The number of the variant, of which the inputs are given, that is made for these shapes; None where none is."""
    given = list(shapes)
    return next((k for k, inputs in enumerate(variants) if [t.shape for t in inputs] == given), None)
