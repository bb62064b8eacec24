"""More nodes for random graphs: those that address elements, that are empty, and what else networks are made of."""

from __future__ import annotations

import numpy as np
from random_draft import Draft, Maker, RandomGraph, node
from random_nodes import partner

FUNCTIONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("LeakyRelu", {"alpha": 0.3}),
    ("Celu", {"alpha": 1.5}),
    ("Softsign", {}),
    ("Atan", {}),
    ("Asinh", {}),
    ("Cos", {}),
    ("HardSwish", {}),
    ("Swish", {}),
    ("Gelu", {"approximate": "tanh"}),
)
EINSUMS = (
    ("ab,bc->ac", 2),
    ("abc,cd->abd", 3),
    ("abc,adc->abd", 3),
    ("abc,ade->abcde", 3),
    ("abcd,abed->abce", 4),
    ("ab,ab->a", 2),
    ("abc,c->ab", 3),
)


def function(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating)
    op, attrs = FUNCTIONS[int(g.rng.integers(len(FUNCTIONS)))]
    return x and Draft([node(op, [x.name], [g.fresh("v")], **attrs)])


def power(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating)
    if x is None:
        return None
    exponent = float(g.pick((2, 3, 2, 1) if float(x.array.min()) < 0.05 else (0.5, 2, -1, 1.7)))
    draft = Draft([])
    draft.nodes.append(node("Pow", [x.name, g.weights(draft, x, exponent)], [g.fresh("v")]))
    return draft


def several(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.floating)
    if x is None:
        return None
    draft = Draft([])
    others = [partner(g, x, draft, lambda v: True) for _ in range(int(g.rng.integers(0, 3)))]
    draft.nodes.append(node(str(g.pick(("Sum", "Mean", "Max", "Min"))), [x.name, *others], [g.fresh("v")]))
    return draft


def einsum(g: RandomGraph) -> Draft | None:
    equation, rank = EINSUMS[int(g.rng.integers(len(EINSUMS)))]
    x = g.value(lambda v: v.array.dtype == np.float32 and v.array.ndim == rank)
    if x is None:
        return None
    draft = Draft([])
    first, second = equation.partition("->")[0].split(",")
    extents = dict(zip(first, x.array.shape, strict=True))
    shape = tuple(extents.setdefault(letter, int(g.rng.integers(1, 6))) for letter in second)
    weights = g.weights(draft, x, g.normal(*shape) / 2)
    draft.nodes.append(node("Einsum", [x.name, weights], [g.fresh("v")], equation=equation))
    return draft


def pick_elements(g: RandomGraph) -> Draft | None:
    """Elements and pieces at places that are constant, read or replaced."""
    x = g.value(lambda v: v.array.ndim >= 1 and v.array.dtype.name in ("float32", "int64", "int32", "float64"))
    if x is None:
        return None
    draft, out, shape = Draft([], keeps_exact=True), g.fresh("v"), x.array.shape
    axis = int(g.rng.integers(len(shape)))
    kind = str(g.pick(("GatherElements", "ScatterElements", "GatherND", "ScatterND", "ReverseSequence", "Trilu")))
    part = tuple(int(g.rng.integers(1, n + 1)) for n in shape)
    if kind == "GatherElements":
        places = g.whole_array(draft, g.rng.integers(-shape[axis], shape[axis], part))
        draft.nodes.append(node(kind, [x.name, places], [out], axis=axis))
    elif kind == "ScatterElements":
        reduction = str(g.pick(("none", "add", "max", "min")))
        rows = np.argsort(g.rng.random((*part[:axis], shape[axis], *part[axis + 1 :])), axis)  # no place twice
        places = g.whole_array(draft, rows.take(range(part[axis]), axis))
        numbers = g.weights(draft, x, g.rng.integers(1, 5, part))
        draft.keeps_exact = reduction != "add"
        draft.nodes.append(node(kind, [x.name, places, numbers], [out], axis=axis, reduction=reduction))
    elif kind in ("GatherND", "ScatterND"):
        depth = int(g.rng.integers(1, len(shape) + 1))
        chosen = g.rng.permutation(int(np.prod(shape[:depth])))[: int(g.rng.integers(1, 6))]
        places = g.whole_array(draft, np.stack(np.unravel_index(chosen, shape[:depth]), -1))
        numbers = [g.weights(draft, x, g.rng.integers(1, 5, (len(chosen), *shape[depth:])))] * (kind == "ScatterND")
        draft.nodes.append(node(kind, [x.name, places, *numbers], [out]))
    elif kind == "ReverseSequence":
        if len(shape) < 2:
            return None
        lengths = g.whole_array(draft, g.rng.integers(1, shape[0] + 1, shape[1]))
        draft.nodes.append(node(kind, [x.name, lengths], [out], time_axis=0, batch_axis=1))
    else:
        if len(shape) < 2:
            return None
        k = g.constant(draft, np.array(int(g.rng.integers(-2, 3)), np.int64))
        draft.nodes.append(node(kind, [x.name, k], [out], upper=int(g.chance(0.5))))
    return draft


