"""(x - mean) / sqrt(mean of squares + epsilon), then scale and bias -> LayerNormalization."""

from __future__ import annotations

from math import prod

import numpy as np

from modelc.passes.pattern import Bind, Constant, Editor, Match, Number, Op, Pattern, Rule, RulePass

X = Bind("x")
CENTRED = Op("Sub", X, Op("ReduceMean", X, name="mean", more=True), name="centred")
SQUARES = (Op("Pow", CENTRED, Number(2)), Op("Mul", CENTRED, CENTRED))


def _forms(square: Pattern) -> tuple[Op, ...]:
    """The normalised value, as exporters write it."""
    variance = Op("ReduceMean", square, name="variance", more=True)
    shifted = Op("Add", variance, Constant("epsilon"))
    root = Op("Sqrt", shifted)
    return (
        Op("Div", CENTRED, root),
        Op("Mul", CENTRED, Op("Reciprocal", root)),
        Op("Mul", CENTRED, Op("Div", Number(1), root)),
        Op("Div", CENTRED, Op("Pow", shifted, Number(0.5))),
        Op("Mul", CENTRED, Op("Pow", shifted, Number(-0.5))),
    )


def _axis(e: Editor, name: str, rank: int) -> int | None:
    """The first of the trailing axes that a ReduceMean goes over; None if its axes are others, or are dropped."""
    node = e.node(name)
    if node.attrs.get("keepdims", 1) != 1:
        return None
    data = e.data(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    if data is None or not data.size:
        return None
    axes = sorted(int(a) % rank for a in data.reshape(-1))
    return axes[0] if axes == list(range(axes[0], rank)) else None


def _normalised(e: Editor, m: Match) -> str | None:
    value, epsilon = e.value(m["x"]), e.scalar(m["epsilon"])
    rank = len(value.shape)
    axis = _axis(e, m["mean"], rank)
    if axis is None or axis != _axis(e, m["variance"], rank) or epsilon is None or epsilon < 0:
        return None
    scale = e.constant(np.ones(value.shape[axis:]), f"{m.root.outputs[0]}_scale", value.dtype)
    return e.add("LayerNormalization", (m["x"], scale), {"axis": axis - rank, "epsilon": epsilon})


def _fitted(e: Editor, name: str, shape: tuple[int, ...]) -> str | None:
    """`name` as a tensor of exactly `shape`, if it broadcasts over the leading dimensions alone."""
    own = e.shape(name)
    trailing = own[max(len(own) - len(shape), 0) :]
    if prod(own) != prod(trailing):
        return None
    data = e.data(name)
    if data is not None:
        try:
            full = np.broadcast_to(data.reshape(trailing), shape)
        except ValueError:
            return None
        return name if own == shape else e.constant(full, f"{name}_full", e.value(name).dtype)
    return name if own == shape else None


def _joined(e: Editor, m: Match) -> str | None:
    """The normalisation with the scale or the bias that follows it."""
    node, scales = e.node(m["norm"]), "gamma" in m.bound
    normalised = e.shape(m["x"])[node.attrs.get("axis", -1) :]
    operand = _fitted(e, m["gamma" if scales else "beta"], normalised)
    if operand is None or len(node.inputs) > 2 or e.shape(m["norm"]) != e.shape(m.root.outputs[0]):
        return None
    return e.again(node, (m["x"], operand) if scales else (m["x"], m["scale"], operand))


RULES = (
    *(Rule(form, _normalised) for square in SQUARES for form in _forms(square)),
    Rule(Op("Mul", Op("LayerNormalization", X, Number(1), name="norm"), Bind("gamma")), _joined),
    Rule(Op("Add", Op("LayerNormalization", X, Bind("scale"), name="norm"), Bind("beta")), _joined),
)


class FuseLayerNorm(RulePass):
    rules = RULES
