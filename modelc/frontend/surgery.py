"""For verification: a model with inner values exposed, or all in float64; what its inputs are used for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from modelc.frontend.load import ELEMENT_TYPES

LARGEST_PROTOBUF = 1_500_000_000


def expose(path: str | Path, names: Iterable[str], output: Path) -> tuple[str, ...]:
    """Writes the model with every one of `names` that its graph computes as an output, and says which these are."""
    model = onnx.load(path)
    computed = {x for node in model.graph.node for x in node.output}
    there = {value.name for value in model.graph.output}
    new = [name for name in dict.fromkeys(names) if name in computed and name not in there]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in new)
    large = model.ByteSize() > LARGEST_PROTOBUF
    onnx.save_model(model, output, save_as_external_data=large)
    return (*there & set(names), *new)


class BatchNormalization(OpRun):
    """For inference; before operator set 14 the reference implementation computes as in training."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_: Any) -> Any:
        shape = (-1, *(1,) * (x.ndim - 2))
        factor = scale / np.sqrt(var + epsilon)
        return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)


def evaluate_float64(path: str | Path, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The model's outputs with every float32 made float64, by ONNX's reference implementation: slow, and exact enough
    to be the truth for float32."""
    model = onnx.load(path)
    _widen(model.graph)
    for function in model.functions:
        for node in function.node:
            _widen_node(node)
    feeds = {name: array.astype(np.float64) if array.dtype == np.float32 else array for name, array in inputs.items()}
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model, new_ops=[BatchNormalization]).run(None, feeds)
    return {value.name: np.asarray(array) for value, array in zip(model.graph.output, results, strict=True)}


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: onnx.NodeProto) -> None:
    if node.op_type == "Constant":  # value_float and value_floats have no float64 form but a tensor
        for attribute in list(node.attribute):
            if attribute.name in ("value_float", "value_floats"):
                value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                node.attribute.remove(attribute)
                tensor = numpy_helper.from_array(np.asarray(value, np.float64))
                node.attribute.append(onnx.helper.make_attribute("value", tensor))
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.DOUBLE
        _widen_tensor(attribute.t)
        if attribute.HasField("g"):
            _widen(attribute.g)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def summary(model: onnx.ModelProto) -> dict[str, Any]:
    """Inputs and outputs (free dimensions by name), operator counts, how many numbers of which dtype it holds, and
    versions, as JSON-like data."""
    graph, counts, numbers = model.graph, Counter[str](), Counter[str]()
    constants = {t.name for t in graph.initializer}
    for node in graph.node:
        counts[f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type] += 1
        for tensor in (a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR):
            numbers[ELEMENT_TYPES.get(tensor.data_type, "unknown")] += prod(tensor.dims)
    for tensor in (*graph.initializer, *(s.values for s in graph.sparse_initializer)):
        numbers[ELEMENT_TYPES.get(tensor.data_type, "unknown")] += prod(tensor.dims)
    return {
        "name": graph.name,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opsets": {s.domain or "ai.onnx": s.version for s in model.opset_import},
        "inputs": [_described(value) for value in graph.input if value.name not in constants],
        "outputs": [_described(value) for value in graph.output],
        "nodes": len(graph.node),
        "operators": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "parameters": sum(prod(t.dims) for t in graph.initializer),
        "dtypes": dict(sorted(numbers.items(), key=lambda item: (-item[1], item[0]))),
    }


def _described(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return {"name": value.name, "dtype": ELEMENT_TYPES.get(kind.elem_type, "unknown"), "shape": dims}
