"""A matrix product with weights of few bits, which are taken apart where they are multiplied."""

from __future__ import annotations

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
    found: NDArray[np.uint8] = np.bitwise_or.reduce(apart << shifts, axis=1)
    return found


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
    one block alone the sum is scaled."""
    x, weights, zeros = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 3)
    bits, block = int(node.attrs["bits"]), int(node.attrs["block"])
    blocks, rows, columns = weights.shape
    lead = grid(x.shape[:-1], [f"m{k}" for k in range(len(x.shape) - 1)])
    over, (n, b, i) = point(lead), map(Var, ("n", "b", "i"))
    scale = Load("x2", (b, n))
    word = cast("int32", Load("x1", (b, i, n)))
    zero: Expr = const(float(node.attrs.get("zero", 0.0)), "float32")
    if zeros is not None:
        zero = cast("float32", Load("x3", (b, n)))
    body: Expr | None = None
    for part in range(8 // bits):
        digits = word if not part else op("shr", word, const(part * bits, "int32"))
        if (part + 1) * bits < 8:
            digits = op("bitand", digits, const((1 << bits) - 1, "int32"))
        real = cast("float32", digits) - zero
        if (
            bits == 8 and blocks > 1
        ):  # what is the same for all rows first; of several parts the sum is what has one factor
            real = real * scale
        product = Load("x0", (*over, b * block + i + part * rows)) * real
        body = product if body is None else body + product
    assert body is not None
    iters = (*lead, Iter("n", columns), Iter("b", blocks, True), Iter("i", rows, True))
    if blocks > 1:
        body = body if bits == 8 else body * scale
        return Definition((), (fold("add", "packed_matmul", iters, Load("y0", (*over, n)), body),))
    shape, column = (*x.shape[:-1], columns), (*over, n)
    scaled = Load("sum", column) * Load("x2", (Const(0), n))
    both = (
        fold("add", "packed_matmul", iters, Load("sum", column), body),
        assign("scale", (*lead, Iter("n", columns)), Load("y0", column), scaled),
    )
    return Definition((Buffer("sum", x.dtype, shape),), both)


OPERATORS = (Operator("PackedMatMul", _infer, _define),)