def address(g: RandomGraph) -> Draft | None:
    """Elements read or replaced at places that a run computes."""
    i = g.value(lambda v: v.exact and v.array.dtype == np.int64 and v.array.ndim >= 1 and v.array.min() >= 0)
    if i is None:
        return None
    draft, limit = Draft([], keeps_exact=True), int(i.array.max()) + 1
    kind, out = str(g.pick(("GatherElements", "ScatterElements", "OneHot", "GatherND"))), g.fresh("v")
    shape = (limit, *i.array.shape[1:])
    if kind == "OneHot":
        depth, values = g.whole(draft, limit), g.constant(draft, np.array([-0.5, 2], np.float32))
        draft.nodes.append(node(kind, [i.name, depth, values], [out]))
    elif kind == "GatherND":
        rank = i.array.shape[-1]
        if rank > 3 or limit > 12:
            return None
        table = g.constant(draft, g.normal(*([limit] * rank), 2))
        draft.nodes.append(node(kind, [table, i.name], [out]))
    else:
        table = g.constant(draft, g.normal(*shape))
        numbers = [g.constant(draft, g.normal(*i.array.shape))] * (kind == "ScatterElements")
        attrs = {"reduction": str(g.pick(("add", "max")))} if numbers else {}
        draft.keeps_exact = attrs.get("reduction") != "add"
        draft.nodes.append(node(kind, [table, i.name, *numbers], [out], axis=0, **attrs))
    return draft


def hollow(g: RandomGraph) -> Draft | None:
    """An empty piece, what is computed of it, and what of it is not empty again."""
    x = g.value(lambda v: v.array.dtype.name in ("float32", "int64") and v.array.ndim >= 1)
    if x is None:
        return None
    draft, shape = Draft([], keeps_exact=True), x.array.shape
    axis = int(g.rng.integers(len(shape)))
    empty, made, out = g.fresh("e"), g.fresh("e"), g.fresh("v")
    draft.sized |= {empty, made}
    if g.depth == 0 and g.chance(0.4):
        draft.feeds[empty] = np.zeros((*shape[:axis], 0, *shape[axis + 1 :]), x.array.dtype)
    else:
        at = int(g.rng.integers(0, shape[axis] + 1))
        ends = [g.whole(draft, n) for n in (at, at, axis)]
        draft.nodes.append(node("Slice", [x.name, *ends], [empty]))
    draft.nodes.append(node(str(g.pick(("Neg", "Abs", "Identity"))), [empty], [made]))
    kind = str(g.pick(("Concat", "ReduceSum", "MatMul", "Expand", "Pad", "none")))
    if kind == "Concat":
        draft.nodes.append(node(kind, [made, x.name], [out], axis=axis))
    elif kind == "ReduceSum":
        draft.nodes.append(node(kind, [made, g.whole(draft, axis)], [out], keepdims=int(g.chance(0.5))))
    elif kind == "MatMul":
        if axis != len(shape) - 1 or x.array.dtype != np.float32:
            return None
        draft.nodes.append(node(kind, [made, g.constant(draft, np.zeros((0, 3), np.float32))], [out]))
    elif kind == "Expand":
        first = g.fresh("e")
        draft.sized |= {first, out}
        draft.nodes.append(node("Unsqueeze", [made, g.whole(draft, 0)], [first]))
        draft.nodes.append(node(kind, [first, g.whole(draft, 2, *([1] * len(shape)))], [out]))
    elif kind == "Pad":
        pads = [0] * (2 * len(shape))
        pads[axis] = 2
        draft.nodes.append(node(kind, [made, g.whole(draft, *pads)], [out]))
    return draft


