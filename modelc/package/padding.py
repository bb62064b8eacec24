"""Padding: inputs that are shorter than a variant's along some dimensions are filled up, and outputs cut back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.package.tensor import TensorInfo

Shapes = Sequence[tuple[int, ...]]  # of the inputs, in the package's order


@dataclass(frozen=True)
class Along:
    """Input or output `tensor` is as long along `axis` as padded dimension `dim`."""

    tensor: int
    axis: int
    dim: int


@dataclass(frozen=True)
class Fill:
    """What input `tensor` is filled up with in place of zeros: the bits of an element."""

    tensor: int
    bits: int


@dataclass(frozen=True)
class Padding:
    """The padded dimensions by name, the inputs and outputs that hang on them, and what is filled up otherwise than
    with zeros."""

    dims: tuple[str, ...]
    inputs: tuple[Along, ...]
    outputs: tuple[Along, ...]
    fills: tuple[Fill, ...] = ()

    def extents(self, shapes: Shapes) -> tuple[int, ...] | None:
        """How long each dimension is where inputs have these shapes; None where two of them disagree, or one is 0."""
        lengths = [
            {shapes[along.tensor][along.axis] for along in self.inputs if along.dim == d} for d in range(len(self.dims))
        ]
        return tuple(min(of) for of in lengths) if all(len(of) == 1 and min(of) > 0 for of in lengths) else None

    def fits(self, shapes: Shapes, into: Shapes) -> bool:
        """Whether inputs of these shapes can be filled up to others."""
        padded = {(along.tensor, along.axis) for along in self.inputs}
        if list(map(len, shapes)) != list(map(len, into)) or self.extents(shapes) is None:
            return False
        pairs = (
            (n, most, (k, axis) in padded)
            for k, (shape, whole) in enumerate(zip(shapes, into, strict=True))
            for axis, (n, most) in enumerate(zip(shape, whole, strict=True))
        )
        return all(n <= most if free else n == most for n, most, free in pairs)

    def filled(self, feed: Mapping[str, NDArray[Any]], tensors: Sequence[TensorInfo]) -> dict[str, NDArray[Any]]:
        """The inputs at the size of `tensors`."""
        bits = {fill.tensor: fill.bits for fill in self.fills}
        arrays = {}
        for k, tensor in enumerate(tensors):
            given = feed[tensor.name]
            unit = np.array([bits.get(k, 0)], "<u8").view(np.uint8)[: given.dtype.itemsize].view(given.dtype)
            arrays[tensor.name] = np.full(tensor.shape, unit)
            arrays[tensor.name][tuple(map(slice, given.shape))] = given
        return arrays


def variant_for(variants: Sequence[Sequence[TensorInfo]], padding: Padding | None, shapes: Shapes) -> int | None:
    """The smallest variant, of which the inputs are given, that takes inputs of these shapes: the one that is made for
    them, or where there is padding one that is larger. None where there is none."""
    made_for = [[t.shape for t in tensors] for tensors in variants]
    fitting = [k for k, into in enumerate(made_for) if list(shapes) == into or (padding and padding.fits(shapes, into))]
    return min(fitting, key=lambda k: sum(t.bytes for t in variants[k]), default=None)
