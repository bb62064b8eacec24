"""Valid random models, from a seed: operators, shapes, dtypes, broadcasting, fan-out, branches and loops.

A graph grows by one node at a time. What a node would compute is asked of ONNX Runtime, for the numbers that the model
is to be fed with: a node that it refuses is drawn again, and one whose results a rounding error upstream could turn
into others (near zero before a division, near a tie before a rounding) is left out. So whoever computes the whole in
another order has to agree.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from random_draft import MOST_ELEMENTS, Array, Draft, RandomGraph, Value, info
from random_nodes import MAKERS

OPSET = 21
LARGEST = 1e3  # of any number: what cancels loses no more digits than float32 has
ATTEMPTS = 60  # to find the next node
DTYPES = ("float32", "float32", "float32", "float32", "float16", "float64", "int64", "int32", "uint8", "bool")


def draw(seed: int, most_nodes: int = 12) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
    """(the model, its inputs, every value that it computes for them)"""
    graph = RandomGraph(np.random.default_rng(seed))
    for _ in range(int(graph.rng.integers(1, 4))):
        _add_input(graph)
    wanted, attempts = int(graph.rng.integers(2, most_nodes + 1)), 0
    while len(graph.nodes) < wanted and attempts < ATTEMPTS * wanted:
        attempts += 1
        draft = MAKERS[int(graph.rng.integers(len(MAKERS)))](graph)
        if draft is not None:
            _try(graph, draft)
    return _model(graph), graph.feeds, {v.name: v.array for v in graph.values}


def _add_input(graph: RandomGraph) -> None:
    rank = int(graph.pick((1, 2, 3, 3, 4, 4, 4)))
    shape = tuple(int(n) for n in graph.rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16, 17], rank))
    dtype, name = str(graph.pick(DTYPES)), graph.fresh("x")
    numbers = graph.rng.standard_normal(shape) if dtype.startswith("float") else graph.rng.integers(0, 5, shape)
    graph.feeds[name] = numbers.astype(dtype)
    graph.values.append(Value(name, graph.feeds[name], True))


def _try(graph: RandomGraph, draft: Draft) -> None:
    """Appends the draft if ONNX Runtime computes it and its results are harmless."""
    read = {name for node in draft.nodes for name in _reads(node)}
    taken = [v for v in graph.values if v.name in read]
    made = [name for node in draft.nodes for name in node.output if name]
    proto = helper.make_graph(
        draft.nodes,
        "draft",
        [info(v.name, v.array) for v in taken],
        [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(array, name) for name, array in draft.held.items()],
    )
    try:
        found = _session(proto).run(made, {v.name: v.array for v in taken})
    except Exception:  # ONNX Runtime's refusals are of many types; another node is drawn
        return
    for array in found:
        numbers = np.abs(array.astype(np.float64)) if array.dtype.kind in "fiu" else np.zeros(1)
        if not array.size or array.size > MOST_ELEMENTS or not np.isfinite(numbers).all() or numbers.max() > LARGEST:
            return
    del proto.output[:]
    proto.output.extend(info(name, array) for name, array in zip(made, found, strict=True))
    try:  # ONNX and ONNX Runtime do not mean the same where a window of ceil_mode begins behind the data
        onnx.shape_inference.infer_shapes(_whole(proto), strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return
    exact = draft.keeps_exact and all(v.exact for v in taken)
    graph.nodes += draft.nodes
    graph.held |= draft.held
    graph.values += [Value(n, array, exact, n in draft.sized) for n, array in zip(made, found, strict=True)]


def _session(graph: onnx.GraphProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(_whole(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])


def _model(graph: RandomGraph) -> onnx.ModelProto:
    """Its outputs are what no node reads, and one value from within, if there is one."""
    arrays = {v.name: v.array for v in graph.values}
    read = {name for node in graph.nodes for name in _reads(node)}
    made = [name for node in graph.nodes for name in node.output if name]
    outputs = [name for name in made if name not in read]
    inner = [name for name in made if name in read]
    if inner and graph.chance(0.3):
        outputs.append(str(graph.pick(inner)))
    proto = helper.make_graph(
        graph.nodes,
        "random",
        [info(name, array) for name, array in graph.feeds.items()],
        [info(name, arrays[name]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in graph.held.items()],
    )
    return _whole(proto)


def _whole(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _reads(node: onnx.NodeProto) -> set[str]:
    inner = (n for a in node.attribute if a.HasField("g") for n in a.g.node)
    return {name for name in node.input if name}.union(*(_reads(n) for n in inner))


def described(model: onnx.ModelProto, values: Mapping[str, Array]) -> str:
    """The nodes with the shapes of what they read, on one line."""
    shapes = {n: f"{x.dtype}{list(x.shape)}" for n, x in values.items()}
    words = (f"{n.op_type}({', '.join(shapes.get(i, i) for i in n.input)})" for n in model.graph.node)
    return " -> ".join(words)
