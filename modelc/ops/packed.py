"""A matrix product with weights of few bits, which are taken apart where they are multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    assign,
    fail,
    fold,
    given,
    grid,
    point,
    required,
)

BITS = (2, 4, 8)


def packed(numbers: NDArray[np.uint8], bits: int, block: int) -> NDArray[np.uint8]:
    """[K, N] numbers of so many bits as [K / block, block * bits / 8, N] bytes. A byte holds numbers that lie as far
    apart in the block as it has bytes, the first in its lowest bits: so each part of all bytes is in order."""
    depth, columns = numbers.shape
    parts = 8 // bits
    apart = numbers.reshape(depth // block, parts, block // parts, columns).astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, parts, 1, 1)
    merged: NDArray[np.uint8] = np.bitwise_or.reduce(apart << shifts, axis=1)
    return merged


def _shape(node: Node, x: Value, weights: Value, scales: Value) -> Shape:
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    if bits not in BITS or rows * 8 != block * bits or scales.shape != (blocks, columns):
        fail(node, f"expected weights {[blocks, block * bits // 8, columns]} and scales {[blocks, columns]}")
    if not x.shape or x.shape[-1] != blocks * block:
        fail(node, f"expected rows of {blocks * block} numbers, found {list(x.shape)}")
    return (*x.shape[:-1], columns)


def _infer(node: Node, inputs: Inputs) -> Types:
    x, weights, scales = (required(node, inputs, k) for k in range(3))
    return ((x.dtype, _shape(node, x, weights, scales)),)


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Each byte is read once, and gives as many products as it holds numbers; scales and zero points are by block. Of
    one block alone the sum is scaled; else numbers of a byte each, which are the same for all rows; else what the
    products of one byte add up to."""
    x, weights, zeros = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 3)
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    lead = grid(x.shape[:-1], [f"m{k}" for k in range(len(x.shape) - 1)])
    over, (n, b, i) = point(lead), map(Var, ("n", "b", "i"))
    scale: Expr = Load("x2", (b, n))
    zero: Expr = const(float(node.attrs.get("zero", 0.0)), "float32")
    if zeros is not None:
        zero = cast("float32", Load("x3", (b, n)))
    numbers = [cast("float32", digits) - zero for digits in _apart(cast("int32", Load("x1", (b, i, n))), bits)]
    if blocks > 1 and len(numbers) == 1:
        numbers = [numbers[0] * scale]
    products = [Load("x0", (*over, b * block + i + k * rows)) * number for k, number in enumerate(numbers)]
    body = reduce(add, products)
    if blocks > 1 and len(products) > 1:
        body = body * scale
    column, column_iter = (*over, n), Iter("n", columns)
    iters = (*lead, column_iter, Iter("b", blocks, True), Iter("i", rows, True))
    product = fold("add", "packed_matmul", iters, Load("y0" if blocks > 1 else "sum", column), body)
    if blocks > 1:
        return Definition((), (product,))
    scaled = assign("scale", (*lead, column_iter), Load("y0", column), Load("sum", column) * Load("x2", (Const(0), n)))
    return Definition((Buffer("sum", x.dtype, (*x.shape[:-1], columns)),), (product, scaled))


def _apart(byte: Expr, bits: int) -> Iterator[Expr]:
    """The numbers of so many bits in a byte, the lowest first."""
    for first in range(0, 8, bits):
        digits = byte if not first else op("shr", byte, const(first, "int32"))
        yield digits if first + bits == 8 else op("bitand", digits, const((1 << bits) - 1, "int32"))


OPERATORS = (Operator("PackedMatMul", _infer, _define),)
