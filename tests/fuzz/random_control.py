"""Control flow for random graphs: an If, a Loop or a Scan around random nodes, decided by constants or in a run."""

from __future__ import annotations

from math import prod

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper
from random_draft import Array, Draft, Maker, RandomGraph, Value, info, node, tensors

DEEPEST = 2
MOST_ITERATIONS = 6
FOREVER = 2**63 - 1  # what TensorFlow's exporter writes for a `while`


def _inner(g: RandomGraph, x: Value, held: dict[str, Array]) -> tuple[RandomGraph, Value] | None:
    """A few random nodes that begin with `x`, and what floats of theirs came last; their constants go into `held`, or
    into the graph around."""
    inner = g.within([*(v for v in g.values if not v.sized and v.name != x.name and g.chance(0.3)), x])
    inner.grow(int(g.rng.integers(1, 5)), 30)
    last = next((v for v in reversed(inner.values) if v.floating and not v.sized and v.name not in _names(g, x)), None)
    if last is None or inner.feeds:
        return None
    held |= inner.held
    return inner, last


def _names(g: RandomGraph, x: Value) -> set[str]:
    return {v.name for v in g.values} | {x.name}


def _graph(
    name: str, nodes: list, inputs: list[ValueInfoProto], outputs: list[ValueInfoProto], held: dict
) -> GraphProto:
    return helper.make_graph(nodes, name, inputs, outputs, tensors(held))


def condition(g: RandomGraph, draft: Draft) -> str:
    """A bool that is known only in a run, or one that is constant."""
    bits = g.value(lambda v: v.array.dtype == np.bool_ and v.exact)
    if bits is not None and g.chance(0.5):
        number, most, out = (g.fresh("c") for _ in range(3))
        draft.nodes += [
            node("Cast", [bits.name], [number], to=TensorProto.INT32),
            node("ReduceMax", [number], [most], keepdims=0),
            node("Cast", [most], [out], to=TensorProto.BOOL),
        ]
        return out
    numbers = g.value(lambda v: v.exact and v.array.dtype.name in ("float32", "int64", "int32"))
    if numbers is not None and g.chance(0.5):
        most, out = g.fresh("c"), g.fresh("c")
        level = g.weights(draft, numbers, g.rng.choice([numbers.array.max(), numbers.array.min(), 1]))
        draft.nodes += [
            node("ReduceMax", [numbers.name], [most], keepdims=0),
            node(str(g.pick(("Greater", "LessOrEqual"))), [most, level], [out]),
        ]
        return out
    if g.depth == 0 and g.chance(0.6):
        name = g.fresh("x")
        draft.feeds[name] = np.array(g.chance(0.5))
        return name
    return g.constant(draft, np.array(g.chance(0.5)))


def count(g: RandomGraph, draft: Draft, known: float) -> tuple[str, int | None]:
    """How many iterations: a constant, with the share `known`, or a number that a run has; and the number where it is
    constant."""
    number = int(g.rng.integers(0 if g.chance(0.2) else 1, MOST_ITERATIONS))
    if g.chance(known):
        return g.constant(draft, np.array(number, np.int64)), number
    given = g.value(lambda v: v.exact and v.array.dtype == np.int64 and v.array.size == 1 and 0 <= v.array.max() < 9)
    if given is not None and g.chance(0.5):
        out = g.fresh("n")
        draft.nodes.append(node("Squeeze", [given.name], [out]))
        return out, None
    if g.depth == 0 and g.chance(0.7):
        name = g.fresh("x")
        draft.feeds[name] = np.array(number, np.int64)
        return name, None
    return g.constant(draft, np.array(number, np.int64)), number


def branch(g: RandomGraph) -> Draft | None:
    """An If: one branch is of a few random nodes, the other makes the same shape of something else."""
    x = g.value(lambda v: v.floating)
    if x is None or g.depth >= DEEPEST:
        return None
    draft, held, other_held = Draft([]), dict[str, Array](), dict[str, Array]()
    test = condition(g, draft)
    found = _inner(g, x, held)
    if found is None:
        return None
    inner, last = found
    if g.chance(0.4):
        draft.held |= held
        held = {}
    same = g.value(lambda v: v.array.dtype == last.array.dtype and v.array.shape == last.array.shape)
    other = g.fresh("v")
    if same is not None and g.chance(0.6):
        read = same.name
    else:
        read = g.fresh("w")
        other_held[read] = g.normal(*last.array.shape).astype(last.array.dtype)
    simple = [node(str(g.pick(("Tanh", "Sigmoid", "Abs", "Identity"))), [read], [other])]
    graphs = [
        _graph("one", inner.nodes, [], [info(last.name, last.array)], held),
        _graph("other", simple, [], [info(other, last.array)], other_held),
    ]
    if g.chance(0.5):
        graphs.reverse()
    draft.nodes.append(node("If", [test], [g.fresh("v")], then_branch=graphs[0], else_branch=graphs[1]))
    return draft


