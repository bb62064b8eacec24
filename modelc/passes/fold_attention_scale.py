"""A multiplication by a power of two goes into the constant weights that its operand was computed with.

    MatMul(Transpose(Reshape(MatMul(x, W) + b)), k) / 8  ->  MatMul(Transpose(Reshape(MatMul(x, W / 8) + b / 8)), k)

This is the scale of attention scores where the head's size is a power of four; of products in whole numbers it goes
into the factors of their columns. Powers of two change no rounding; other scales are left where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp

import numpy as np

from modelc.ir.graph import Node
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Rule, RulePass

FAR = 16  # operators between the multiplication and the weights; each is made anew


def _scaled(e: Editor, m: Match) -> str | None:
    number = e.scalar(m["factor"])
    same_shape = e.shape(m["x"]) == e.shape(m.root.outputs[0])
    if number is None or number <= 0 or frexp(number)[0] != 0.5 or number == 1.0 or not same_shape:
        return None
    return _pushed(e, m["x"], 1.0 / number if m.root.op == "Div" else number)


def _pushed(e: Editor, name: str, scale: float, operators: int = FAR) -> str | None:
    """A new value that is `name` times `scale`, made by scaling constants within so many `operators`; None if there are
    none to scale."""
    node = e.producer(name)
    if node is None or not operators or not e.private(name):
        return None
    if node.op == "MatMul":
        if e.data(node.inputs[1]) is not None:
            weights = _constant(e, node.inputs[1], scale)
            return None if weights is None else _again(e, node, (node.inputs[0], weights))
        inner = _pushed(e, node.inputs[0], scale, operators - 1)
        return None if inner is None else _again(e, node, (inner, node.inputs[1]))
    if node.op == "Mul":
        for x, factors in (node.inputs, node.inputs[::-1]):
            if (scaled := _constant(e, factors, scale)) is not None:
                return _again(e, node, (x, scaled))
        for x, other in (node.inputs, node.inputs[::-1]):
            if (inner := _pushed(e, x, scale, operators - 1)) is not None:
                return _again(e, node, (inner, other))
        return None
    if node.op in ("Reshape", "Transpose"):
        inner = _pushed(e, node.inputs[0], scale, operators - 1)
        return None if inner is None else _again(e, node, (inner, *node.inputs[1:]))
    if node.op == "Gemm":
        constants = [_constant(e, x, scale) for x in node.inputs[1:] if x]
        return None if None in constants else _again(e, node, (node.inputs[0], *(c for c in constants if c)))
    if node.op == "Add":
        for x, bias in (node.inputs, node.inputs[::-1]):
            if e.data(bias) is not None and e.data(x) is None:
                inner, shifted = _pushed(e, x, scale, operators - 1), _constant(e, bias, scale)
                return None if inner is None or shifted is None else _again(e, node, (inner, shifted))
    return None


def _again(e: Editor, node: Node, inputs: Sequence[str]) -> str:
    """The same operator over other inputs, which comes from the nodes that `node` comes from, too."""
    scaling, e.source = e.source, tuple(dict.fromkeys((*node.source, *e.source)))
    made = e.again(node, inputs)
    e.source = scaling
    return made


def _constant(e: Editor, name: str, scale: float) -> str | None:
    """The constant times `scale`, if that is exact."""
    data = e.data(name)
    if data is None or data.dtype.kind != "f":
        return None
    with np.errstate(over="ignore", under="ignore"):
        scaled = data * data.dtype.type(scale)
    exact = np.isfinite(scaled).all() and bool((scaled / data.dtype.type(scale) == data).all())
    return e.constant(scaled, f"{name}_scaled", data.dtype.name) if exact else None


RULES = (
    Rule(Op("Mul", Bind("x"), Constant("factor")), _scaled),
    Rule(Op("Div", Bind("x"), Constant("factor")), _scaled),
)


class FoldAttentionScale(RulePass):
    rules = RULES
