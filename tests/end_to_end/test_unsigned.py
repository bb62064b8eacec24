"""ONNX Runtime as a reference for products of bytes: exact on every CPU, whatever its instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import small_model as small
from onnx import TensorProto, helper, numpy_helper
from quantized_models import TARGETS, run_here

import modelc
from modelc.frontend.witness.unsigned import PRODUCTS, multiplies_bytes, with_unsigned_weights

RNG = np.random.default_rng(0)
K, N = 96, 24
X = RNG.integers(0, 256, (8, K)).astype(np.uint8)
WEIGHTS = RNG.integers(-127, 128, (K, N)).astype(np.int8)
CONSTANTS = {
    "w": WEIGHTS,
    "k": RNG.integers(-127, 128, (8, 16, 3, 3)).astype(np.int8),
    "xs": np.float32(0.02),
    "xz": np.uint8(128),
    "ws": np.float32(0.03),
    "wz": np.int8(0),
    "w1": np.int8(3),
    "ys": np.float32(6.0),
    "cs": (RNG.random(8) / 50 + 0.01).astype(np.float32),
    "cz": np.zeros(8, np.int8),
    "wq": RNG.integers(-127, 128, (K, 3 * K)).astype(np.int8),
    "bq": np.zeros(3 * K, np.float32),
}
NODES = {
    "QLinearMatMul": "x xs xz w ws wz ys xz",
    "QLinearConv": "c xs xz k cs cz ys xz",
    "ConvInteger": "c k xz",
    "MatMulInteger": "x w xz w1",
    "QGemm": "x xs xz w ws wz  ys xz",
    "MatMulIntegerToFloat": "x w xs ws xz wz",
    "DynamicQuantizeMatMul": "f w ws",
    "QAttention": "a wq bq xs ws  xz wz",
}
ATTRIBUTES = {"QAttention": {"num_heads": 4}}
KINDS = {"ConvInteger": TensorProto.INT32, "MatMulInteger": TensorProto.INT32}
KINDS |= dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention"), TensorProto.FLOAT)
MICROSOFT = ("QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention")


def model(folder: Path, name: str) -> Path:
    read = NODES[name].split(" ")
    node = helper.make_node(name, read, ["y"], domain="com.microsoft" * (name in MICROSOFT), **ATTRIBUTES.get(name, {}))
    given = {
        "x": ([8, K], TensorProto.UINT8),
        "c": ([1, 16, 9, 9], TensorProto.UINT8),
        "f": ([8, K], TensorProto.FLOAT),
        "a": ([1, 8, K], TensorProto.UINT8),
    }
    inputs = [helper.make_tensor_value_info(x, kind, shape) for x, (shape, kind) in given.items() if x in read]
    shape = {"QLinearConv": [1, 8, 7, 7], "ConvInteger": [1, 8, 7, 7], "QAttention": [1, 8, K]}.get(name, [8, N])
    output = helper.make_tensor_value_info("y", KINDS.get(name, TensorProto.UINT8), shape)
    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in CONSTANTS.items() if n in read]
    graph = helper.make_graph([node], "g", inputs, [output], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NODES)
@pytest.mark.sweep(2)
def test_weights_of_all_signed_bytes_verify(tmp_path: Path, name: str, target: str) -> None:
    """Two products of 255 and 127 are more than 16 bits hold."""
    path = model(tmp_path, name)
    assert multiplies_bytes(path) and name in PRODUCTS
    report = modelc.compile(path, run_here(target), tmp_path / "m.modelc", database=False).report
    assert report is not None and report.passed


@pytest.mark.parametrize(("name", "zero"), [("QLinearMatMul", 0), ("MatMulInteger", 3)])
def test_what_is_compared_with_is_exact(tmp_path: Path, name: str, zero: int) -> None:
    path = with_unsigned_weights(model(tmp_path, name), tmp_path / "unsigned.onnx")
    assert path.name == "unsigned.onnx"
    (found,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    sums = (X.astype(np.int64) - 128) @ (WEIGHTS.astype(np.int64) - zero)
    scale = CONSTANTS["xs"] * CONSTANTS["ws"] / CONSTANTS["ys"]
    assert np.array_equal(found, sums if zero else np.clip(np.rint(sums * scale) + 128, 0, 255))
    assert with_unsigned_weights(path, tmp_path / "again.onnx") == path, "nothing is left to state"


def test_other_models_are_as_they_are(tmp_path: Path) -> None:
    signed = model(tmp_path, "MatMulInteger")
    loaded = onnx.load(signed)
    loaded.graph.input[0].type.tensor_type.elem_type = TensorProto.INT8
    loaded.graph.initializer.append(numpy_helper.from_array(np.asarray(np.int8(1)), "signed zero"))
    loaded.graph.node[0].input[2] = "signed zero"
    onnx.save(loaded, signed)
    for path in (small.model(), signed):
        assert with_unsigned_weights(path, tmp_path / "unsigned.onnx") == Path(path)
    assert not multiplies_bytes(small.model()) and not (tmp_path / "unsigned.onnx").exists()