def _carried_on(g: RandomGraph, carried: Value, last: Value, held: dict[str, Array]) -> tuple[list[NodeProto], str]:
    """Nodes that make of what was carried and of what was computed something of the first's shape, and tame."""
    names = {word: g.fresh("l") for word in ("cast", "mean", "half", "sum", "out", "w")}
    held[names["w"]] = np.array(0.5, carried.array.dtype)
    number = helper.np_dtype_to_tensor_dtype(carried.array.dtype)
    nodes = [
        node("Cast", [last.name], [names["cast"]], to=number),
        node("ReduceMean", [names["cast"]], [names["mean"]], keepdims=0),
        node("Mul", [carried.name, names["w"]], [names["half"]]),
        node("Add", [names["half"], names["mean"]], [names["sum"]]),
        node("Tanh", [names["sum"]], [names["out"]]),
    ]
    return nodes, names["out"]


def loop(g: RandomGraph) -> Draft | None:
    """A Loop that carries a value, and may count by itself, end by a condition, and hand out what it computes."""
    x = g.value(lambda v: v.floating)
    if x is None or g.depth >= DEEPEST:
        return None
    draft, held = Draft([]), dict[str, Array]()
    carried = Value(g.fresh("l"), x.array, False)
    found = _inner(g, carried, held)
    if found is None:
        return None
    inner, last = found
    nodes, out = _carried_on(g, carried, last, held)
    nodes = [*inner.nodes, *nodes]
    k, going, kept = (g.fresh("l") for _ in range(3))
    inputs = [
        helper.make_tensor_value_info(k, TensorProto.INT64, ()),
        helper.make_tensor_value_info(going, TensorProto.BOOL, ()),
        info(carried.name, x.array),
    ]
    outputs = [helper.make_tensor_value_info(kept, TensorProto.BOOL, ()), info(out, x.array)]
    starts, results = [x.name], [g.fresh("v")]
    counting = g.chance(0.4)  # a `while` with a counter of its own
    limit, known = count(g, draft, 0.3 if counting else 0.6)
    if counting:
        counter, more, one = (g.fresh("l") for _ in range(3))
        held[one] = np.array(1, np.int64)
        nodes += [node("Add", [counter, one], [more]), node("Less", [more, limit], [kept])]
        inputs.append(helper.make_tensor_value_info(counter, TensorProto.INT64, ()))
        outputs.append(helper.make_tensor_value_info(more, TensorProto.INT64, ()))
        start, test = g.constant(draft, np.array(0, np.int64)), g.fresh("c")
        draft.nodes.append(node("Less", [start, limit], [test]))
        starts.append(start)
        results.append(g.fresh("i"))
        bounded = g.chance(0.5)
        trips = str(g.pick(("", g.constant(draft, np.array(FOREVER)))))
        trips = g.constant(draft, np.array(4, np.int64)) if bounded else trips
    else:
        nodes.append(node("Identity", [going], [kept]))
        trips, test, bounded = limit, str(g.pick(("", g.constant(draft, np.array(True))))), False
    if g.chance(0.5) and (bounded or known):  # what it hands out needs a length that is known, or a limit of it
        outputs.append(info(last.name, last.array))
        results.append(g.fresh("v"))
        if counting:
            draft.sized.add(results[-1])
    if g.chance(0.4):
        draft.held |= held
        held = {}
    body = _graph("body", nodes, inputs, outputs, held)
    draft.nodes.append(node("Loop", [trips, test, *starts], results, body=body))
    return draft


def scan(g: RandomGraph) -> Draft | None:
    """A Scan over an axis of one value, which carries another."""
    x = g.value(lambda v: v.floating and v.array.ndim >= 2 and max(v.array.shape) > 1 and prod(v.array.shape) < 2000)
    start = g.value(lambda v: v.floating)
    if x is None or start is None or g.depth >= DEEPEST:
        return None
    draft, held = Draft([]), dict[str, Array]()
    axis = int(g.rng.integers(x.array.ndim))
    piece = Value(g.fresh("l"), x.array.take(0, axis), False)
    carried = Value(g.fresh("l"), start.array, False)
    g_inner = g.within([v for v in g.values if not v.sized and g.chance(0.2)])
    g_inner.values += [carried, piece]
    g_inner.grow(int(g.rng.integers(1, 4)), 30)
    old = _names(g, piece) | {carried.name}
    last = next((v for v in reversed(g_inner.values) if v.floating and not v.sized and v.name not in old), None)
    if last is None or g_inner.feeds:
        return None
    held |= g_inner.held
    nodes, out = _carried_on(g, carried, last, held)
    body = _graph(
        "body",
        [*g_inner.nodes, *nodes],
        [info(carried.name, carried.array), info(piece.name, piece.array)],
        [info(out, carried.array), info(last.name, last.array)],
        held,
    )
    attrs = {"scan_input_axes": [axis], "scan_input_directions": [int(g.chance(0.3))]}
    attrs["scan_output_directions"] = [int(g.chance(0.3))]
    results = [g.fresh("v"), g.fresh("v")]
    draft.nodes.append(node("Scan", [start.name, x.name], results, body=body, num_scan_inputs=1, **attrs))
    return draft


CONTROL_MAKERS: tuple[Maker, ...] = (branch, branch, loop, loop, scan)
