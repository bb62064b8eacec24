"""The reference evaluator of onnx on a part of a model: a third reading where two differ.

It is not asked about what it computes otherwise than the standard says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelc.frontend.control.structure import reads
from modelc.frontend.witness.surgery import nodes_between

Array = NDArray[Any]
FLATTENING = {"Softmax", "LogSoftmax", "Hardmax"}  # before operator set 13: over all dimensions from `axis` on
STATED = 1 << 16  # bytes of a constant that nodes may be told by


def evaluated_by_onnx(path: str | Path, output: str, given: Mapping[str, Array]) -> Array | None:
    """What the nodes between `given` inputs and `output` of the model's own graph compute, by onnx; None where it
    cannot say, or is known to be wrong."""
    from onnx.reference import ReferenceEvaluator  # it takes long to import

    part = part_of(path, output, given)
    if _reads_wrongly(part):
        return None
    try:
        results = ReferenceEvaluator(part).run([output], {x.name: given[x.name] for x in part.graph.input})
    except Exception:  # it lacks operators, and dtypes of those that it has: then there is no third reading
        return None
    return np.asarray(results[0] if isinstance(results, list) else results[output])


def part_of(path: str | Path, output: str, given: Mapping[str, Array]) -> onnx.ModelProto:
    """The nodes between `given` inputs and `output` of the model's own graph, as a model."""
    model = onnx.load(path)
    nodes = nodes_between(model.graph, [output], given)
    used = {name for node in nodes for name in reads(node)}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(given[name].dtype) for name in sorted(used & given.keys())}
    inputs = [onnx.helper.make_tensor_value_info(name, kind, given[name].shape) for name, kind in kinds.items()]
    graph = onnx.helper.make_graph(nodes, "part", inputs, [onnx.ValueInfoProto(name=output)], constants)
    part = onnx.ModelProto(ir_version=model.ir_version, graph=graph, functions=model.functions)
    part.opset_import.extend(model.opset_import)
    return part


def _reads_wrongly(model: onnx.ModelProto) -> bool:
    """Whether onnx's evaluator is wrong, or may be, about one of the nodes of a model."""
    nodes = model.graph.node
    version = {entry.domain: entry.version for entry in model.opset_import}.get("", 1)
    stated = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.ByteSize() <= STATED}
    stated |= {
        node.output[0]: onnx.numpy_helper.to_array(attribute.t)
        for node in nodes
        for attribute in node.attribute
        if node.op_type == "Constant" and attribute.name == "value"
    }
    of_functions = [node for function in model.functions for node in function.node]
    return any(
        node.domain in ("", "ai.onnx") and _is_misread(node, version, [stated.get(x) for x in node.input])
        for node in (*_nested(nodes), *of_functions)
    )


def _nested(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nested(body.node)


def _is_misread(node: onnx.NodeProto, version: int, inputs: Sequence[Array | None]) -> bool:
    """Whether onnx's evaluator is wrong about a node of ONNX's own domain, at this operator set, or may be: `inputs`
    are those that are known, in the node's order, None for the others."""
    attrs = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in FLATTENING:
        return version < 13
    if node.op_type == "LpNormalization":
        return bool(attrs.get("p", 2) == 1)
    if node.op_type == "Unique":
        return not attrs.get("sorted", 1)
    return node.op_type == "LRN" or (node.op_type == "Slice" and _is_clamped_backwards(node, inputs))


def _is_clamped_backwards(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> bool:
    """Whether a Slice goes backwards from a start that is none of the dimension's, as far as that is known."""
    named = [k < len(node.input) and bool(node.input[k]) for k in range(5)]
    if not named[4]:  # without steps
        return False
    data, starts, _, axes, steps = (inputs[k] if named[k] else None for k in range(5))
    if steps is not None and (steps > 0).all():
        return False
    if data is None or starts is None or steps is None or (axes is None and named[3]):
        return True
    along = np.arange(len(starts)) if axes is None else axes
    sizes = np.asarray(data.shape)[along]
    return bool(((steps < 0) & ((starts >= sizes) | (starts < -sizes))).any())
