"""Reductions, quantisation, running sums and the like where they overflow or meet NaN, as one compiled package against
ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from onnxruntime_session import session_of
from three_ways import host_target

import modelc

INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)
INPUTS = {
    "i": np.array(
        [[INT32.max, INT32.max, 3], [INT32.min, INT32.min, -1], [-3, -4, -4], [65536, 65536, 3], [0, 0, 0]], np.int32
    ),
    "l": np.array([[INT64.max, 1, 5], [INT64.min, -1, 2], [7, 8, -9]], np.int64),
    "x": np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0.5, 1.5, 2.5, -0.5, -1.5, 300, -300] * 3, np.float32),
    "zeros": np.zeros(20, np.float32),
    "rows": np.array([[1, 5, 2], [3, 3, 3], [-np.inf] * 3, [np.inf, np.inf, 0]], np.float32),
}
CONSTANTS = {
    "one": np.array(1, np.float32),
    "axis": np.array([1], np.int64),
    "last": np.array(1, np.int64),
    "far": np.array(2**40, np.int64),
    "minus_far": np.array(-(2**40), np.int64),
    **{f"zero_{t}": np.array(3, t) for t in ("int8", "uint8", "int16", "uint16")},
}
REDUCTIONS = ("Sum", "Mean", "SumSquare", "L1", "Max", "Min", "Prod")


def nodes() -> list[onnx.NodeProto]:
    made = [helper.make_node(f"Reduce{n}", ["i", "axis"], [f"i_{n}"], keepdims=0) for n in REDUCTIONS]
    made += [helper.make_node("CumSum", [x, "last"], [f"{x}_running"]) for x in ("i", "l")]
    made += [helper.make_node("QuantizeLinear", ["x", "one", z], [f"x_{z}"]) for z in CONSTANTS if "zero" in z]
    made += [helper.make_node("DynamicQuantizeLinear", ["zeros"], ["quantised", "scale", "zero"])]
    made += [helper.make_node("Trilu", ["l", k], [f"l_{k}"], upper=u) for k, u in (("far", 1), ("minus_far", 0))]
    made += [helper.make_node("Hardmax", ["rows"], ["hard"], axis=1)]
    return made


def test_integers_that_overflow_and_floats_that_do_not_fit(tmp_path: Path) -> None:
    made = nodes()
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in INPUTS.items()
    ]
    known = [onnx.numpy_helper.from_array(v, n) for n, v in CONSTANTS.items()]
    outputs = [onnx.ValueInfoProto(name=o) for node in made for o in node.output]
    graph = helper.make_graph(made, "edges", inputs, outputs, known)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.save(model, tmp_path / "m.onnx")
    modelc.compile(tmp_path / "m.onnx", host_target(), tmp_path / "m.modelc", verify=False)
    with modelc.load(tmp_path / "m.modelc", threads=1) as package:
        found = package.run(INPUTS)
    session = session_of(model)
    wanted = dict(zip([o.name for o in session.get_outputs()], session.run(None, INPUTS), strict=True))
    assert wanted.keys() == found.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
