"""A product of two computed operands, both dequantized, becomes a product of their whole numbers, summed in int32.

    y = DQ(a, sa, za) DQ(b, sb, zb)                    attention's scores, and the values that they weigh

    y = f32(a b - za * colsum(b) - zb * rowsum(a) + n * za * zb) * (sa * sb)        n: how many are summed

Sums of rows and columns are small reductions; where a zero point is zero there is none. Columns are stored as int8 by
what quantizes them, and rows as what the target multiplies with int8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelc.ir.graph import Node
from modelc.passes.machine import BYTES, WEIGHTS, Multiplied
from modelc.passes.pattern import Editor
from modelc.passes.quantized import SHIFT, Operand, promised, shifted, stored, stored_as

PLAIN_MOVES = ("Reshape", "Transpose")


def product(e: Editor, x: Operand, w: Operand, units: Sequence[Multiplied]) -> str:
    """The float32 product of two quantized values that are both computed, one scale and zero point each."""
    to = stored_as(e.value(x.whole).dtype, units)
    rows, rows_zero = as_bytes(e, x, to)
    columns, columns_zero = as_bytes(e, w, WEIGHTS)
    total = e.add("MatMulInteger", (rows, columns), promised(to, units))
    summed = e.shape(rows)[-1]
    if rows_zero:
        sums = times(e, summed_along(e, columns, len(e.shape(columns)) - 2), -rows_zero)
        if both := summed * rows_zero * columns_zero:
            sums = e.add("Add", (sums, e.constant(np.int32(both), f"{columns}_both", "int32")))
        total = e.add("Add", (total, sums))
    if columns_zero:
        total = e.add("Add", (total, times(e, summed_along(e, rows, len(e.shape(rows)) - 1), -columns_zero)))
    factor = e.constant((x.scale * w.scale).reshape(()), f"{columns}_scale", "float32")
    return e.add("Mul", (e.add("Cast", (total,), {"to": "float32"}), factor))


def summed_along(e: Editor, x: str, axis: int) -> str:
    """The int32 sums of bytes along `axis`. They are summed in float32, which has them exactly."""
    real = e.add("Cast", (x,), {"to": "float32"})
    sums = e.add("ReduceSum", (real, e.constant([axis], f"{x}_axis")), {"keepdims": 1})
    return e.add("Cast", (sums,), {"to": "int32"})


def times(e: Editor, x: str, by: int) -> str:
    return x if by == 1 else e.add("Mul", (x, e.constant(np.int32(by), f"{x}_zero", "int32")))


def as_bytes(e: Editor, x: Operand, to: str) -> tuple[str, int]:
    """Whole numbers of an operand as those of dtype `to`, and their zero point then."""
    zero, dtype = int(x.zero.item()), e.value(x.whole).dtype
    if dtype == to:
        return x.whole, zero
    if to in BYTES and (quantized := quantized_as(e, x.whole, to)) is not None:
        return quantized, zero + (SHIFT if to == "uint8" else -SHIFT)
    return stored(e, x.whole, to, zero)


def quantized_as(e: Editor, name: str, to: str) -> str | None:
    """The same quantized to the other kind of bytes, behind the same moves; None where others read it, or something
    else than QuantizeLinear makes it."""
    moves: list[Node] = []
    node = e.producer(name)
    while node is not None and node.op in PLAIN_MOVES and e.private(node.outputs[0]):
        moves.append(node)
        node = e.producer(node.inputs[0])
    if node is None or node.op != "QuantizeLinear" or not e.private(node.outputs[0]) or len(node.inputs) < 3:
        return None
    zero = e.data(node.inputs[2])
    if zero is None:
        return None
    moved = e.again(node, (*node.inputs[:2], e.constant(shifted(zero, to), f"{node.inputs[2]}_{to}", to)))
    for move in reversed(moves):
        moved = e.again(move, (moved, *move.inputs[1:]))
    return moved
