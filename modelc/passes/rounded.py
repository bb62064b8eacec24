"""Bytes that are read as other numbers at once are never made: what is quantized is rounded and clamped as these.

    f32(QuantizeLinear(x, 1, z) - z') * s            ->  (clamp(round(x)) + z - z') * s       in float32
    int16(QuantizeLinear(x, 1, z)) - z               ->  int16(clamp(round(x)))
    int16(Concat(q, r)) - z                          ->  Concat(int16(q) - z, int16(r) - z)

Numbers are clamped to those of the bytes, less their zero point. Between a convolution and a residual a network that
was quantized has a pair of the first kind. The attribute `bytes` says what they are called where a Task has to store
them after all (partition/stored_bytes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph
from modelc.passes.machine import BYTES, WIDE
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Rule, rewrite

QUANTIZED = Op("QuantizeLinear", Bind("x"), Constant("one"), Constant("z"), name="bytes")


def rounded(graph: Graph) -> Graph:
    """`graph` with the rules applied."""
    return rewrite(graph, RULES)


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
RULES = (
    Rule(Op("Sub", JOINED, Constant("taken")), _parts_wide),
    Rule(JOINED, _parts_wide),
    Rule(Op("DequantizeLinear", QUANTIZED, Constant("scale"), Constant("zero")), _real),
    Rule(Op("Sub", Op("Cast", QUANTIZED, name="cast"), Constant("taken")), _wide),
    Rule(Op("Cast", QUANTIZED, name="cast"), _wide),
)
