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
from onnx import helper
from random_control import CONTROL_MAKERS
from random_draft import Array, RandomGraph, Value, info, reads, tensors, whole
from random_nodes import PLAIN_MAKERS
from random_numbers import NUMBER_MAKERS
from random_shapes import SHAPE_MAKERS
from random_sized import SIZED_MAKERS

MAKERS = (*PLAIN_MAKERS, *SHAPE_MAKERS, *NUMBER_MAKERS, *CONTROL_MAKERS, *SIZED_MAKERS)
ATTEMPTS = 60  # to find the next node
DTYPES = (
    *("float32", "float32", "float32", "float32", "float32", "float32", "float16", "float64"),
    *("int64", "int32", "uint8", "bool", "int8", "int16", "uint32"),
)


def draw(seed: int, most_nodes: int = 12) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
    """(the model, its inputs, every value that it computes for them)"""
    graph = RandomGraph(np.random.default_rng(seed), MAKERS)
    for _ in range(int(graph.rng.integers(1, 4))):
        _add_input(graph)
    wanted = int(graph.rng.integers(2, most_nodes + 1))
    graph.grow(wanted, ATTEMPTS * wanted)
    return _model(graph), graph.feeds, {v.name: v.array for v in graph.values}


def _add_input(graph: RandomGraph) -> None:
    rank = int(graph.pick((1, 2, 3, 3, 4, 4, 4)))
    shape = tuple(int(n) for n in graph.rng.choice([1, 2, 3, 4, 5, 7, 8, 12, 16, 17], rank))
    dtype, name = str(graph.pick(DTYPES)), graph.fresh("x")
    numbers = graph.rng.standard_normal(shape) if dtype.startswith("float") else graph.rng.integers(0, 5, shape)
    graph.feeds[name] = numbers.astype(dtype)
    graph.values.append(Value(name, graph.feeds[name], True))


def _model(graph: RandomGraph) -> onnx.ModelProto:
    """Its outputs are what no node reads, and one value from within, if there is one."""
    arrays = {v.name: v.array for v in graph.values}
    read = {name for node in graph.nodes for name in reads(node)}
    made = [name for node in graph.nodes for name in node.output if name in arrays]
    outputs = [name for name in made if name not in read]
    inner = [name for name in made if name in read]
    if inner and graph.chance(0.3):
        outputs.append(str(graph.pick(inner)))
    proto = helper.make_graph(
        graph.nodes,
        "random",
        [info(name, array) for name, array in graph.feeds.items()],
        [info(name, arrays[name]) for name in outputs],
        tensors(graph.held),
    )
    return whole(proto)


def described(model: onnx.ModelProto, values: Mapping[str, Array]) -> str:
    """The nodes with the shapes of what they read, on one line."""
    shapes = {n: f"{x.dtype}{list(x.shape)}" for n, x in values.items()}
    words = (f"{n.op_type}({', '.join(shapes.get(i, i) for i in n.input)})" for n in model.graph.node)
    return " -> ".join(words)
