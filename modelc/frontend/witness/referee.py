"""The reference evaluator of onnx on a part of a model: a third reading where two differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray


def refereed(path: str | Path, output: str, given: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """What the nodes between `given` inputs and `output` of the model's own graph compute, by onnx; None where it
    cannot say."""
    from onnx.reference import ReferenceEvaluator  # it takes long to import

    model = onnx.load(path)
    producers = {name: node for node in model.graph.node for name in node.output if name}
    needed: list[onnx.NodeProto] = []
    pending, seen = [output], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name in given or name not in producers:
            continue
        node = producers[name]
        seen |= {*node.output}
        needed.append(node)
        pending += node.input
    wanted = {id(node) for node in needed}
    nodes = [node for node in model.graph.node if id(node) in wanted]
    used = {name for node in nodes for name in node.input}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    inputs = [onnx.ValueInfoProto(name=name) for name in sorted(used & given.keys())]
    graph = onnx.helper.make_graph(nodes, "part", inputs, [onnx.ValueInfoProto(name=output)], constants)
    part = onnx.ModelProto(ir_version=model.ir_version, graph=graph, functions=model.functions)
    part.opset_import.extend(model.opset_import)
    try:
        results = ReferenceEvaluator(part).run([output], {x.name: given[x.name] for x in inputs})
    except Exception:  # it lacks operators, and dtypes of those that it has: then there is no third reading
        return None
    return np.asarray(results[0] if isinstance(results, list) else results[output])
