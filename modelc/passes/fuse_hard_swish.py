"""clip(x + 3, 0, 6) / 6 -> HardSigmoid, and x times it -> HardSwish, in whatever way they are written."""

from __future__ import annotations

from math import isclose

from modelc.passes.algebra import base, polynomial, product
from modelc.passes.pattern import Bind, Editor, Match, Op, Rule, RulePass

SLOPE, OFFSET = 1 / 6, 0.5


def _hard_sigmoid_of(e: Editor, scale: float, name: str, x: str = "") -> tuple[str, float, float] | None:
    """(x, alpha, beta) if `scale` times the value is max(0, min(1, alpha * x + beta)), of a given `x` or any."""
    node = e.producer(name)
    if node is None:
        return None
    if node.op == "HardSigmoid" and isclose(scale, 1.0, rel_tol=1e-6):
        same = not x or x == node.inputs[0]
        return (node.inputs[0], node.attrs.get("alpha", 0.2), node.attrs.get("beta", 0.5)) if same else None
    if node.op != "Clip" or len(node.inputs) != 3 or not all(node.inputs):
        return None
    low, high = e.scalar(node.inputs[1]), e.scalar(node.inputs[2])
    if low != 0.0 or high is None or not isclose(scale * high, 1.0, rel_tol=1e-6):
        return None
    x = x or base(e, node.inputs[0])
    line = polynomial(e, node.inputs[0], x)
    if line is None or set(line) - {0, 1} or line.get(1, 0.0) <= 0:
        return None
    return x, scale * line[1], scale * line.get(0, 0.0)


def _is_standard(alpha: float, beta: float) -> bool:
    return isclose(alpha, SLOPE, rel_tol=1e-5) and isclose(beta, OFFSET, rel_tol=1e-5)


def _hard_swish(e: Editor, m: Match) -> str | None:
    scale, factors = product(e, m.root.outputs[0])
    if len(factors) == 2:
        for x, gate in (factors, factors[::-1]):
            hard_sigmoid = _hard_sigmoid_of(e, scale, gate, x)
            if hard_sigmoid is not None and _is_standard(*hard_sigmoid[1:]):
                return e.add("HardSwish", (x,))
    if len(factors) == 1 and scale != 1.0:
        hard_sigmoid = _hard_sigmoid_of(e, scale, factors[0])
        if hard_sigmoid is not None and e.private(factors[0]):
            return e.add("HardSigmoid", hard_sigmoid[:1], {"alpha": hard_sigmoid[1], "beta": hard_sigmoid[2]})
    return None


RULES = (Rule(Op("Mul|Div", Bind("a"), Bind("b")), _hard_swish),)


class FuseHardSwish(RulePass):
    rules = RULES
