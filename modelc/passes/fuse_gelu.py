"""x * (1 + erf(x / sqrt(2))) / 2, and its approximation by tanh, in whatever way they are written -> Gelu."""

from __future__ import annotations

from math import pi, sqrt

from modelc.passes.algebra import base, near, polynomial, product
from modelc.passes.pattern import Bind, Editor, Match, Op, Rule, RulePass

EXACT = {1: sqrt(0.5)}  # the argument of erf
TANH = {1: sqrt(2 / pi), 3: sqrt(2 / pi) * 0.044715}  # the argument of tanh


def _gelu(e: Editor, m: Match) -> str | None:
    scale, factors = product(e, m.root.outputs[0])
    if len(factors) != 2:
        return None
    for x, gate in (factors, factors[::-1]):
        inner = base(e, gate)
        node = e.producer(inner)
        if node is None or node.op not in ("Erf", "Tanh"):
            continue
        weight = {k: scale * c for k, c in (polynomial(e, gate, inner) or {}).items()}
        if not near(weight, {0: 0.5, 1: 0.5}):
            continue
        argument = polynomial(e, node.inputs[0], x)
        e.source = _sources(e, m.root.outputs[0], x)
        if node.op == "Erf" and near(argument, EXACT):
            return e.add("Gelu", (x,))
        if node.op == "Tanh" and near(argument, TANH):
            return e.add("Gelu", (x,), {"approximate": "tanh"})
    return None


def _sources(e: Editor, name: str, x: str) -> tuple[str, ...]:
    """The sources of every node between `x` and `name`, in order."""
    sources: dict[str, None] = {}
    seen: set[str] = set()

    def visit(value: str) -> None:
        node = e.producer(value)
        if value == x or node is None or value in seen:
            return
        seen.add(value)
        for inner in node.inputs:
            if inner and e.data(inner) is None:
                visit(inner)
        sources.update(dict.fromkeys(node.source))

    visit(name)
    return tuple(sources)


RULES = (Rule(Op("Mul|Div", Bind("a"), Bind("b")), _gelu),)


class FuseGelu(RulePass):
    rules = RULES
