"""A Graph as an ONNX model again, so that ONNX Runtime can say what it computes."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node

OPSET = 22
ONNX_TYPES = {name: helper.np_dtype_to_tensor_dtype(kind) for name, kind in DTYPES.items()}


def to_onnx(graph: Graph, opset: int = OPSET) -> onnx.ModelProto:
    described = {
        name: helper.make_tensor_value_info(name, ONNX_TYPES[graph.values[name].dtype], graph.values[name].shape)
        for name in (*graph.inputs, *graph.outputs)
    }
    constants = [numpy_helper.from_array(v.data, name) for name, v in graph.values.items() if v.data is not None]
    made = helper.make_graph(
        [_node(n) for n in graph.nodes],
        graph.name,
        [described[n] for n in graph.inputs],
        [described[n] for n in graph.outputs],
        constants,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _node(node: Node) -> onnx.NodeProto:
    made = helper.make_node(node.op, list(node.inputs), list(node.outputs), name=node.name)
    for key, value in node.attrs.items():
        if key in ("to", "dtype", "output_dtype"):
            value = ONNX_TYPES[value]
        elif isinstance(value, np.ndarray):
            value = numpy_helper.from_array(value)
        made.attribute.append(helper.make_attribute(key, value))
    return made


def run_onnx(model: onnx.ModelProto | Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime computes, without optimisations of its own."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def random_feeds(graph: Graph, seed: int = 0, high: int = 100) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: _random(rng, graph.values[name].dtype, graph.values[name].shape, high) for name in graph.inputs}


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], high: int) -> np.ndarray:
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype == "bfloat16":
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    if DTYPES[dtype].kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, high, shape).astype(dtype)


def assert_same(expected: list[np.ndarray], found: list[np.ndarray], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Equal within float rounding; `atol` is relative to the largest element."""
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        finite = np.abs(a.astype(np.float64))[np.isfinite(a.astype(np.float64))]
        scale = float(np.max(finite, initial=0.0)) or 1.0
        np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=rtol, atol=atol * scale)
