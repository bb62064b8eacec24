"""Values whose size depends on data, for random graphs: through branches and loops, and as large as a number that the
model computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper
from random_control import condition, count
from random_draft import Array, Draft, Maker, RandomGraph, Value, node, tensors

Rows = Callable[[RandomGraph, Draft, Value, str, str], None]  # adds nodes: of x and some rows of it, others
MOST = 9  # of a number that becomes a size


def _exact(g: RandomGraph) -> Value | None:
    return g.value(lambda v: v.exact and v.array.dtype == np.float32 and 1 <= v.array.ndim <= 3)


def _kept(g: RandomGraph, draft: Draft, x: Value | str, array: Array, level: float, word: str) -> str:
    """Which rows of `x` have an element above the level."""
    name = x if isinstance(x, str) else x.name
    top, mask = g.fresh(word), g.fresh(word)
    axes = [*range(1, array.ndim)]
    if axes:
        draft.nodes.append(node("ReduceMax", [name, g.whole(draft, *axes)], [top], keepdims=0))
    draft.nodes.append(node("Greater", [top if axes else name, g.constant(draft, np.float32(level))], [mask]))
    draft.hidden |= {top, mask}
    return mask


def _selected(g: RandomGraph, draft: Draft, x: Value) -> str:
    """Some rows of x."""
    tops = x.array.reshape(len(x.array), -1).max(1)
    mask = _kept(g, draft, x, x.array, float(np.median(tops)) if g.chance(0.8) else float(tops.max()) + 1, "m")
    rows = g.fresh("r")
    draft.nodes.append(node("Compress", [x.name, mask], [rows], axis=0))
    draft.sized.add(rows)
    return rows


def _scaled(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    draft.nodes.append(node("Mul", [rows, g.constant(draft, np.float32(0.5))], [out]))


def _fewer(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    mask = _kept(g, draft, rows, x.array, float(np.quantile(x.array, 0.7)), "k")
    draft.nodes.append(node("Compress", [rows, mask], [out], axis=0))


def _first(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    bounds = [g.whole(draft, k) for k in (int(g.chance(0.5)), 3, 0)]
    draft.nodes.append(node("Slice", [rows, *bounds], [out]))


def _others(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    mask = _kept(g, draft, x, x.array, float(np.quantile(x.array, 0.3)), "k")
    draft.nodes.append(node("Compress", [x.name, mask], [out], axis=0))


def _running(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    draft.nodes.append(node("CumSum", [rows, g.constant(draft, np.array(0, np.int64))], [out]))


def _joined(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    draft.nodes.append(node("Concat", [rows, x.name], [out], axis=0))


def _all(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    draft.nodes.append(node("Abs", [x.name], [out]))


def _none(g: RandomGraph, draft: Draft, x: Value, rows: str, out: str) -> None:
    empty = g.constant(draft, np.zeros((0, *x.array.shape[1:]), np.float32))
    draft.nodes.append(node("Identity", [empty], [out]))


STEPS = (_scaled, _fewer, _first, _others, _running)
SIDES = (*STEPS, _joined, _all, _none)


def _after(g: RandomGraph, draft: Draft, y: str) -> None:
    """What reads such a value: one that has its size, one that tells it, and one of a size that is known."""
    twice, shape, total = g.fresh("s"), g.fresh("i"), g.fresh("v")
    draft.nodes += [
        node("Mul", [y, g.constant(draft, np.float32(2))], [twice]),
        node("Shape", [twice], [shape]),
        node("ReduceSum", [twice, g.whole(draft, 0)], [total], keepdims=int(g.chance(0.5))),
    ]
    draft.sized |= {y, twice}


def _inner(g: RandomGraph, steps: tuple[Rows, ...], x: Value, rows: str, last: str) -> Draft:
    """One or two steps in a body, whose constants are its own."""
    made, now = Draft([]), rows
    for k in range(int(g.rng.integers(1, 3))):
        out = last if k else g.fresh("b")
        (STEPS if k else steps)[int(g.rng.integers(len(STEPS if k else steps)))](g, made, x, now, out)
        now = out
    if now != last:
        made.nodes.append(node("Identity", [now], [last]))
    return made


def sized_branch(g: RandomGraph) -> Draft | None:
    x = _exact(g)
    if x is None or g.depth:
        return None
    draft = Draft([], keeps_exact=False)
    rows, out = _selected(g, draft, x), g.fresh("s")
    if g.chance(0.5):
        size, test = g.fresh("n"), g.fresh("c")
        draft.nodes.append(node("Size", [rows], [size]))
        draft.nodes.append(node("Equal", [size, g.constant(draft, np.array(0, np.int64))], [test]))
        draft.hidden |= {size, test}
    else:
        test = condition(g, draft)
    graphs = []
    for _ in range(2):
        last = g.fresh("b")
        made = _inner(g, SIDES, x, rows, last)
        end = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
        graphs.append(helper.make_graph(made.nodes, "side", [], [end], tensors(made.held)))
    draft.nodes.append(node("If", [test], [out], then_branch=graphs[0], else_branch=graphs[1]))
    _after(g, draft, out)
    return draft


def sized_loop(g: RandomGraph) -> Draft | None:
    x = _exact(g)
    if x is None or g.depth:
        return None
    draft = Draft([])
    rows, out = _selected(g, draft, x), g.fresh("s")
    trips, _ = count(g, draft, 0.3)
    i, going, kept, carried, last = (g.fresh("l") for _ in range(5))
    made = _inner(g, STEPS, x, carried, last)
    made.nodes.append(node("Identity", [going], [kept]))
    inputs = [
        helper.make_tensor_value_info(i, TensorProto.INT64, ()),
        helper.make_tensor_value_info(going, TensorProto.BOOL, ()),
        helper.make_tensor_value_info(carried, TensorProto.FLOAT, None),
    ]
    ends = [helper.make_tensor_value_info(kept, TensorProto.BOOL, ())]
    ends.append(helper.make_tensor_value_info(last, TensorProto.FLOAT, None))
    body = helper.make_graph(made.nodes, "body", inputs, ends, tensors(made.held))
    draft.nodes.append(node("Loop", [trips, "", rows], [out], body=body))
    _after(g, draft, out)
    return draft


def computed_size(g: RandomGraph) -> Draft | None:
    """A number with a bound, and a tensor that is as large."""
    x = _exact(g)
    if x is None:
        return None
    draft, out = Draft([]), g.fresh("s")
    peak, whole, number, vector = (g.fresh("n") for _ in range(4))
    least, most = (g.constant(draft, np.float32(k)) for k in (1, MOST))
    draft.nodes += [
        node("ReduceMax", [x.name], [peak], keepdims=0),
        node("Clip", [peak, least, most], [whole]),
        node("Cast", [whole], [number], to=TensorProto.INT64),
        node("Unsqueeze", [number, g.whole(draft, 0)], [vector]),
    ]
    draft.hidden |= {peak, whole, number, vector}
    kind = str(g.pick(("Range", "Expand", "Tile", "Slice", "ConstantOfShape", "Conv")))
    shape = g.fresh("n")
    if kind == "Range":
        ends = [g.constant(draft, np.array(k, np.int64)) for k in (0, 1)]
        made = g.fresh("n")
        draft.nodes.append(node(kind, [ends[0], number, ends[1]], [made]))
        draft.nodes.append(node("Cast", [made], [out], to=TensorProto.FLOAT))
        draft.hidden.add(made)
    elif kind == "ConstantOfShape":
        draft.nodes += [node("Concat", [vector, g.whole(draft, 3)], [shape], axis=0), node(kind, [shape], [out])]
    elif kind == "Slice":
        draft.nodes.append(node(kind, [x.name, g.whole(draft, 0), vector, g.whole(draft, 0)], [out]))
    else:
        ones = g.whole(draft, *[1] * x.array.ndim)
        wide = g.fresh("n")
        draft.nodes += [
            node("Concat", [vector, ones], [shape], axis=0),
            node("Tile" if kind == "Tile" else "Expand", [x.name, shape], [out if kind == "Expand" else wide]),
        ]
        if kind == "Tile":
            draft.nodes.append(node("Neg", [wide], [out]))
        elif kind == "Conv":
            flat, turned, channels = g.fresh("n"), g.fresh("n"), int(np.prod(x.array.shape))
            weights = g.constant(draft, g.normal(2, channels, 3) / channels**0.5)
            draft.nodes += [
                node("Reshape", [wide, g.whole(draft, 1, -1, channels)], [flat]),
                node("Transpose", [flat], [turned], perm=[0, 2, 1]),
                node("Conv", [turned, weights], [out], pads=[1, 1], strides=[int(g.rng.integers(1, 3))]),
            ]
            draft.hidden |= {flat, turned}
        draft.hidden.add(wide)
    draft.hidden.add(shape)
    _after(g, draft, out)
    return draft


SIZED_MAKERS: tuple[Maker, ...] = (sized_branch, sized_loop, computed_size)
