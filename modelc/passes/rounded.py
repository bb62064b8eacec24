"""Bytes that are read as other numbers at once are never made: what is quantized is rounded and clamped as these.

    f32(QuantizeLinear(x, 1, z) - z') * s            ->  (clamp(round(x)) + z - z') * s       in float32
    int16(QuantizeLinear(x, 1, z)) - z               ->  int16(clamp(round(x)))

Numbers are clamped to those of the bytes, less their zero point. Between a convolution and a residual a network that
was quantized has a pair of the first kind.
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
    whole = e.add("Clip", (e.add("Round", (m["x"],)), *_numbers(e, m, (least, largest))))
    if moved := point - int(zero.item()):
        whole = e.add("Add", (whole, *_numbers(e, m, (moved,))))
    return e.add("Mul", (whole, m["scale"]))


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


RULES = (
    Rule(Op("DequantizeLinear", QUANTIZED, Constant("scale"), Constant("zero")), _real),
    Rule(Op("Sub", Op("Cast", QUANTIZED, name="cast"), Constant("taken")), _wide),
    Rule(Op("Cast", QUANTIZED, name="cast"), _wide),
)
