"""Contractions of quantized operands become contractions of their whole numbers, summed in int32.

    y = Q(Conv(DQ(x, sx, zx), DQ(w, sw, 0)) + DQ(b, sx * sw, 0), sy, zy)     what a quantizer writes
    y = Q(f32(ConvInteger(x, w) + (b - zx * sum(w))) * (sx * sw / sy), 1, zy)

The sum is exact, and what follows it is done to each element in the kernel's epilogue. The zero point of activations
is a constant times the sums of the weights, computed here; where it is known only at run time (DynamicQuantizeLinear),
the same product is a small kernel. A border of padding holds the zero point, and not zero. An instruction takes whole
numbers of certain dtypes: activations are stored as those, int8 as uint8 with 128 added, where only that is multiplied
with int8; and as many channels, for which what writes them writes more. Weights that less their zero point are no int8
(uint8 with a zero point far from the middle) are int8 and a shift, by which the sums of activations are multiplied, as
are those that an instruction for smaller weights multiplies so.

    y = DQ(a, sa, za) DQ(b, sb, zb)                    attention's scores, and the values that they weigh
    y = f32(a b - za * colsum(b) - zb * rowsum(a) + n * za * zb) * (sa * sb)        n: how many are summed

Of two computed operands columns are stored as int8 by what quantizes them, and rows as what the target multiplies with
int8; where a zero point is zero there is no such sum.

Numbers differ from those of the float contraction by its rounding errors alone: next to a tie a whole number may be a
step away (docs/quantized.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph, Node
from modelc.passes.dequantized_contractions import dequantized_contractions
from modelc.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from modelc.passes.machine import ANY, BYTES, WEIGHTS, WIDE, Machine, Multiplied
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Rule, rewrite
from modelc.passes.quantized import (
    LARGEST_SUM,
    SHIFT,
    Operand,
    bounds_of,
    can_be_narrowed,
    centred_weights,
    depth_of,
    is_dequantized,
    narrowed,
    operand,
    padded,
    promised,
    read_as_stored,
    refusal,
    restored,
    rows_of,
    shifted,
    stored,
    stored_as,
    units_for,
    whole_refusal,
)
from modelc.passes.written_as_read import written_as_read

Array = NDArray[Any]
PLAIN_MOVES = ("Reshape", "Transpose")
CONTRACTIONS = ("Conv", "MatMul", "Gemm")
WHOLE = ("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")
REAL = Op("DequantizeLinear", Bind("x"), Constant("s"), name="real", more=True)
NAMED = 3  # nodes that a note names


@dataclass(frozen=True)
class IntegerContractions:
    """For a machine with instructions that multiply bytes; quantized contractions stay in float on others."""

    machine: Machine = ANY

    @property
    def units(self) -> tuple[Multiplied, ...]:
        return self.machine.units

    def __call__(self, graph: Graph) -> Graph:
        model, graph = graph, dequantized_contractions(graph, self.machine.real)
        if self.units:
            taken = {u.activations for u in self.units}
            graph = graph if WIDE in taken else restored(graph, taken)
            graph = rewrite(rewrite(graph, self.rules()), FACTORS)
            graph = read_as_stored(EliminateCommonSubexpressions()(graph), model)
        graph = replace(graph, notes=(*graph.notes, *self.notes(graph)))
        return written_as_read(graph) if self.units else graph

    def notes(self, graph: Graph) -> list[str]:
        """Which contractions of quantized activations run in float, or as whole numbers without an instruction for
        bytes, and why."""
        editor, reasons = Editor(graph), dict[tuple[str, str], list[str]]()
        for node in graph.nodes:
            name = (node.source or (node.name,))[0]
            if node.op in CONTRACTIONS and is_dequantized(editor, node.inputs[0]):
                reason = refused(editor, node, self.machine) or "what reads it cannot"
                reasons.setdefault(("float32", reason), []).append(name)
            elif node.op in WHOLE and (why := whole_refusal(editor, node, self.units)):
                reasons.setdefault(("int32, without an instruction for bytes", why), []).append(name)
        return [
            f"{len(names)} quantized contraction(s) run in {kind} ({', '.join(map(repr, names[:NAMED]))}"
            f"{', ...' * (len(names) > NAMED)}): {reason}"
            for (kind, reason), names in reasons.items()
        ]

    # --- the rules ------------------------------------------------------------------------------------------------

    def rules(self) -> tuple[Rule, ...]:
        scaled = Op("Mul", Op("Cast", Bind("sum"), name="cast"), Constant("factor"))
        to = (Constant("s"), Constant("z"))
        return (
            Rule(Op("Conv|MatMul|Gemm", Bind("a"), Bind("b"), more=True), self.contraction, private=False),
            Rule(Op("QuantizeLinear", scaled, *to), requantized),
            Rule(Op("QuantizeLinear", Op("Relu", scaled, name="relu"), *to), requantized),
            Rule(Op("Mul", REAL, Constant("factor")), rescaled),
            Rule(Op("MatMulInteger|ConvInteger", Bind("a"), Constant("w"), more=True), self.whole),
        )

    def contraction(self, e: Editor, m: Match) -> str | None:
        """Conv, MatMul and Gemm over DequantizeLinear."""
        node = m.root
        if refused(e, node, self.machine) is not None:
            return None
        x, w = operand(e, node.inputs[0]), operand(e, node.inputs[1])
        assert x is not None and w is not None
        if e.data(w.whole) is None:
            return product(e, x, w, units_for(node, None, 0, self.units, rows_of(e, node)))
        weights = centred_weights(e, w, node)
        assert weights is not None
        scale = x.scale * w.scale  # in float32, as a quantizer computes the scale of biases
        alpha, beta = (node.attrs.get(k, 1.0) if node.op == "Gemm" else 1.0 for k in ("alpha", "beta"))
        bias = node.inputs[2] if len(node.inputs) > 2 else ""
        whole = self._whole_bias(e, bias, scale) if bias and alpha == beta == 1.0 else None
        total = self._sum(e, node, x.whole, weights, int(x.zero.item()), w.whole, whole)
        spatial = (1,) * (len(e.shape(total)) - 2) if node.op == "Conv" else ()
        factor = e.constant((scale * np.float32(alpha)).reshape(-1, *spatial), f"{w.whole}_scale", "float32")
        real = e.add("Mul", (e.add("Cast", (total,), {"to": "float32"}), factor))
        if bias and whole is None:
            shape = (-1, *spatial) if node.op == "Conv" else None
            real = e.add("Add", (real, self._shaped(e, bias, beta, shape)))
        return real

    def _whole_bias(self, e: Editor, name: str, scale: Array) -> Array | None:
        """A bias that is quantized by the scales of the sum."""
        bias = operand(e, name)
        data = None if bias is None else e.data(bias.whole)
        if bias is None or data is None or data.ndim != 1 or e.value(bias.whole).dtype != "int32" or bias.zero.any():
            return None
        same = bias.scale.size in (1, scale.size) or scale.size == 1
        if not same or not np.allclose(bias.scale, scale, rtol=1e-6, atol=0):
            return None
        return None if np.abs(data.astype(np.int64)).max(initial=0) > LARGEST_SUM // 2 else data.astype(np.int64)

    def _shaped(self, e: Editor, bias: str, beta: float, shape: tuple[int, ...] | None) -> str:
        """A bias in float32 as it is added to the output."""
        if beta != 1.0:
            bias = e.add("Mul", (bias, e.constant(np.float32(beta), f"{bias}_beta", "float32")))
        if shape is None:
            return bias
        return e.add("Reshape", (bias, e.constant((e.shape(bias)[0], *shape[1:]), f"{bias}_shape")))

    def _sum(self, e: Editor, node: Node, x: str, w: Array, zero: int, name: str, bias: Array | None) -> str:
        """The int32 sum of `x` less its zero point by the weights, and the bias."""
        if "Conv" in node.op:
            operation, channels, summed, columns = "ConvInteger", 1, 1, 0
            attrs = {k: v for k, v in node.attrs.items() if k in ("strides", "pads", "dilations", "group")}
        else:
            w = np.ascontiguousarray(w.T) if node.attrs.get("transB", 0) else w
            operation, channels, summed, columns, attrs = "MatMulInteger", len(e.shape(x)) - 1, 0, 1, {}
        units, dtype = units_for(node, w, columns, self.units, rows_of(e, node)), e.value(x).dtype
        to = stored_as(dtype, units)
        if to != dtype:
            x, zero = stored(e, x, to, zero)
        w, shift = narrowed(w, columns, bounds_of(units))
        window = (w.shape[2:], attrs) if columns == 0 else None
        sums = summed_up(e, x, -1 if window is None else 1, zero, window) if shift.any() else ""
        whole = padded(w.shape[summed], depth_of(to, units), attrs.get("group", 1))
        assert whole is not None
        if more := whole - w.shape[summed]:
            x = with_border(e, x, 0, [(0, more) if k == channels else (0, 0) for k in range(len(e.shape(x)))])
            w = np.pad(w, [(0, more) if k == summed else (0, 0) for k in range(w.ndim)])
        if zero and any(pads := attrs.get("pads", ())):
            half = len(pads) // 2
            x = with_border(e, x, zero, [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)])
            attrs["pads"] = (0,) * len(pads)
        attrs |= promised(to, units)
        total = e.add(operation, (x, e.constant(w, f"{name}_centred", WEIGHTS)), attrs)
        others = tuple(k for k in range(w.ndim) if k != columns)
        offset = -zero * w.astype(np.int64).sum(axis=others) + (0 if bias is None else bias)
        spatial = (1,) * (w.ndim - 2)
        if offset.any():
            total = e.add("Add", (total, e.constant(offset.reshape(-1, *spatial), f"{name}_offset", "int32")))
        if not sums:
            return total
        by = e.constant(shift.reshape(-1, *spatial), f"{name}_shift", "int32")
        return e.add("Add", (total, e.add("Mul", (sums, by))))

    def whole(self, e: Editor, m: Match) -> str | None:
        """MatMulInteger and ConvInteger: zero points are taken from the sum, and activations stored as what an
        instruction multiplies."""
        node, dtype, group = m.root, e.value(m["a"]).dtype, int(m.root.attrs.get("group", 1))
        zero, weights_zero = (node.inputs[k] if len(node.inputs) > k else None for k in (2, 3))
        if zero is None and (dtype not in BYTES or "within" in node.attrs):
            return None
        if zero is not None and (not zero or len(e.shape(zero)) > 1 or prod(e.shape(zero)) != 1):
            return None
        w, less = e.data(m["w"]), e.data(weights_zero) if weights_zero else np.zeros((), np.int64)
        if w is None or less is None or (node.op == "MatMulInteger" and w.ndim != 2):
            return None
        columns, summed = (0, w.shape[1]) if node.op == "ConvInteger" else (1, w.shape[0])
        along = [-1 if k == columns else 1 for k in range(w.ndim)]
        weights = w.astype(np.int64) - (less.astype(np.int64).reshape(along) if less.size > 1 else int(less.max()))
        if not can_be_narrowed(weights, columns, node):
            return None
        units = units_for(node, weights, columns, self.units, rows_of(e, node))
        if padded(summed, depth_of(dtype, units), group) is None:
            return None
        if zero is None:
            same = stored_as(dtype, units) == dtype and units[0].within is None
            return None if same else self._sum(e, node, m["a"], weights, 0, m["w"], None)
        zero_value = e.data(zero)
        if zero_value is not None:
            return self._sum(e, node, m["a"], weights, int(zero_value.item()), m["w"], None)
        if stored_as(dtype, units) == WIDE:
            by = e.add("Sub", (stored(e, m["a"], WIDE)[0], e.add("Cast", (zero,), {"to": WIDE})))
            return self._sum(e, node, by, weights, 0, m["w"], None)
        if columns == 0:  # a border of what is known only at run time
            return None
        total = self._sum(e, node, m["a"], weights, 0, m["w"], None)
        sums = e.constant(weights.sum(axis=0), f"{m['w']}_sums", "int32")
        wide = e.add("Cast", (zero,), {"to": "int32"})
        return e.add("Sub", (total, e.add("Mul", (wide, sums))))


def refused(e: Editor, node: Node, machine: Machine) -> str | None:
    """Why a contraction of quantized operands is not one of whole numbers on a machine; None where it is."""
    return next((machine.real[s] for s in node.source if s in machine.real), None) or refusal(e, node, machine.units)


def summed_up(
    e: Editor, x: str, axis: int, zero: int = 0, window: tuple[tuple[int, ...], Mapping[str, Any]] | None = None
) -> str:
    """The int32 sums of `x` less its zero point along `axis`, or of windows, given by their shape and a convolution's
    attributes. They are summed in float32, which has them exactly."""
    sums = e.add("Cast", (x,), {"to": "float32"})
    if zero:
        sums = e.add("Sub", (sums, e.constant(np.float32(zero), f"{x}_zero", "float32")))
    sums = e.add("ReduceSum", (sums, e.constant([axis % len(e.shape(x))], f"{x}_axis")), {"keepdims": 1})
    if window is not None:
        extents, attrs = window
        kernel = e.constant(np.ones((1, 1, *extents)), f"{x}_window", "float32")
        sums = e.add("Conv", (sums, kernel), {**attrs, "kernel_shape": tuple(extents), "group": 1})
    return e.add("Cast", (sums,), {"to": "int32"})


def with_border(e: Editor, x: str, zero: int, around: Sequence[tuple[int, int]]) -> str:
    """`x` with so many of its zero point before and after it in each dimension."""
    pads = [before for before, _ in around] + [after for _, after in around]
    fill = e.constant(np.asarray(zero), f"{x}_zero", e.value(x).dtype)
    return e.add("Pad", (x, e.constant(pads, f"{x}_pads"), fill))


def requantized(e: Editor, m: Match) -> str | None:
    """The scale of what is written goes into that of the sum."""
    scale, factor, node = e.data(m["s"]), e.data(m["factor"]), m.root
    assert scale is not None and factor is not None
    if e.value(m["sum"]).dtype != "int32" or scale.size != 1 or scale.item() == 1.0 or scale.item() <= 0:
        return None
    whole = factor.astype(np.float64) / scale.astype(np.float64).reshape(())
    if not np.isfinite(whole.astype(np.float32)).all() or e.value(m["s"]).dtype != "float32":
        return None
    real = e.add("Mul", (m["cast"], e.constant(whole, f"{m['factor']}_steps", "float32")))
    if "relu" in m.bound:
        real = e.add("Relu", (real,))
    unit_scale = e.constant(np.ones(scale.shape, np.float32), "one", "float32")
    return e.add("QuantizeLinear", (real, unit_scale, m["z"]), node.attrs)


def rescaled(e: Editor, m: Match) -> str | None:
    """A factor of what is dequantized goes into its scale."""
    scale, factor, node = e.data(m["s"]), e.data(m["factor"]), e.producer(m["real"])
    assert scale is not None and factor is not None and node is not None
    whole = scale.astype(np.float64).reshape(-1) * factor.astype(np.float64).reshape(-1)
    if factor.size != 1 or scale.size != 1 or whole.item() <= 0 or not usual(whole) or not _reals(e, m["s"], m.root):
        return None
    new = e.constant(whole.reshape(scale.shape), f"{m['s']}_factor", "float32")
    return e.again(node, (m["x"], new, *node.inputs[2:]))


def multiplied_by(e: Editor, m: Match) -> str | None:
    """What is computed, and quantized by a constant scale, is multiplied by the inverse of that: divisions take longer,
    and differ next to ties alone."""
    scale, node = e.data(m["s"]), m.root
    assert scale is not None
    inverse = 1 / scale.astype(np.float64)
    if e.producer(m["real"]) is None or scale.size != 1 or scale.item() in (0.0, 1.0) or not usual(inverse):
        return None
    if not _reals(e, m["s"], node, m["real"]):
        return None
    factor = e.constant(inverse.reshape(()), f"{m['s']}_inverse", "float32")
    unit_scale = e.constant(np.ones(scale.shape, np.float32), "one", "float32")
    return e.add("QuantizeLinear", (e.add("Mul", (m["real"], factor)), unit_scale, m["z"]), node.attrs)


def multiplied_once(e: Editor, m: Match) -> str | None:
    """(x * a) * b is x * (a * b)."""
    a, b = (e.data(m[name]) for name in ("a", "b"))
    assert a is not None and b is not None
    whole = a.astype(np.float64) * b.astype(np.float64) if 1 in (a.size, b.size) else None
    if whole is None or whole.ndim > len(e.shape(m["x"])) or not usual(whole) or not _reals(e, m["a"], m.root):
        return None
    return e.add("Mul", (m["x"], e.constant(whole, f"{m['a']}_product", "float32")))


def usual(numbers: Array) -> bool:
    """Whether float32 has numbers as near as it has most."""
    magnitudes = np.abs(numbers.astype(np.float32))
    return bool(np.isfinite(magnitudes).all() and (magnitudes >= np.finfo(np.float32).tiny).all())


def _reals(e: Editor, scale: str, node: Node, *others: str) -> bool:
    """Whether all that is computed with here is float32."""
    dtypes = {e.value(x).dtype for x in (scale, *others, *(node.outputs if node.op == "Mul" else ()))}
    return dtypes == {"float32"}


FACTORS = (
    Rule(Op("QuantizeLinear", Bind("real"), Constant("s"), Constant("z")), multiplied_by),
    Rule(Op("Mul", REAL, Constant("factor")), rescaled),
    Rule(Op("Mul", Op("Mul", Bind("x"), Constant("a")), Constant("b")), multiplied_once),
)


# --- two computed operands ----------------------------------------------------------------------------------------


def product(e: Editor, x: Operand, w: Operand, units: Sequence[Multiplied]) -> str:
    """The float32 product of two quantized values that are both computed, one scale and zero point each."""
    to = stored_as(e.value(x.whole).dtype, units)
    rows, rows_zero = as_bytes(e, x, to)
    columns, columns_zero = as_bytes(e, w, WEIGHTS)
    total = e.add("MatMulInteger", (rows, columns), promised(to, units))
    summed = e.shape(rows)[-1]
    if rows_zero:
        sums = times(e, summed_up(e, columns, -2), -rows_zero)
        if both := summed * rows_zero * columns_zero:
            sums = e.add("Add", (sums, e.constant(np.int32(both), f"{columns}_both", "int32")))
        total = e.add("Add", (total, sums))
    if columns_zero:
        total = e.add("Add", (total, times(e, summed_up(e, rows, -1), -columns_zero)))
    factor = e.constant((x.scale * w.scale).reshape(()), f"{columns}_scale", "float32")
    return e.add("Mul", (e.add("Cast", (total,), {"to": "float32"}), factor))


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
