"""What only moves or selects numbers between DequantizeLinear and QuantizeLinear is done on bytes: the very bytes, by
the interpreter, as a package, and by ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from integer_contractions import VNNI, WIDE, drawn
from onnx import TensorProto, helper, numpy_helper, save
from quantized_models import Written

import modelc
from modelc.frontend.onnx import import_model
from modelc.ir.graph import Graph
from modelc.layout.program import partition
from modelc.ops import evaluate_graph
from modelc.passes import run_passes
from modelc.passes.machine import Machine, Multiplied

SCALE, ZERO = 0.0217, 11  # of what is moved; a zero point is so far from the least byte
REALS = ("QuantizeLinear", "DequantizeLinear")


class Bytes(Written):
    """A QDQ model whose outputs are bytes of `dtype`."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype, self.outputs, self.least = dtype, dict[str, tuple[int, ...]](), int(np.iinfo(dtype).min)

    def real(self, x: str, name: str, scale: float = SCALE, zero: int = ZERO) -> str:
        """`x` quantized and dequantized; a zero point by its distance from the least byte."""
        return self.through(x, name, scale, self.least + zero, self.dtype)

    def out(self, x: str, scale: float = SCALE, zero: int = ZERO) -> str:
        """`x` quantized to an output."""
        self.weights |= {f"{x}_os": np.float32(scale), f"{x}_oz": np.array(self.least + zero, self.dtype)}
        name = self.node("QuantizeLinear", [x, f"{x}_os", f"{x}_oz"], f"{x}_out")
        self.outputs[name] = ()
        return name

    def move(self, op: str, x: list[str], name: str, *steering: object, **attrs: object) -> str:
        """The output of an operator, with constants behind its inputs."""
        names = []
        for k, value in enumerate(steering):
            names.append("" if value is None else f"{name}_{k}")
            if value is not None:
                self.weights[names[-1]] = np.asarray(value)
        return self.node(op, [*x, *names], name, **attrs)

    def write(self, path: Path, shapes: dict[str, list[int]]) -> Path:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
        outputs = [helper.make_tensor_value_info(n, kind, None) for n in self.outputs]
        tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in self.weights.items()]
        graph = helper.make_graph(self.nodes, "moves", inputs, outputs, tensors)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def by_onnxruntime(path: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def rewritten(path: Path, units: tuple[Multiplied, ...] = VNNI) -> Graph:
    """The Graph after the passes, which computes the bytes that the model does, and that ONNX Runtime does."""
    feed, graph = drawn(path), run_passes(import_model(path), machine=Machine(units))
    wanted, found = by_onnxruntime(path, feed), evaluate_graph(graph, feed)
    for name, value in evaluate_graph(import_model(path), feed).items():
        assert np.ptp(value.astype(int)) > 0, name
        np.testing.assert_array_equal(value, wanted[name], name)
        np.testing.assert_array_equal(found[name], value, name)
    return graph


def as_package(path: Path) -> None:
    feed = drawn(path)
    result = modelc.compile(path, output=path.with_suffix(".modelc"), database=False)
    assert result.report is not None and result.report.passed
    with modelc.load(path.with_suffix(".modelc")) as model:
        found = model.run(feed)
    for name, value in by_onnxruntime(path, feed).items():
        np.testing.assert_array_equal(found[name], value, name)


def moves(path: Path, dtype: str) -> Path:
    m = Bytes(dtype)
    x = m.real("x", "xd")
    spread = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    m.out(m.move("MaxPool", [x], "pooled", **spread))
    m.out(m.move("ReduceMax", [x], "highest", axes=[1], keepdims=1))
    m.out(m.move("GlobalMaxPool", [x], "most"))
    m.out(m.move("Slice", [x], "slice", [1, 0], [7, 4], [2, 1], [2, 1]))
    m.out(m.move("Gather", [x], "gathered", np.array([[3, 0], [1, 1]]), axis=1))
    m.out(m.move("DepthToSpace", [x], "wide", blocksize=2))
    m.out(m.move("Transpose", [m.move("SpaceToDepth", [x], "deep", blocksize=2)], "turned", perm=[0, 2, 3, 1]))
    m.out(m.move("Resize", [x], "large", None, np.float32([1, 1, 2, 2]), mode="nearest"))
    m.out(m.move("Pad", [x], "border", [0, 0, 1, 2, 0, 0, 0, 1]))
    m.out(m.move("Pad", [x], "mirror", [0, 0, 2, 1, 0, 0, 1, 2], mode="reflect"))
    m.out(m.move("Relu", [m.move("Reshape", [x], "flat", [4, -1])], "positive"))
    m.out(m.move("Clip", [x], "clipped", np.float32(-0.031), np.float32(1.234)))
    m.nodes.append(helper.make_node("Split", [x, "parts"], ["first", "second"], "split", axis=1))
    m.weights["parts"] = np.array([1, 3])
    m.out("first")
    joined = m.move("Concat", [m.real("y", "yd"), "second"], "joined", axis=1)
    m.out(m.move("Max", [joined, m.move("Tile", [x], "tiled", [1, 1, 1, 1])], "greater"))
    return m.write(path, {"x": [1, 4, 8, 8], "y": [1, 1, 8, 8]})


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_bytes_are_moved(tmp_path: Path, dtype: str) -> None:
    """No number is dequantized; a border of a pool holds the lowest byte, and one of zeros the zero point."""
    graph = rewritten(moves(tmp_path / "m.onnx", dtype))
    counts = Counter(node.op for node in graph.nodes)
    assert counts["QuantizeLinear"] == 2 and not counts["DequantizeLinear"] and not counts["Relu"]
    for node in graph.nodes:
        if node.op not in REALS:
            assert graph.values[node.outputs[0]].dtype == dtype, node.op
    if dtype == "uint8":
        as_package(tmp_path / "m.onnx")


def kept(path: Path, dtype: str) -> Path:
    """What may not be done on bytes, or not on all."""
    m = Bytes(dtype)
    x, other = m.real("x", "xd"), m.real("y", "yd", 0.0331)
    m.out(m.move("MaxPool", [x], "rescaled", kernel_shape=[2, 2]), 0.0173)
    m.out(m.move("Transpose", [x], "elsewhere", perm=[0, 2, 3, 1]), SCALE, ZERO + 1)
    m.out(m.move("Pad", [x], "between", [0, 0, 1, 1, 0, 0, 1, 1], np.float32(0.5 * SCALE)), 0.4 * SCALE)
    m.out(m.move("Resize", [x], "smooth", None, np.float32([1, 1, 2, 2]), mode="linear"), 0.0187)
    m.out(m.move("Concat", [x, other], "unlike", axis=1))
    m.out(m.move("Max", [x, other], "greater"))
    m.out(m.move("AveragePool", [x], "mean", kernel_shape=[2, 2]), 0.0187)
    m.out(m.move("Clip", [x], "limited", np.float32(0.1), np.float32(1.1)), 0.0331)
    m.weights |= {"cs": np.float32([0.01, 0.02, 0.03, 0.04]), "cz": np.zeros(4, dtype)}
    each = m.node("DequantizeLinear", [m.node("QuantizeLinear", ["y", "cs", "cz"], "cq"), "cs", "cz"], "cd")
    m.out(m.move("Transpose", [each], "channels", perm=[0, 2, 3, 1]))
    return m.write(path, {"x": [1, 4, 8, 8], "y": [1, 4, 8, 8]})


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_other_scales_are_other_numbers(tmp_path: Path, dtype: str) -> None:
    graph = rewritten(kept(tmp_path / "m.onnx", dtype))
    dtypes = {node.op: graph.values[node.outputs[0]].dtype for node in graph.nodes}
    assert dtypes["MaxPool"] == dtype and dtypes["Concat"] == dtype  # moved as bytes, and requantized
    for op in ("Pad", "Resize", "Max", "AveragePool", "Transpose"):
        where = {graph.values[node.outputs[0]].dtype for node in graph.nodes if node.op == op}
        assert "float32" in where, op
    if dtype == "int8":
        as_package(tmp_path / "m.onnx")


def limits(path: Path, dtype: str) -> Path:
    m = Bytes(dtype)
    half = m.move("Mul", ["x"], "half", np.float32(0.5))
    m.out(m.move("Relu", [half], "all"), SCALE, 0)  # bytes begin at zero: it changes nothing
    m.out(m.move("Relu", [half], "some"))
    m.out(m.move("Clip", [half], "six", np.float32(0), np.float32(6)), 0.0078, 0)
    m.out(m.move("Clip", [half], "one", np.float32(0), np.float32(0.9)), 0.0078, 0)
    return m.write(path, {"x": [1, 4, 8, 8]})


def test_limits_at_which_bytes_saturate_go(tmp_path: Path) -> None:
    graph = rewritten(limits(tmp_path / "m.onnx", "int8"), ())
    counts = Counter(node.op for node in graph.nodes)
    assert counts["Relu"] == 1 and counts["Clip"] == 1
    as_package(tmp_path / "m.onnx")


def blocks(path: Path) -> Path:
    """What convolutions write is joined, pooled and added, quantized each time."""
    m = Bytes("uint8")
    x = m.real("x", "xd", 0.0301, 117)
    left, right = (m.node("Conv", [x, m.weight(n, (16, 8, 1, 1), 0, 0.004)], f"{n}_c") for n in ("a", "b"))
    both = m.real(m.move("Concat", [left, right], "both", axis=1), "both_d", 0.0497, 121)
    wide = m.node("Conv", [both, m.weight("c", (16, 32, 1, 1), 0, 0.003)], "wide")
    narrow = m.real(wide, "narrow", 0.0713, 119)
    more = m.real(m.node("Conv", [both, m.weight("d", (16, 32, 1, 1), 0, 0.003)], "more"), "more_d", 0.0627, 127)
    total = m.real(m.node("Add", [narrow, more], "sum"), "total", 0.0911, 123)
    halves = m.real(m.node("AveragePool", [total], "halves", kernel_shape=[2, 2], strides=[2, 2]), "half", 0.0731, 125)
    mean = m.real(m.node("GlobalAveragePool", [halves], "mean"), "mean_d", 0.0311, 128)
    m.out(m.node("Conv", [mean, m.weight("e", (8, 16, 1, 1), 0, 0.01)], "last"), 0.0241, 131)
    return m.write(path, {"x": [1, 8, 12, 12]})


@pytest.mark.parametrize("units", [VNNI, WIDE], ids=["bytes", "wide"])
def test_between_tasks_there_are_bytes(tmp_path: Path, units: tuple[Multiplied, ...]) -> None:
    """Of a residual that another convolution adds, and of what means are of, too; parts of a Concat are written as they
    are multiplied."""
    path = blocks(tmp_path / "m.onnx")
    graph = run_passes(import_model(path), machine=Machine(units))
    program = partition(graph)
    for bound in program.tasks:
        for name in bound.outputs:
            place = program.values[name]
            assert place.dtype != "float32" or np.prod(place.shape) < 256, name
    assert len(program.tasks) == 8  # five convolutions, two means, and what quantizes the input


def test_packages_have_bytes_between_kernels(tmp_path: Path) -> None:
    path = blocks(tmp_path / "m.onnx")
    result = modelc.compile(path, output=tmp_path / "p.modelc", database=False)
    assert result.report is not None and result.report.passed
    feed = drawn(path)
    with modelc.load(tmp_path / "p.modelc") as model:
        found = model.run(feed)["last_out"]
    wanted = by_onnxruntime(path, feed)["last_out"]
    assert len(np.unique(wanted)) > 4 and np.abs(found.astype(int) - wanted.astype(int)).max() <= 1
