"""Fourier transforms as contractions with a table of sines and cosines."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer, Iter
from modelc.ir.expr import Expr, Load, Var
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    axis_of,
    fail,
    fold,
    given,
    grid,
    known_ints,
    names,
    normal_axis,
    point,
    required,
)

Outputs = tuple[Value | None, ...]
LONGEST = 4096  # the table grows with the square


def rotations(length: int, bins: int, used: int, parts: int, inverse: bool) -> NDArray[Any]:
    """The table [bin, part of the output, element, part of the input] of a transform over `length` elements, of which
    `used` are there; parts are real and imaginary."""
    angle = (1 if inverse else -1) * 2 * np.pi * (np.outer(np.arange(bins), np.arange(used)) % length) / length
    real, imaginary = np.cos(angle), np.sin(angle)
    table = np.stack([np.stack([real, -imaginary], -1), np.stack([imaginary, real], -1)], 1)
    return table[..., :parts] / (length if inverse else 1)


def hermitian(length: int, bins: int) -> NDArray[Any]:
    """The table of the inverse transform of one half of a symmetric spectrum, whose result is real."""
    table = rotations(length, length, bins, 2, True)[:, :1]
    twice = [1.0 if k == 0 or 2 * k == length else 2.0 for k in range(bins)]
    return np.asarray(table * np.asarray(twice)[:, None])


def _dft(node: Node, inputs: Inputs) -> tuple[int, int, Shape, NDArray[Any]]:
    """Axis, elements of the input that are used, shape of the output, table."""
    x = required(node, inputs, 0)
    rank = len(x.shape)
    along = known_ints(node, inputs, 2, "axis")
    axis = normal_axis(node, along[0], rank) if along is not None else axis_of(node, rank, -2)
    wanted = known_ints(node, inputs, 1, "dft_length")
    inverse, onesided = bool(node.attrs.get("inverse", 0)), bool(node.attrs.get("onesided", 0))
    if axis == rank - 1 or x.shape[-1] not in (1, 2):
        fail(node, f"expected real and imaginary parts in the last dimension, found {list(x.shape)}, axis {axis}")
    back = onesided and inverse
    length = wanted[0] if wanted is not None else 2 * (x.shape[axis] - 1) if back else x.shape[axis]
    if length > LONGEST:
        fail(node, f"expected a transform of at most {LONGEST} elements, found {length}")
    used = min(x.shape[axis], length // 2 + 1 if back else length)
    bins = length // 2 + 1 if onesided and not inverse else length
    table = hermitian(length, used) if back else rotations(length, bins, used, x.shape[-1], inverse)
    return axis, used, (*x.shape[:axis], bins, *x.shape[axis + 1 : -1], table.shape[1]), table


def _dft_infer(node: Node, inputs: Inputs) -> Types:
    return ((required(node, inputs, 0).dtype, _dft(node, inputs)[2]),)


def _table(values: NDArray[Any], dtype: str) -> tuple[Buffer, NDArray[Any]]:
    return Buffer("rotation", dtype, values.shape), values.astype(dtype)


def _dft_define(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    dtype = required(node, inputs, 0).dtype
    axis, used, shape, table = _dft(node, inputs)
    over = point(names(len(shape)))
    element, part = Var("k"), Var("p")
    iters = (*grid(shape), Iter("k", used, True), Iter("p", table.shape[3], True))
    read: Expr = Load("x0", (*over[:axis], element, *over[axis + 1 : -1], part))
    body = read * Load("rotation", (over[axis], over[-1], element, part))
    return Definition((), (fold("add", "dft", iters, Load("y0", over), body),), (_table(table, dtype),))


def _stft(node: Node, inputs: Inputs) -> tuple[int, int, Shape]:
    """Step and length of a frame, shape of the output."""
    x, window = required(node, inputs, 0), given(inputs, 2)
    step, length = known_ints(node, inputs, 1, "frame_step"), known_ints(node, inputs, 3, "frame_length")
    size = length[0] if length is not None else window.shape[0] if window is not None else x.shape[1]
    if step is None or step[0] < 1 or not 1 <= size <= min(x.shape[1], LONGEST):
        fail(node, f"expected frames of 1 to {min(x.shape[1], LONGEST)} elements and a step, found {size} and {step}")
    if window is not None and window.shape != (size,):
        fail(node, f"expected a window of {size} elements, found {list(window.shape)}")
    bins = size // 2 + 1 if node.attrs.get("onesided", 1) else size
    return step[0], size, (x.shape[0], (x.shape[1] - size) // step[0] + 1, bins, 2)


def _stft_infer(node: Node, inputs: Inputs) -> Types:
    return ((required(node, inputs, 0).dtype, _stft(node, inputs)[2]),)


def _stft_define(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    step, size, shape = _stft(node, inputs)
    parts = x.shape[2] if len(x.shape) > 2 else 1
    over = batch, frame, bin_, part = point(("b", "f", "m", "o"))
    k, p = Var("k"), Var("p")
    iters = (*grid(shape, ("b", "f", "m", "o")), Iter("k", size, True), Iter("p", parts, True))
    at = (batch, frame * step + k, p)[: len(x.shape)]
    body: Expr = Load("x0", at) * Load("rotation", (bin_, part, k, p))
    if given(inputs, 2) is not None:
        body = body * Load("x2", (k,))
    table = rotations(size, shape[2], size, parts, False)
    return Definition((), (fold("add", "stft", iters, Load("y0", over), body),), (_table(table, x.dtype),))


OPERATORS = (
    Operator("DFT", _dft_infer, _dft_define, steers={1: "the length", 2: "the axis"}),
    Operator("STFT", _stft_infer, _stft_define, steers={1: "the step", 3: "the length"}),
)
