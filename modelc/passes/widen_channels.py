"""Channels that are added to a result for the sake of what reads it are computed by what writes it.

    Pad(Q(f32(ConvInteger(x, w) + b) * s), more channels)  ->  Q(f32(ConvInteger(x, w') + b') * s')

with more rows of weights, which are zero: an instruction multiplies whole groups of channels, and 61 are as dear as 64.
"""

from __future__ import annotations

import numpy as np

from modelc.ir.graph import Graph
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Pattern, Rule, rewrite
from modelc.passes.quantized import renamed


def _more(e: Editor, m: Match) -> int:
    """How many channels are added at the end, where nothing else is."""
    pads = e.data(m["pads"])
    rank = len(e.shape(m.root.outputs[0]))
    if (
        pads is None
        or len(m.root.inputs) > 3
        or pads.size != 2 * rank
        or m.root.attrs.get("mode", "constant") != "constant"
    ):
        return 0
    producer = e.producer(m["sum"])
    axis = 1 if producer is not None and producer.op == "ConvInteger" else rank - 1
    return int(pads[rank + axis]) if np.count_nonzero(pads) == 1 else 0


def _longer(e: Editor, name: str, more: int, axis: int, fill: int = 0) -> str:
    """A constant with `more` of `fill` along `axis`; one number for all stays one."""
    data = e.array(name)
    if data.ndim == 0 or data.shape[axis] == 1:
        return name
    around = [(0, more) if k == axis % data.ndim else (0, 0) for k in range(data.ndim)]
    return e.constant(np.pad(data, around, constant_values=fill), f"{name}_wide", e.value(name).dtype)


def _widened(e: Editor, m: Match) -> str | None:
    more, product = _more(e, m), e.node(m["sum"])
    if not more or int(product.attrs.get("group", 1)) != 1:
        return None
    conv = product.op == "ConvInteger"
    rank = len(e.shape(m["sum"]))
    total = e.again(product, (m["x"], _longer(e, m["w"], more, 0 if conv else 1)))
    for name in ("offset", "factor"):
        constant = e.data(m[name]) if name in m.bound else None
        axis = -(rank - 1) if conv else -1
        if constant is not None and constant.ndim not in (0, -axis):
            return None
        if name == "offset" and constant is not None:
            total = e.add("Add", (total, _longer(e, m["offset"], more, axis)))
        if name == "factor":
            real = e.add("Mul", (e.add("Cast", (total,), {"to": "float32"}), _longer(e, m["factor"], more, axis, 1)))
    real = e.add("Relu", (real,)) if "relu" in m.bound else real
    quantized = e.node(m["quantized"])
    return e.again(quantized, (real, *quantized.inputs[1:]))


def _pattern(offset: bool, relu: bool) -> Op:
    pattern: Pattern = Op("ConvInteger|MatMulInteger", Bind("x"), Constant("w"), name="sum")
    pattern = Op("Add", pattern, Constant("offset")) if offset else pattern
    pattern = Op("Mul", Op("Cast", pattern), Constant("factor"))
    pattern = Op("Relu", pattern, name="relu") if relu else pattern
    pattern = Op("QuantizeLinear", pattern, Constant("s"), Constant("z"), name="quantized")
    return Op("Pad", pattern, Constant("pads"), more=True)


RULES = tuple(Rule(_pattern(offset, relu), _widened) for offset in (False, True) for relu in (False, True))


def widened(graph: Graph) -> Graph:
    """`graph` with the rules applied. What is written has the name that it had before, with more channels."""
    padded = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op == "Pad" and n.outputs[0] not in graph.outputs}
    graph = rewrite(graph, RULES)
    names = {new: old for new, old in padded.items() if new in graph.values and old not in graph.values}
    return renamed(graph, names)
