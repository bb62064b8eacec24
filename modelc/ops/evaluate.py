"""Running definitions with NumPy: the meaning of a node on arrays, used for constant folding and as the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.control import run_control
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.interpret import run_blocks
from modelc.ops.opaque import MEANINGS
from modelc.ops.operator import Definition, Inputs, fail
from modelc.ops.table import operator_of

Array = NDArray[Any]


def run(definition: Definition, inputs: Iterable[Array | None], outputs: Iterable[Value | None]) -> tuple[Array, ...]:
    """The outputs of a definition on arrays; None stands for an absent input."""
    outputs = tuple(outputs)
    buffers = {f"x{k}": x for k, x in enumerate(inputs) if x is not None}
    for buffer in definition.locals:
        buffers[buffer.name] = np.zeros(buffer.shape, DTYPES[buffer.dtype])
    for k, value in enumerate(outputs):
        if value is not None:
            buffers[f"y{k}"] = np.zeros(value.shape, DTYPES[value.dtype])
    for buffer, table in definition.constants:
        buffers[buffer.name] = table
    run_blocks(definition.blocks, buffers, MEANINGS)
    return tuple(buffers.get(f"y{k}", np.zeros(0)) for k in range(len(outputs)))


def evaluate_node(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """What `node` computes on constants. Raises ModelError if an input is not constant or the operator is unknown."""
    if missing := [v.name for v in inputs if v is not None and v.data is None]:
        fail(node, f"expected constants to fold, found {missing[0]!r}")
    if node.bodies:
        return _controlled(node, inputs)
    operator = operator_of(node)
    types = operator.infer(node, inputs)
    outputs = tuple(
        Value(name, dtype, shape) if name else None for name, (dtype, shape) in zip(node.outputs, types, strict=False)
    )
    definition = operator.define(node, inputs, outputs)
    return run(definition, [None if v is None else v.data for v in inputs], outputs)


def _controlled(node: Node, inputs: Inputs) -> tuple[Array, ...]:
    """What control flow comes to: its bodies are evaluated as often as it says."""

    def body(graph: Graph, given: Sequence[Array]) -> list[Array]:
        outputs = evaluate_graph(graph, dict(zip(graph.inputs, given, strict=True)))
        return [outputs[name] for name in graph.outputs]

    arrays = [v.data for v in inputs if v is not None and v.data is not None]
    results = run_control(node.op, node.attrs, arrays, [partial(body, graph) for graph in node.bodies])
    empty = [np.zeros(shape, DTYPES[dtype]) for dtype, shape in operator_of(node).infer(node, inputs)[len(results) :]]
    return (*results, *empty)


def evaluate_graph(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the operator library says that `graph` computes of `inputs`, by output."""
    values = {name: replace(v, data=inputs.get(name, v.data)) for name, v in graph.values.items()}
    last = {x: k for k, node in enumerate(graph.nodes) for x in node.inputs if x}
    for k, node in enumerate(graph.nodes):
        results = evaluate_node(node, tuple(values[x] if x else None for x in node.inputs))
        values |= {n: replace(values[n], data=x) for n, x in zip(node.outputs, results, strict=False) if n}
        for name in {x for x in node.inputs if x and last[x] == k} - {*graph.outputs}:
            values[name] = replace(values[name], data=None)
    outputs = {name: values[name].data for name in graph.outputs}
    return {name: data for name, data in outputs.items() if data is not None}