def recurrent(g: RandomGraph) -> Draft | None:
    x = g.value(lambda v: v.array.dtype == np.float32 and v.array.ndim == 3 and v.array.shape[0] <= 20)
    if x is None:
        return None
    draft, (steps, batch, size) = Draft([]), x.array.shape
    op, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[int(g.rng.integers(3))]
    hidden, way = int(g.rng.integers(1, 9)), str(g.pick(("forward", "reverse", "bidirectional")))
    ways = 1 + (way == "bidirectional")
    inputs = [x.name, g.weights(draft, x, g.normal(ways, gates * hidden, size) / size**0.5)]
    inputs.append(g.weights(draft, x, g.normal(ways, gates * hidden, hidden) / hidden**0.5))
    inputs.append(g.weights(draft, x, g.normal(ways, 2 * gates * hidden) / 2) if g.chance(0.7) else "")
    lengths = g.rng.integers(1, steps + 1, batch).astype(np.int32)
    inputs.append(g.constant(draft, lengths) if g.chance(0.3) else "")
    inputs.append(g.weights(draft, x, g.normal(ways, batch, hidden) / 2) if g.chance(0.3) else "")
    attrs: dict[str, object] = {"hidden_size": hidden, "direction": way}
    if op == "GRU":
        attrs["linear_before_reset"] = int(g.chance(0.5))
    outputs = [g.fresh("v") if g.chance(0.7) else "", g.fresh("v")]
    draft.nodes.append(node(op, inputs, outputs if outputs[0] else ["", outputs[1]], **attrs))
    return draft


def steered(g: RandomGraph) -> Draft | None:
    """A shape that is computed of another's, as exporters write it."""
    x = g.value(lambda v: v.array.ndim >= 2)
    if x is None:
        return None
    draft, out = Draft([], keeps_exact=True), g.fresh("v")
    shape, first, joined = (g.fresh("n") for _ in range(3))
    draft.nodes += [
        node("Shape", [x.name], [shape]),
        node("Gather", [shape, g.whole(draft, 0)], [first]),
        node("Concat", [first, g.whole(draft, -1)], [joined], axis=0),
        node("Reshape", [x.name, joined], [out]),
    ]
    draft.hidden |= {shape, first, joined}
    return draft


def rest(g: RandomGraph) -> Draft | None:
    """Operators of images, and masks of what is no number."""
    x = g.value(lambda v: v.array.dtype == np.float32 and v.array.ndim == 4)
    if x is None:
        return None
    kind, out, draft = (
        str(g.pick(("LRN", "LpPool", "Hardmax", "IsNaN", "GridSample", "MVN", "Dropout"))),
        g.fresh("v"),
        Draft([]),
    )
    n, _, h, w = x.array.shape
    if kind == "LRN":
        draft.nodes.append(node(kind, [x.name], [out], size=int(g.pick((1, 3, 5))), alpha=0.1))
    elif kind == "LpPool":
        draft.nodes.append(node(kind, [x.name], [out], kernel_shape=[min(2, h), min(2, w)], p=2))
    elif kind == "Hardmax":
        if not x.exact:
            return None
        draft.nodes.append(node(kind, [x.name], [out], axis=int(g.rng.integers(4))))
    elif kind == "IsNaN":
        draft.keeps_exact = True
        draft.nodes.append(node(kind, [x.name], [out]))
    elif kind == "GridSample":
        grid = g.weights(draft, x, g.rng.uniform(-1.1, 1.1, (n, 3, 4, 2)))
        pads = str(g.pick(("zeros", "border", "reflection")))
        attrs = {"mode": "linear", "padding_mode": pads, "align_corners": int(g.chance(0.5))}
        draft.nodes.append(node(kind, [x.name, grid], [out], **attrs))
    elif kind == "MVN":
        if float(x.array.std((0, 2, 3)).min()) < 0.1:
            return None
        draft.nodes.append(node("MeanVarianceNormalization", [x.name], [out], axes=[0, 2, 3]))
    else:
        draft.nodes.append(node(kind, [x.name], [out, g.fresh("b")]))
    return draft


SHAPE_MAKERS: tuple[Maker, ...] = (
    *(function, power, several, einsum, pick_elements, pick_elements, address, hollow, recurrent, steered, rest),
)
