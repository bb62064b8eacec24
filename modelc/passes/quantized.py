"""Quantized operands of contractions: what an instruction multiplies, how activations are stored for it, and why a
contraction of such operands cannot be one of whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value
from modelc.passes.byte_moves import MOVES
from modelc.passes.machine import BYTES, LARGEST_BYTE, WEIGHTS, WIDE, Multiplied
from modelc.passes.pattern import Editor

Array = NDArray[Any]
SHIFT = 128  # between the numbers of int8 and uint8 that stand for the same
ALL_BYTES = (-SHIFT, SHIFT - 1)
LARGEST_SUM = (1 << 31) - 1
WIDENING = 2 / 3  # of the speed of an instruction for WIDE numbers is left where weights are widened for a single row
LEAST_CHANNELS = 8  # of an output: fewer do not fill a vector's lanes
LEAST_ROWS = 4  # that read columns which are computed, for these to be put into an instruction's order
MOST_PADDING = 1.5  # times the channels that are summed


def stored_as(dtype: str, units: Sequence[Multiplied]) -> str:
    """How activations of `dtype` are stored to be multiplied with int8."""
    activations = {u.activations for u in units}
    return dtype if dtype in activations or not activations else sorted(activations)[0]


def units_for(
    node: Node, weights: Array | None, columns: int, units: Sequence[Multiplied], rows: int
) -> tuple[Multiplied, ...]:
    """Those that multiply the weights of `node`, with columns in dimension `columns`, exactly: the fastest for so many
    `rows` where some do only these. None: weights that are computed."""
    if all(u.within is None for u in units):
        return tuple(units)
    if weights is None:
        exact = [u for u in units if u.bounds == ALL_BYTES]
    else:
        exact = [u for u in units if can_be_narrowed(weights, columns, node, u.bounds)]
    return tuple(sorted(exact, key=lambda u: u.speed * (WIDENING if rows == 1 and u.activations == WIDE else 1))[-1:])


def rows_of(e: Editor, node: Node) -> int:
    """How many rows of activations are multiplied with the weights of `node`; 0 where these are windows."""
    return 0 if "Conv" in node.op else prod(e.shape(node.inputs[0])[:-1])


def bounds_of(units: Sequence[Multiplied]) -> tuple[int, int]:
    """The least and the largest weight that each of `units` multiplies."""
    return max(u.bounds[0] for u in units), min(u.bounds[1] for u in units)


def promised(dtype: str, units: Sequence[Multiplied]) -> dict[str, tuple[int, int]]:
    """The attributes of a contraction by `units` that say between which numbers its activations, of `dtype`, and its
    weights are (ops/quantize.py)."""
    (unit, *_) = [u for u in units if u.activations == dtype] or [Multiplied(dtype, 1)]
    bounds = {"within": unit.within, "activations_within": unit.activations_within}
    return {name: bound for name, bound in bounds.items() if bound is not None}


# --- activations as they are multiplied ---------------------------------------------------------------------------


def restored(graph: Graph, dtypes: set[str]) -> Graph:
    """What is quantized to bytes that no instruction multiplies is quantized to those that one does: 128 is added to
    (or taken from) the zero point, in the node that writes it and in those that read it."""
    values, consumers = dict(graph.values), graph.consumers()
    changed: dict[str, Node] = {}
    for node in graph.nodes:
        out = node.outputs[0] if node.op == "QuantizeLinear" else ""
        if not out or values[out].dtype not in BYTES or values[out].dtype in dtypes or out in graph.outputs:
            continue
        readers = consumers[out]
        every = [node, *readers]
        if any(r.op != "DequantizeLinear" or r.inputs[0] != out for r in readers) or not all(
            len(r.inputs) > 2 and r.inputs[2] and values[r.inputs[2]].data is not None for r in every
        ):
            continue
        to = "uint8" if values[out].dtype == "int8" else "int8"
        values[out] = replace(values[out], dtype=to)
        for quantizer in every:
            zero = values[quantizer.inputs[2]]
            assert zero.data is not None
            name = graph.fresh(f"{zero.name}_{to}")
            values[name] = Value(name, to, zero.shape, shifted(zero.data, to))
            changed[quantizer.name] = replace(quantizer, inputs=(*quantizer.inputs[:2], name))
    nodes = [changed.get(n.name, n) for n in graph.nodes]
    return replace(graph, values=values).with_nodes(nodes)


def zero_of(graph: Graph, name: str) -> int | None:
    """The zero point by which bytes are quantized, seen through what moves them; None where no node says it."""
    producers, node = graph.producers(), None
    while (node := producers.get(name)) is not None and node.op in MOVES:
        name = node.inputs[0]
    place = {"QuantizeLinear": 2, "QLinearConv": 7, "QLinearMatMul": 7}.get("" if node is None else node.op)
    if node is None or place is None:
        return None
    zero = node.inputs[place] if len(node.inputs) > place else ""
    data = graph.values[zero].data if zero else np.zeros(1)
    return None if data is None or data.size != 1 else int(data.item())


def read_as_stored(graph: Graph, model: Graph) -> Graph:
    """What is stored as WIDE numbers for contractions is dequantized from these: the bytes need not be stored too. The
    numbers are called as in `model` the bytes that they stand for."""
    values, consumers = dict(graph.values), graph.consumers()
    wide: dict[str, tuple[tuple[Node, ...], int]] = {}  # bytes -> the nodes that make WIDE numbers of them, less what
    for cast in graph.nodes:
        if cast.op != "Cast" or cast.attrs["to"] != WIDE or values[cast.inputs[0]].dtype not in BYTES:
            continue
        subtractions = [n for n in consumers[cast.outputs[0]] if n.op == "Sub"]
        zeros = [values[n.inputs[1]].data for n in subtractions]
        if not zeros:
            wide[cast.inputs[0]] = (cast,), 0
        elif zeros[0] is not None and zeros[0].size == 1:
            wide[cast.inputs[0]] = (cast, subtractions[0]), int(zeros[0].item())
    moved = {node.name for made, _ in wide.values() for node in made}
    nodes: list[Node] = [node for x in graph.inputs for node in wide.get(x, ((), 0))[0]]
    for node in graph.nodes:
        if node.op == "DequantizeLinear" and node.inputs[0] in wide and len(node.inputs) > 2:
            (made, taken), zero = wide[node.inputs[0]], values[node.inputs[2]]
            if zero.data is not None and zero.data.size == 1:
                name = graph.fresh(f"{zero.name}_{WIDE}", values)
                values[name] = Value(name, WIDE, zero.shape, zero.data.astype(np.int16) - np.int16(taken))
                node = replace(node, inputs=(made[-1].outputs[0], node.inputs[1], name))
        if node.name not in moved:
            nodes += [node, *(n for out in node.outputs for n in wide.get(out, ((), 0))[0])]
    names: dict[str, str] = {}
    for x, (made, taken) in wide.items():
        if x not in (*graph.inputs, *graph.outputs) and x in model.values and zero_of(model, x) == taken:
            names |= {x: graph.fresh(f"{x}_bytes", values), made[-1].outputs[0]: x}
    return renamed(replace(graph, values=values, nodes=tuple(nodes)), names)


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """`graph` with other names for some of its values."""
    values = {names.get(n, n): replace(v, name=names.get(n, n)) for n, v in graph.values.items()}

    def called(node: Node) -> Node:
        inputs, outputs = (tuple(names.get(x, x) for x in side) for side in (node.inputs, node.outputs))
        return replace(node, inputs=inputs, outputs=outputs)

    return replace(graph, values=values).with_nodes(map(called, graph.nodes))


def shifted(data: Array, to: str) -> Array:
    """Whole numbers of one kind of byte as the other that stands for the same."""
    moved = data.astype(np.int16) + (SHIFT if to == "uint8" else -SHIFT)
    return moved.astype(DTYPES[to])


def stored(e: Editor, x: str, to: str, zero: int = 0) -> tuple[str, int]:
    """Bytes of that zero point as the other kind or as WIDE numbers, and the zero point of these. What is rounded and
    moved by the zero point just before is not moved."""
    if e.value(x).dtype == "uint8" and (to == WIDE or zero == SHIFT):
        whole = rounded_before(e, x, zero)
        if whole is not None:
            return e.add("Cast", (whole,), {"to": to}), 0
    if to == WIDE:
        wide = e.add("Cast", (x,), {"to": WIDE})
        return (e.add("Sub", (wide, e.constant(np.int16(zero), f"{x}_zero", WIDE))) if zero else wide), 0
    wide = e.add("Cast", (x,), {"to": "int32"})
    moved = e.add("Add", (wide, e.constant(np.int32(SHIFT if to == "uint8" else -SHIFT), f"{x}_shift", "int32")))
    return e.add("Cast", (moved,), {"to": to}), zero + (SHIFT if to == "uint8" else -SHIFT)


def rounded_before(e: Editor, x: str, zero: int) -> str | None:
    """The whole numbers in float32 that bytes of that zero point are cast from; None where they are not."""
    cast = e.producer(x)
    moved = e.producer(cast.inputs[0]) if cast is not None and cast.op == "Cast" else None
    if moved is None or moved.op != "Add" or e.value(moved.outputs[0]).dtype != "float32":
        return None
    for number, whole in (moved.inputs, moved.inputs[::-1]):
        rounding = e.producer(whole)
        if e.scalar(number) == zero and rounding is not None and rounding.op == "Round":
            return whole
    return None


# --- quantized operands -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """What a DequantizeLinear reads: the value of whole numbers, their scale and zero point; `axis` where these are by
    index."""

    whole: str
    scale: Array
    zero: Array
    axis: int | None


def is_dequantized(e: Editor, name: str) -> bool:
    node = e.producer(name)
    return node is not None and node.op == "DequantizeLinear"


def operand(e: Editor, name: str) -> Operand | None:
    """What is dequantized to `name` by constants."""
    node = e.producer(name)
    if node is None or node.op != "DequantizeLinear" or node.attrs.get("block_size", 0):
        return None
    scale, zero = e.data(node.inputs[1]), e.data(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(())
    if scale is None or zero is None or e.value(name).dtype != "float32" or e.value(node.inputs[1]).dtype != "float32":
        return None
    axis = None if scale.size == 1 else int(node.attrs.get("axis", 1)) % len(e.shape(name))
    return Operand(node.inputs[0], scale.reshape(-1), zero.astype(np.int64).reshape(-1), axis)


def centred_weights(e: Editor, w: Operand, node: Node) -> Array | None:
    """Weights of `node` less their zero points; None where they cannot be int8 and a shift of each column."""
    data = e.data(w.whole)
    if data is None or e.value(w.whole).dtype not in BYTES:
        return None
    along = [-1 if k == w.axis else 1 for k in range(data.ndim)]
    zero = w.zero.reshape(along) if w.zero.size > 1 else w.zero.reshape(())
    centred: Array = data.astype(np.int64) - zero
    columns = 0 if "Conv" in node.op or node.attrs.get("transB", 0) else data.ndim - 1
    return centred if can_be_narrowed(centred, columns, node) else None


def can_be_narrowed(weights: Array, columns: int, node: Node, bounds: tuple[int, int] = ALL_BYTES) -> bool:
    """Whether weights less their zero points are from bounds[0] to bounds[1], or become so by a shift of each column,
    for which rows or windows of what is multiplied with them are summed: sum(a * w) = sum(a * narrow) + shift * sum(a).

    With n numbers in a column, activations less their zero point of -255 to 255, and a shift of s at most, sum(a) is
    255 n at most, which float32 has exactly; shift * sum(a) and sum(a * narrow) are at most half of what int32 has.
    Beside what sums of windows take, an instruction for smaller weights than bytes saves nothing.
    """
    if not weights.size or (weights.min() >= bounds[0] and weights.max() <= bounds[1]):
        return True
    if bounds != ALL_BYTES and prod(weights.shape[2:]) > 1:
        return False
    low, high, shift = _shifted(weights, columns, bounds)
    most = int(max(SHIFT, np.abs(shift).max()))
    summed = weights.size // weights.shape[columns]
    return bool(
        node.attrs.get("group", 1) == 1
        and (high - low <= bounds[1] - bounds[0]).all()
        and 2 * LARGEST_BYTE * most * summed <= LARGEST_SUM
    )


def narrowed(weights: Array, columns: int, bounds: tuple[int, int] = ALL_BYTES) -> tuple[Array, Array]:
    """Weights as int8 from bounds[0] to bounds[1], and how much each of their columns, in dimension `columns`, is below
    what was given."""
    *_, shift = _shifted(weights, columns, bounds)
    along = [-1 if k == columns else 1 for k in range(weights.ndim)]
    return (weights - shift.reshape(along)).astype(np.int8), shift


def _shifted(weights: Array, columns: int, bounds: tuple[int, int]) -> tuple[Array, Array, Array]:
    """The ends of each column, and the least by which it is moved to lie within bounds."""
    others = tuple(k for k in range(weights.ndim) if k != columns)
    low, high = weights.min(axis=others), weights.max(axis=others)
    return low, high, np.where(low < bounds[0], low - bounds[0], np.maximum(high - bounds[1], 0))


def depth_of(dtype: str, units: Sequence[Multiplied]) -> int:
    """How many channels of activations of `dtype` an instruction multiplies at a time; 0: none does."""
    return next((u.depth for u in units if u.activations == stored_as(dtype, units)), 0)


def padded(channels: int, depth: int, groups: int = 1) -> int | None:
    """The channels that are summed and as many more as make up whole steps of an instruction; None for too many."""
    whole = -(-channels // depth) * depth if depth else 0
    fits = whole == channels or (groups == 1 and whole <= MOST_PADDING * channels)
    return whole if depth and fits else None


def refusal(e: Editor, node: Node, units: Sequence[Multiplied]) -> str | None:
    """Why a contraction of quantized operands is not one of whole numbers; None where it can be."""
    x, w = (operand(e, name) for name in node.inputs[:2])
    if not units:
        return "the target has no instruction that multiplies bytes and adds to int32"
    if x is None or w is None:
        return "an operand is not quantized, or by scales that are not constants"
    if x.axis is not None or x.zero.size > 1 or e.value(x.whole).dtype not in BYTES:
        return "activations are not bytes with one scale"
    if e.data(w.whole) is None:
        units = units_for(node, None, 0, units, rows_of(e, node))
        return slow(units) or product_refusal(e, node, x, w, units)
    weights, columns = centred_weights(e, w, node), columns_of(node, e.shape(node.inputs[1]))
    if weights is None:
        return "weights less their zero points are no int8, by channels in groups"
    if columns is None or (w.axis is not None and w.axis != columns) or node.attrs.get("transA", 0):
        return "scales are not by output channel"
    groups, units = int(node.attrs.get("group", 1)), units_for(node, weights, columns, units, rows_of(e, node))
    if said := slow(units):
        return said
    summed = weights.shape[1] if node.op == "Conv" else weights.shape[1 - columns]
    if padded(summed, depth_of(e.value(x.whole).dtype, units), groups) is None:
        channels = f"{summed} channels are" if summed > 1 else "1 channel is"
        return f"{channels} summed, too few to be made a multiple of what an instruction takes"
    if weights.shape[columns] // groups < LEAST_CHANNELS:
        return f"an output of fewer than {LEAST_CHANNELS} channels does not fill vectors"
    others = tuple(k for k in range(weights.ndim) if k != columns)
    if 255 * np.abs(weights.astype(np.int64)).sum(axis=others).max(initial=0) * 2 > LARGEST_SUM:
        return "sums do not fit in int32"
    return None


def slow(units: Sequence[Multiplied]) -> str | None:
    """Why a contraction is as quick in float32; None where one of `units` multiplies it quicker."""
    if not units:
        return "the target's instructions do not multiply all numbers that its weights may be"
    if not any(u.pays for u in units):
        speed = max(u.speed for u in units)
        return f"its price is no lower: the target multiplies quantized numbers {speed:.2g} times as fast as float32"
    return None


def product_refusal(e: Editor, node: Node, x: Operand, w: Operand, units: Sequence[Multiplied]) -> str | None:
    """Why a product of two computed operands is not one of whole numbers; None where it can be."""
    if node.op != "MatMul":
        return "both operands are computed, and it is no MatMul"
    if w.axis is not None or w.zero.size > 1 or e.value(w.whole).dtype not in BYTES:
        return "activations are not bytes with one scale"
    rows, columns = e.shape(x.whole), e.shape(w.whole)
    if min(len(rows), len(columns)) < 2 or rows[-2] < LEAST_ROWS:
        return f"fewer than {LEAST_ROWS} rows do not pay for storing computed columns in an instruction's order"
    if columns[-1] < LEAST_CHANNELS:
        return f"an output of fewer than {LEAST_CHANNELS} channels does not fill vectors"
    if padded(rows[-1], depth_of(e.value(x.whole).dtype, units)) != rows[-1]:
        return f"{rows[-1]} computed channels are summed, no multiple of what an instruction takes"
    return "sums do not fit in int32" if 4 * rows[-1] * LARGEST_BYTE * SHIFT > LARGEST_SUM else None


def whole_refusal(e: Editor, node: Node, units: Sequence[Multiplied]) -> str | None:
    """Why a contraction of whole numbers is not one that an instruction multiplies; None where it can be."""
    a, w = node.inputs[0], node.inputs[3 if node.op.startswith("QLinear") else 1]
    if not units:
        return "the target has no instruction that multiplies bytes and adds to int32"
    taken = [u.activations for u in units if u.within is None or "within" in node.attrs]
    if e.data(w) is None and (len(node.inputs) > 2 or node.op != "MatMulInteger"):
        return "both operands are computed, with zero points"
    if node.op.startswith("QLinear") or e.value(w).dtype != WEIGHTS or e.value(a).dtype not in taken:
        return "weights less their zero points are no int8, or what is summed is too little or not by one scale"
    return None


def columns_of(node: Node, shape: tuple[int, ...]) -> int | None:
    """The dimension of the weights that is the output's channels."""
    if node.op == "Conv":
        return 0
    if len(shape) != 2:
        return None
    return 0 if node.attrs.get("transB", 0) else 1
