"""Removes arithmetic that changes nothing: x + 0, x - 0, x * 1, x / 1, x ** 1, and rejoins products of numbers."""

from __future__ import annotations

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.passes.pattern import Bind, Constant, Editor, Match, Number, Op, Rule, RulePass

X = Bind("x")


def _unchanged(e: Editor, m: Match) -> str | None:
    """Unless the other operand broadcasts `x` to a larger shape."""
    return m["x"] if e.shape(m["x"]) == e.shape(m.root.outputs[0]) else None


def _scaled_once(e: Editor, m: Match) -> str | None:
    """(x * a) * b is x * (a * b) when both are floats of one element and nothing overflows or vanishes."""
    a, b = e.array(m["a"]), e.array(m["b"])
    if a.size != 1 or b.size != 1 or a.dtype.kind != "f" or e.shape(m["x"]) != e.shape(m.root.outputs[0]):
        return None
    product = float(a.reshape(-1)[0]) * float(b.reshape(-1)[0])
    exact = DTYPES[a.dtype.name].type(product)
    if not np.isfinite(exact) or abs(exact) < np.finfo(a.dtype).tiny:
        return None
    return e.add("Mul", (m["x"], e.constant(exact, f"{m['a']}_product", a.dtype.name)))


RULES = (
    Rule(Op("Add", X, Number(0)), _unchanged),
    Rule(Op("Sub", X, Number(0)), _unchanged),
    Rule(Op("Mul", X, Number(1)), _unchanged),
    Rule(Op("Div", X, Number(1)), _unchanged),
    Rule(Op("Pow", X, Number(1)), _unchanged),
    Rule(Op("Mul", Op("Mul", X, Constant("a")), Constant("b")), _scaled_once),
)


class CleanArithmetic(RulePass):
    rules = RULES
