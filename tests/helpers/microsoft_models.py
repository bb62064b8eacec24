"""Models of ONNX Runtime's own operators (domain com.microsoft), three ways: interpreted, as a compiled package, and by
ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, helper, numpy_helper

import modelc
from modelc.frontend.onnx import import_model
from modelc.ops import evaluate_graph

MS = "com.microsoft"
Arrays = Mapping[str, np.ndarray]


def ms(op: str, inputs: str, outputs: str, **attrs: object) -> NodeProto:
    """A node of ONNX Runtime's own; "." is an absent input."""
    named = ["" if x == "." else x for x in inputs.split()]
    return helper.make_node(op, named, outputs.split(), domain=MS, **attrs)


def write(path: Path, nodes: Sequence[NodeProto], feeds: Arrays, constants: Mapping[str, object], outputs: str) -> Path:
    """The model with inputs of the shapes of `feeds`, its outputs declared as what it computes."""
    kinds = {x: helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype) for x, v in feeds.items()}
    inputs = [helper.make_tensor_value_info(x, kinds[x], np.shape(v)) for x, v in feeds.items()]
    results = [onnx.ValueInfoProto(name=x) for x in outputs.split()]
    tensors = [numpy_helper.from_array(np.asarray(v), x) for x, v in constants.items()]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(helper.make_graph(nodes, "m", inputs, results, tensors), opset_imports=sets, ir_version=8)
    onnx.save(model, path)
    graph = import_model(path)
    del model.graph.output[:]
    for name in outputs.split():
        value = graph.values[name]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        model.graph.output.append(helper.make_tensor_value_info(name, kind, value.shape))
    onnx.save(model, path)
    return path


def by_onnxruntime(path: Path, feeds: Arrays) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes without fusions, which round elsewhere."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # which says what rows are quantized together
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def two_ways(path: Path, feeds: Arrays, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compares what is interpreted with ONNX Runtime: whole numbers have to be equal."""
    same("interpreted", evaluate_graph(import_model(path), dict(feeds)), by_onnxruntime(path, feeds), rtol, atol)


def three_ways(path: Path, feeds: Arrays, verify: bool = False) -> modelc.CompileResult:
    """The same with a package, which with `verify` has to pass its own verification too."""
    rtol, atol = 1e-4, 1e-5
    two_ways(path, feeds, rtol, atol)
    package = path.with_suffix(".modelc")
    result = modelc.compile(path, output=package, database=False, verify=verify)
    assert not verify or (result.report is not None and result.report.passed)
    with modelc.load(package) as model:
        found = model.run(dict(feeds))
    same("compiled", found, by_onnxruntime(path, feeds), rtol, atol)
    return result


def same(way: str, found: Arrays, wanted: Arrays, rtol: float, atol: float) -> None:
    assert wanted and wanted.keys() <= found.keys()
    for name, value in wanted.items():
        other = found[name]
        assert (other.dtype, other.shape) == (value.dtype, value.shape), f"{name}, {way}"
        if value.dtype.kind in "iub":
            np.testing.assert_array_equal(other, value, f"{name}, {way}")
        else:
            np.testing.assert_allclose(other, value, rtol, atol, err_msg=f"{name}, {way}")
        counts = value.dtype == np.int32  # of a mask, which may be all the same
        assert counts or value.size == 1 or len(np.unique(value)) > 1, f"{name} says nothing"
