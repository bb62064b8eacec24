"""Models with weights and values in float16 through packages, beside ONNX Runtime and the interpreter: they compute in
float32, and numbers are converted as vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from disassembly import disassembled
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.frontend.onnx import import_model
from modelc.ops import evaluate_graph

H = TensorProto.FLOAT16


def write(path: Path, nodes, weights, given: tuple[int, ...], made: tuple[int, ...]) -> Path:
    x, y = helper.make_tensor_value_info("x", H, given), helper.make_tensor_value_info("y", H, made)
    init = [numpy_helper.from_array(a.astype(np.float16), name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "halves", [x], [y], init)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def convolutions(path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 3, 3, 3)) / 5, "v": rng.standard_normal((16, 16, 3, 3)) / 12}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], **pads),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], **pads),
        helper.make_node("Add", ["c", "b"], ["y"]),
    ]
    return write(path, nodes, weights, (1, 3, 16, 16), (1, 16, 16, 16))


def products(path: Path) -> Path:
    rng, n = np.random.default_rng(0), 256
    weights = {name: rng.standard_normal((n, n)) / n**0.5 for name in ("w", "v")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    return write(path, nodes, weights, (1, n), (1, n))


@pytest.mark.parametrize("model", [convolutions, products])
def test_packages_agree_with_onnxruntime_and_the_interpreter(tmp_path, model) -> None:
    path = model(tmp_path / "m.onnx")
    result = modelc.compile(path, output=tmp_path / "m.modelc", database=False)
    assert result.report.passed
    graph = import_model(path)
    x = np.random.default_rng(1).standard_normal(graph.value("x").shape).astype(np.float16)
    with modelc.load(result.path) as package:
        y = package.run({"x": x})["y"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    meant = evaluate_graph(graph, {"x": x})["y"]
    assert y.dtype == np.float16
    for theirs in (session.run(None, {"x": x})[0], meant):
        np.testing.assert_allclose(y.astype(np.float32), theirs.astype(np.float32), rtol=1e-2, atol=1e-2)


def test_numbers_are_converted_as_vectors(tmp_path) -> None:
    """By the first and the last kernel alone: those that multiply read float32."""
    result = modelc.compile(convolutions(tmp_path / "m.onnx"), "x86-64-v3", tmp_path / "m.modelc", database=False)
    code = [text for _, text in disassembled(next(result.path.glob("*.so")), "x86_64-linux-gnu")]
    converted = [text for text in code if text.startswith(("vcvtph2ps", "vcvtps2ph"))]
    assert converted and all("%ymm" in text for text in converted)
    assert any("are stored as float32" in note for note in result.notes)


def test_the_weights_of_one_row_stay_in_half_floats(tmp_path) -> None:
    result = modelc.compile(products(tmp_path / "m.onnx"), "x86-64-v3", tmp_path / "m.modelc", database=False)
    assert result.params_bytes == 2 * 2 * 256 * 256
