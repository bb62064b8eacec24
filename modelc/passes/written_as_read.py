"""What is quantized for products of whole numbers is written as it is read.

Bytes that are read as other numbers at once are never made: what is quantized is rounded and clamped as these.

    f32(QuantizeLinear(x, 1, z) - z') * s            ->  (clamp(round(x)) + z - z') * s       in float32
    int16(QuantizeLinear(x, 1, z)) - z               ->  int16(clamp(round(x)))
    int16(Concat(q, r)) - z                          ->  Concat(int16(q) - z, int16(r) - z)

Numbers are clamped to those of the bytes, less their zero point. Between a convolution and a residual a network that
was quantized has a pair of the first kind. The attribute `bytes` says what they are called where a Task has to store
them after all (partition/stored_bytes.py).

Channels that are added to a result for the sake of what reads it are computed by what writes it.

    Pad(Q(f32(ConvInteger(x, w) + b) * s), more channels)  ->  Q(f32(ConvInteger(x, w') + b') * s')

with more rows of weights, which are zero: an instruction multiplies whole groups of channels, and 61 are as dear as 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph
from modelc.passes.machine import BYTES, WIDE
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Pattern, Rule, rewrite
from modelc.passes.quantized import renamed

QUANTIZED = Op("QuantizeLinear", Bind("x"), Constant("one"), Constant("z"), name="bytes")


def _limits(e: Editor, m: Match) -> tuple[int, tuple[int, int]] | None:
    """(the zero point, the least and the largest of the bytes less that); None where x is scaled first, or there is not
    one zero point."""
    value, scale, zero = e.value(m["bytes"]), e.data(m["one"]), e.data(m["z"])
    assert scale is not None and zero is not None
    whole = value.dtype in BYTES and zero.size == 1 and scale.size == 1 and scale.item() == 1
    if not whole or e.value(m["x"]).dtype != "float32":
        return None
    kind, point = np.iinfo(DTYPES[value.dtype]), int(zero.item())
    return point, (int(kind.min) - point, int(kind.max) - point)


def _real(e: Editor, m: Match) -> str | None:
    limits, scale, zero = _limits(e, m), e.data(m["scale"]), e.data(m["zero"])
    assert scale is not None and zero is not None
    if limits is None or e.value(m.root.outputs[0]).dtype != "float32" or zero.size != 1 or scale.size != 1:
        return None
    point, (least, largest) = limits
    between = _numbers(e, m, (least, largest))
    whole = e.add("Clip", (e.add("Round", (m["x"],)), *between), {"bytes": m["bytes"]})
    if moved := point - int(zero.item()):
        whole = e.add("Add", (whole, *_numbers(e, m, (moved,))))
    return whole if scale.item() == 1 else e.add("Mul", (whole, m["scale"]))


def _numbers(e: Editor, m: Match, numbers: Sequence[int]) -> list[str]:
    return [e.constant(np.float32(number), f"{m['bytes']}_{number}", "float32") for number in numbers]


def _wide(e: Editor, m: Match) -> str | None:
    limits, taken = _limits(e, m), e.data(m["taken"]) if "taken" in m.bound else np.zeros(1)
    cast = e.producer(m["cast"])
    assert taken is not None and cast is not None
    if limits is None or cast.attrs["to"] != WIDE or taken.size != 1 or int(taken.item()) != limits[0]:
        return None
    zero = e.constant(np.int16(0), f"{m['z']}_{WIDE}", WIDE)
    return e.add("QuantizeLinear", (m["x"], m["one"], zero), {"limits": limits[1]})


def _parts_wide(e: Editor, m: Match) -> str | None:
    """Parts of a Concat that are quantized for it are written as what it is read as."""
    joined, cast = e.producer(m["joined"]), e.producer(m["cast"])
    assert joined is not None and cast is not None
    makers = [(x, e.producer(x)) for x in joined.inputs]
    subtracted = any(n.op == "Sub" for n in e.readers(m.root.outputs[0]))
    if (
        (m.root is cast and subtracted)
        or cast.attrs["to"] != WIDE
        or not any(n is not None and n.op == "QuantizeLinear" and e.private(x) for x, n in makers)
    ):
        return None
    parts = {x: e.again(cast, (x,)) for x in dict.fromkeys(joined.inputs)}
    if "taken" in m.bound:
        if len(e.shape(m["taken"])) > 1 or np.prod(e.shape(m["taken"])) != 1:
            return None
        parts = {x: e.again(m.root, (part, m["taken"])) for x, part in parts.items()}
    return e.again(joined, [parts[x] for x in joined.inputs])


JOINED = Op("Cast", Op("Concat", Bind("y"), name="joined", more=True), name="cast")
ROUNDED = (
    Rule(Op("Sub", JOINED, Constant("taken")), _parts_wide),
    Rule(JOINED, _parts_wide),
    Rule(Op("DequantizeLinear", QUANTIZED, Constant("scale"), Constant("zero")), _real),
    Rule(Op("Sub", Op("Cast", QUANTIZED, name="cast"), Constant("taken")), _wide),
    Rule(Op("Cast", QUANTIZED, name="cast"), _wide),
)


# --- more channels ------------------------------------------------------------------------------------------------


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
    data: NDArray[Any] | None = e.data(name)
    assert data is not None
    if data.ndim == 0 or data.shape[axis] == 1:
        return name
    around = [(0, more) if k == axis % data.ndim else (0, 0) for k in range(data.ndim)]
    return e.constant(np.pad(data, around, constant_values=fill), f"{name}_wide", e.value(name).dtype)


def _widened(e: Editor, m: Match) -> str | None:
    more, product = _more(e, m), e.producer(m["sum"])
    assert product is not None
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
    quantized = e.producer(m["quantized"])
    assert quantized is not None
    return e.again(quantized, (real, *quantized.inputs[1:]))


def _pattern(offset: bool, relu: bool) -> Op:
    pattern: Pattern = Op("ConvInteger|MatMulInteger", Bind("x"), Constant("w"), name="sum")
    pattern = Op("Add", pattern, Constant("offset")) if offset else pattern
    pattern = Op("Mul", Op("Cast", pattern), Constant("factor"))
    pattern = Op("Relu", pattern, name="relu") if relu else pattern
    pattern = Op("QuantizeLinear", pattern, Constant("s"), Constant("z"), name="quantized")
    return Op("Pad", pattern, Constant("pads"), more=True)


WIDENED = tuple(Rule(_pattern(offset, relu), _widened) for offset in (False, True) for relu in (False, True))


def written_as_read(graph: Graph) -> Graph:
    """`graph` with the rules applied. What has more channels has the name that it had before."""
    graph = rewrite(graph, ROUNDED)
    padded = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.op == "Pad" and n.outputs[0] not in graph.outputs}
    graph = rewrite(graph, WIDENED)
    names = {new: old for new, old in padded.items() if new in graph.values and old not in graph.values}
    return renamed(graph, names)
