"""Contractions that a model has of whole numbers, as contractions of what is dequantized.

    QLinearConv(x, sx, zx, w, sw, zw, sy, zy, b)
    Q(Conv(DQ(x, p, zx), DQ(w, q, zw), DQ(b, p q)) * (sx sw / sy p q), 1, zy)

    f32(MatMulInteger(a, w, za, zw) + b)
    MatMul(DQ(a, 1, za), DQ(w, 1, zw)) + f32(b)

The first is done to every such operator, so that there is one form of a quantized contraction for what decides where it
is multiplied (quantized.py) and how (integer_contractions.py). p and q are the powers of two next to the scales, by
which nothing is rounded: float32 has the sums exactly as far as it has their whole numbers, up to 2^24.
The second is of those alone that are multiplied in float32 by their price: sums whose activations are quantized by
scales of each run, which all who read them read as float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph, Node
from modelc.passes.machine import BYTES
from modelc.passes.pattern import Bind, Editor, Match, Op, Rule, rewrite

Array = NDArray[Any]
LARGEST_POWER = 30  # of two, of scales and their inverses


def dequantized_contractions(graph: Graph, real: Mapping[str, str]) -> Graph:
    """`graph` with its QLinearConv and QLinearMatMul, and those MatMulInteger and ConvInteger that come from nodes
    among `real`, over what is dequantized."""

    def summed(e: Editor, m: Match) -> str | None:
        return None if real.keys().isdisjoint(m.root.source) else _summed(e, m)

    whole = Op("Cast", Op("Round", Bind("sum")), name="whole")
    rules = (
        Rule(Op("QLinearConv|QLinearMatMul", Bind("x"), more=True), _linear),
        Rule(Op("MatMulInteger|ConvInteger", Bind("a"), Bind("w"), more=True), summed),
        Rule(Op("Cast", whole), _as_summed, private=False),
        Rule(Op("Cast", Op("Add", whole, Bind("bias"))), _with_bias, private=False),
    )
    return rewrite(graph, rules)


def _linear(e: Editor, m: Match) -> str | None:
    """QLinearConv and QLinearMatMul: x, sx, zx, w, sw, zw, sy, zy, bias."""
    node = m.root
    x, w = node.inputs[0], node.inputs[3]
    sx, zx, sw, zw, sy, zy = (e.data(node.inputs[k]) for k in (1, 2, 4, 5, 6, 7))
    if sx is None or zx is None or sw is None or zw is None or sy is None or zy is None:
        return None
    conv, columns = node.op == "QLinearConv", len(e.shape(w)) - 1
    axis = 0 if conv else columns
    scalars = max(sx.size, zx.size, sy.size, zy.size) == 1 and {sw.size, zw.size} <= {1, e.shape(w)[axis]}
    if not scalars or {e.value(v).dtype for v in (x, w)} - {*BYTES} or sw.dtype != np.float32 or sx.dtype != np.float32:
        return None
    if max(sw.ndim, zw.ndim) > 1 or min(sx.min(), sw.min(), sy.min()) <= 0:
        return None
    if len(e.shape(x)) < 2 or len(e.shape(w)) < 2:
        return None
    p, q = _power_of_two(float(sx.max())), _power_of_two(float(sw.max()))
    operands = [_dequantized(e, x, np.float32(p), node.inputs[2])]
    by_channel = np.full(zw.shape if zw.size > 1 else (), q, np.float32)
    operands.append(_dequantized(e, w, by_channel, node.inputs[5], axis))
    if len(node.inputs) > 8 and node.inputs[8]:
        operands.append(_dequantized(e, node.inputs[8], np.float32(p * q), ""))
    total = e.add("Conv" if conv else "MatMul", operands, node.attrs)
    factor = sx.reshape(()).astype(np.float64) * sw.reshape(-1) / sy.reshape(()) / (p * q)
    spatial = (1,) * (len(e.shape(total)) - 2) if conv else ()
    shape = (-1, *spatial) if sw.size > 1 else ()
    steps = e.add("Mul", (total, e.constant(factor.reshape(shape), f"{node.inputs[4]}_steps", "float32")))
    return e.add("QuantizeLinear", (steps, e.constant(np.float32(1), "one", "float32"), node.inputs[7]))


def _power_of_two(scale: float) -> float:
    return float(2.0 ** np.clip(round(log2(scale)), -LARGEST_POWER, LARGEST_POWER))


def _dequantized(e: Editor, x: str, scale: Array, zero: str, axis: int | None = None) -> str:
    """`x` by a scale for all, or by one for each index of `axis`."""
    by = e.constant(scale, f"{x}_power", "float32")
    attrs = {} if axis is None or np.ndim(scale) == 0 else {"axis": axis}
    return e.add("DequantizeLinear", (x, by, zero) if zero else (x, by), attrs)


# --- sums of whole numbers ----------------------------------------------------------------------------------------


def _summed(e: Editor, m: Match) -> str | None:
    """The sum in float32, rounded to whole numbers for those who read them (which the other rules undo)."""
    node, a, w = m.root, m["a"], m["w"]
    zeros = [*node.inputs[2:], "", ""][:2]
    if not _read_as_real(e, node.outputs[0]) or (zeros[0] and np.prod(e.shape(zeros[0])) != 1):
        return None
    if len(e.shape(a)) < 2 or len(e.shape(w)) < 2:
        return None
    conv = node.op == "ConvInteger"
    axis, one = 0 if conv else len(e.shape(w)) - 1, np.ones((), np.float32)
    count = int(np.prod(e.shape(zeros[1]))) if zeros[1] else 1
    if count > 1 and e.shape(zeros[1]) != (e.shape(w)[axis],):
        return None
    by_channel = np.ones(count if count > 1 else (), np.float32)
    operands = (_dequantized(e, a, one, zeros[0]), _dequantized(e, w, by_channel, zeros[1], axis))
    total = e.add("Conv" if conv else "MatMul", operands, node.attrs)
    return e.add("Cast", (e.add("Round", (total,)),), {"to": "int32"})


def _read_as_real(e: Editor, total: str) -> bool:
    """Whether all who read an int32 value read it as float32, with a bias added at most."""

    def real(node: Node) -> bool:
        return node.op == "Cast" and node.attrs["to"] == "float32"

    def added(node: Node) -> bool:
        inner = node.op == "Add" and node.outputs[0] not in e.outputs
        return inner and all(map(real, e.readers(node.outputs[0])))

    return total not in e.outputs and all(real(node) or added(node) for node in e.readers(total))


def _is_sum(e: Editor, m: Match) -> bool:
    """Whether what is rounded and read as float32 is whole: a sum of products of whole numbers."""
    maker, whole = e.producer(m["sum"]), e.producer(m["whole"])
    assert whole is not None
    if maker is None or maker.op not in ("Conv", "MatMul") or whole.attrs["to"] != "int32":
        return False
    sources = [e.producer(x) for x in maker.inputs]
    wholes = all(n is not None and n.op == "DequantizeLinear" and e.scalar(n.inputs[1]) == 1 for n in sources)
    return wholes and m.root.attrs["to"] == "float32"


def _as_summed(e: Editor, m: Match) -> str | None:
    return m["sum"] if _is_sum(e, m) else None


def _with_bias(e: Editor, m: Match) -> str | None:
    if not _is_sum(e, m):
        return None
    return e.add("Add", (m["sum"], e.add("Cast", (m["bias"],), {"to": "float32"})))
