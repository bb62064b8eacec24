"""Quantized contractions as contractions of whole numbers: the same numbers, by instructions for bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from integer_contractions import SDOT, VNNI, WIDE, drawn, integers, same_numbers
from onnx import TensorProto, helper, numpy_helper, save
from quantized_models import TARGETS, Written, changed, conv_net, run_here
from tiny_package import skip_without_tools

import modelc
from modelc.frontend.onnx import import_model
from modelc.ops import evaluate_graph
from modelc.package import read_package, run_emulated
from modelc.passes.machine import Multiplied, multiplied
from modelc.target import load_target

FLOAT = {"Conv", "MatMul", "Gemm", "QLinearConv", "QLinearMatMul"}


# --- the rewrite --------------------------------------------------------------------------------------------------


def gemm(path: Path, dtype: str) -> Path:
    """Gemm with its weights as they are and transposed, by channel and as a whole, with biases of both kinds."""
    w = Written(1)
    a = w.through("x", "xd", 0.0203, 7 if dtype == "int8" else 100, dtype)
    first = w.weight("w1", (61, 64), 0, 0.002)
    g = w.node("Gemm", [a, first, w.bias("b1", "xd", "w1", 61)], "g", transB=1)
    b = w.through(w.node("Relu", [g], "r"), "rd", 0.0107, -128 if dtype == "int8" else 0, dtype)
    w.weights["b2"] = np.linspace(-1, 1, 32).astype(np.float32)
    w.through(w.node("Gemm", [b, w.weight("w2", (61, 32), None, 0.0101), "b2"], "e", alpha=0.5), "y", 0.0211, 3, dtype)
    return w.save(path, {"x": [20, 64]}, {"y": [20, 32]})


@pytest.mark.parametrize("units", [VNNI, SDOT, WIDE], ids=["unsigned", "signed", "wide"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("model", [conv_net, gemm])
def test_the_numbers_are_the_same(tmp_path: Path, model: Callable, dtype: str, units: tuple[Multiplied, ...]) -> None:
    path = model(tmp_path / "m.onnx", dtype)
    graph = integers(path, units)
    same_numbers(path, graph)
    counts = Counter(node.op for node in graph.nodes)
    assert not FLOAT & counts.keys() and counts["ConvInteger"] + counts["MatMulInteger"] >= 2 and not graph.notes
    for node in graph.nodes:
        if node.op in ("ConvInteger", "MatMulInteger"):
            kinds = [graph.values[name].dtype for name in node.inputs]
            assert kinds == [units[-1].activations, "int8"] and graph.values[node.inputs[1]].data is not None


def written(path: Path, node: object, x: tuple[str, list[int]], y: tuple[str, list[int]], **weights: object) -> Path:
    kinds = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
    ends = [helper.make_tensor_value_info(n, kinds[k], s) for n, (k, s) in (("x", x), ("y", y))]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()]
    graph = helper.make_graph([node], "one", ends[:1], ends[1:], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


RNG = np.random.default_rng(5)
SMALL = RNG.integers(-100, 101, (12, 6, 3, 3)).astype(np.int8)
SCALES = dict(sx=np.float32(0.02), sw=RNG.uniform(0.01, 0.02, 12).astype(np.float32), sy=np.float32(0.3))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_operators_of_whole_numbers_lose_their_zero_points(tmp_path: Path, dtype: str) -> None:
    """Borders hold the zero point; weights with zero points are centred; six channels become eight."""
    zx, zy = np.array(9, dtype), np.array(17, dtype)
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    rest = dict(zx=zx, zy=zy, **SCALES, b=RNG.integers(-999, 999, 12).astype(np.int32))
    conv = helper.make_node("QLinearConv", names, ["y"], pads=[1, 0, 1, 2], strides=[2, 1])
    shapes = (dtype, [1, 6, 7, 8]), (dtype, [1, 12, 4, 8])
    paths = [written(tmp_path / "a.onnx", conv, *shapes, w=SMALL, zw=np.zeros(12, np.int8), **rest)]
    product = helper.make_node("QLinearMatMul", names[:8], ["y"])
    matrix = dict(w=SMALL[:, :, 0, 0].T.copy(), zw=np.zeros(12, np.int8))
    paths.append(written(tmp_path / "b.onnx", product, (dtype, [5, 6]), (dtype, [5, 12]), **matrix, **rest))
    plain = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], pads=[1, 1, 1, 1])
    moved = dict(w=(SMALL.astype(np.int16) + 128).astype(np.uint8), zw=np.array(128, np.uint8), zx=zx)
    paths.append(written(tmp_path / "c.onnx", plain, shapes[0], ("int32", [1, 12, 7, 8]), **moved))
    for path in paths:
        graph = integers(path)
        same_numbers(path, graph)
        (found,) = [n for n in graph.nodes if n.op in ("ConvInteger", "MatMulInteger")]
        assert len(found.inputs) == 2 and 8 in graph.values[found.inputs[1]].shape


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_channels_by_themselves_are_summed_in_float32(tmp_path: Path, dtype: str) -> None:
    """A QLinearConv of a channel a time has no instruction for bytes. Its sums are whole, and float32 has them all."""
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    weights = RNG.integers(-128, 128, (12, 1, 3, 3)).astype(np.int8)
    numbers = dict(zx=np.array(9, dtype), zy=np.array(17, dtype), w=weights, zw=np.zeros(12, np.int8))
    bias = RNG.integers(-9999, 9999, 12).astype(np.int32)
    conv = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1], group=12)
    shapes = (dtype, [1, 12, 14, 13]), (dtype, [1, 12, 14, 13])
    path = written(tmp_path / "m.onnx", conv, *shapes, **numbers, **SCALES, b=bias)
    graph, feed = integers(path), drawn(path)
    (note,) = graph.notes
    assert "run in float32" in note and "1 channel is summed" in note
    assert [n.op for n in graph.nodes if "Conv" in n.op] == ["Conv"]
    wanted = evaluate_graph(import_model(path), feed)["y"]
    assert np.array_equal(evaluate_graph(graph, feed)["y"], wanted) and len(np.unique(wanted)) > 50
    if dtype == "int8":
        return
    modelc.compile(path, output=tmp_path / "p.modelc", database=False)
    with modelc.load(tmp_path / "p.modelc") as model:
        assert np.array_equal(model.run(feed)["y"], wanted)


def test_zero_points_that_are_known_at_run_time_are_taken_from_the_sum(tmp_path: Path) -> None:
    w = Written(2)
    names = ["q", "s", "z"]
    w.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], names, "dynamic"))
    w.weights |= {"w": RNG.integers(-127, 128, (32, 24)).astype(np.int8), "zw": np.zeros(24, np.int8)}
    w.node("MatMulInteger", ["q", "w", "z", "zw"], "sum")
    w.node("Mul", [w.node("Cast", ["sum"], "f", to=1), "s"], "y")
    path = w.save(tmp_path / "m.onnx", {"x": [3, 32]}, {"y": [3, 24]})
    graph = integers(path)
    same_numbers(path, graph)
    (found,) = [n for n in graph.nodes if n.op == "MatMulInteger"]
    assert len(found.inputs) == 2


def test_channels_are_added_by_what_writes_them(tmp_path: Path) -> None:
    w = Written(3)
    x = w.through("x", "xd", 0.03, 110)
    c = w.through(w.node("Conv", [x, w.weight("w1", (13, 8, 1, 1), 0, 0.004)], "c"), "cd", 0.05, 120)
    w.through(w.node("Conv", [c, w.weight("w2", (8, 13, 3, 3), 0, 0.004)], "e", pads=[1, 1, 1, 1]), "y", 0.1, 128)
    path = w.save(tmp_path / "m.onnx", {"x": [1, 8, 5, 5]}, {"y": [1, 8, 5, 5]})
    graph = integers(path)
    same_numbers(path, graph)
    assert graph.values["cd_q"].shape == (1, 16, 5, 5)
    pads = [n for n in graph.nodes if n.op == "Pad"]
    assert len(pads) == 1 and graph.values[pads[0].outputs[0]].shape == (1, 16, 7, 7)  # of zero points, and no other


def test_scales_and_factors_are_one_multiplication(tmp_path: Path) -> None:
    """What is computed is not divided; what is given is, as ONNX says it."""
    w = Written(7)
    w.weights["by"] = np.float32(0.3712)
    m = w.through(w.node("Mul", [w.through("x", "xd", 0.0301, 117), "by"], "m"), "md", 0.0173, 140)
    w.through(w.node("Mul", [w.node("Softmax", [m], "t"), "by"], "u"), "y", 0.00293, 131)
    path = w.save(tmp_path / "m.onnx", {"x": [40, 33]}, {"y": [40, 33]})
    graph = integers(path)
    same_numbers(path, graph)
    counts = Counter(n.op for n in graph.nodes)
    scales = [graph.values[n.inputs[1]].data.item() for n in graph.nodes if n.op == "QuantizeLinear"]
    assert scales == [np.float32(0.0301)] and counts["DequantizeLinear"] == 1
    assert counts["Round"] == counts["Clip"] == 2 and counts["Softmax"] == 1 and counts["Div"] == 0
    assert (
        counts["Mul"] == 3
    )  # by what is read in steps, for each that is rounded, and by what is written before the last


def asymmetric(path: Path, dtype: str, bits: int = 8) -> Path:
    """Weights with any zero points, by channel and one for all: of convolutions with a border and without, and of a
    matrix product."""
    zeros = np.array([-100, 0, 90, 127, -128, 5, 0, 64]) >> (8 - bits)
    path = changed(conv_net(path, dtype), path, "w1_z", lambda z: z + zeros)
    path = changed(path, path, "w2_z", lambda z: z - (77 >> (8 - bits)))
    path = changed(path, path, "w3_z", lambda z: z + (np.arange(-120, 120, 15) >> (8 - bits)))
    for name in ("w1_q", "w2_q", "w3_q"):
        path = changed(path, path, name, lambda w: w >> (8 - bits))
    return path


@pytest.mark.parametrize("units", [VNNI, SDOT, WIDE], ids=["unsigned", "signed", "wide"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_weights_with_any_zero_point_are_bytes_and_a_shift(
    tmp_path: Path, dtype: str, units: tuple[Multiplied, ...]
) -> None:
    """A channel that fits is not shifted; sums of what is multiplied are taken once for all channels."""
    path = asymmetric(tmp_path / "m.onnx", dtype)
    graph = integers(path, units)
    same_numbers(path, graph)
    assert not graph.notes and sum(node.op == "ReduceSum" for node in graph.nodes) == 3
    assert {"ConvInteger", "MatMulInteger"} <= {node.op for node in graph.nodes}
    for node in graph.nodes:
        if node.op in ("ConvInteger", "MatMulInteger"):
            assert graph.values[node.inputs[1]].dtype == "int8"


def test_what_float32_computes_as_quickly_stays_float32(tmp_path: Path) -> None:
    graph = integers(conv_net(tmp_path / "m.onnx"), multiplied(load_target("raspberry-pi-4")))
    (note,) = graph.notes
    assert (
        "run in float32 ('c', " in note and "its price is no lower: the target multiplies quantized numbers 1 " in note
    )
    same_numbers(tmp_path / "m.onnx", graph)


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "scales by input channel": (lambda m, p: changed(m, p, "w1", axis=1), "not by output channel"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_stays_in_float_is_said(tmp_path: Path, what: str) -> None:
    change, reason = REFUSED[what]
    graph = integers(change(conv_net(tmp_path / "right.onnx"), tmp_path / "m.onnx"))
    (note,) = graph.notes
    assert reason in note and "1 quantized contraction(s) run in float32 ('c')" in note
    same_numbers(tmp_path / "m.onnx", graph)


# --- packages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.sweep(2)
def test_kernels_give_the_very_numbers(tmp_path: Path, dtype: str, target: str) -> None:
    path = conv_net(tmp_path / "m.onnx", dtype)
    machine = run_here(target)
    units = multiplied(machine)
    result = modelc.compile(path, machine, tmp_path / "p.modelc", database=False)
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert result.report is not None and result.report.passed
    assert bool(units) == any(s.dtype == "int8" and s.intrinsic for s in steps)
    assert bool(units) != any("no instruction that multiplies bytes" in note for note in result.notes)
    feed = drawn(path)
    with modelc.load(tmp_path / "p.modelc") as model:
        found = model.run(feed)["y"]
    wanted = evaluate_graph(integers(path, units), feed)["y"]
    assert len(np.unique(wanted)) > 8 and np.array_equal(found, wanted)


def test_weights_of_seven_bits_are_multiplied_as_bytes(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "a.onnx")
    for k, name in enumerate(("w1_q", "w3_q")):
        path = changed(path, tmp_path / f"b{k}.onnx", name, lambda w: w // 2)
    modelc.compile(path, run_here("x86-64-v3"), tmp_path / "p.modelc", database=False)
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert [s.instruction for s in steps if s.intrinsic].count("vpmaddubsw") == 2
    feed = drawn(path)
    with modelc.load(tmp_path / "p.modelc") as model:
        found = model.run(feed)["y"]
    assert np.array_equal(found, evaluate_graph(integers(path, WIDE), feed)["y"])


@pytest.mark.parametrize("target, bits", [("x86-64-v3", 7), ("native", 8), ("raspberry-pi-5", 8)])
@pytest.mark.sweep(2)
def test_kernels_take_zero_points_of_weights_from_the_sum(tmp_path: Path, target: str, bits: int) -> None:
    """Of seven bits on AVX2, rows are multiplied as bytes, and summed; windows as 16 bits, which need no sums."""
    here = target in TARGETS
    machine = run_here(target) if here else load_target(target)
    if not here:
        skip_without_tools(machine.triple)
    path, units = asymmetric(tmp_path / "m.onnx", "uint8", bits), multiplied(machine)
    graph = integers(path, units)
    same_numbers(path, graph)
    promises = [node.attrs.get("within") for node in graph.nodes if node.op in ("ConvInteger", "MatMulInteger")]
    sums = sum(node.op == "ReduceSum" for node in graph.nodes)
    if any(unit.within for unit in units):
        assert (sum(map(bool, promises)), sums) == ((2, 2) if bits == 7 else (0, 3))
    elif units:
        assert sums == (0 if bits == 7 else 3)
    result = modelc.compile(path, machine, tmp_path / "p.modelc", database=False)
    assert result.report is not None and result.report.passed
    feed = drawn(path)
    if here:
        with modelc.load(tmp_path / "p.modelc") as model:
            found = model.run(feed)["y"]
    else:
        found = run_emulated(tmp_path / "p.modelc", feed).outputs["y"]
    assert np.array_equal(found, evaluate_graph(graph, feed)["y"])


@pytest.mark.parametrize("name, instruction", [("raspberry-pi-4", "smlal"), ("armv7-neon", "vmlal.s16")])
def test_without_dot_products_arm_multiplies_16_bits(tmp_path: Path, name: str, instruction: str) -> None:
    target, zero = load_target(name), np.array(9, np.uint8)
    skip_without_tools(target.triple)
    weights = RNG.integers(-128, 128, (36, 24)).astype(np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w", "zx"], ["y"])
    path = written(tmp_path / "m.onnx", node, ("uint8", [10, 36]), ("int32", [10, 24]), w=weights, zx=zero)
    modelc.compile(path, target, tmp_path / "p.modelc", database=False)
    (step,) = [s for s in read_package(tmp_path / "p.modelc").manifest.variants[0].steps if s.intrinsic]
    assert (step.instruction, step.dtype) == (instruction, "int8")
    feed = drawn(path)
    found = run_emulated(tmp_path / "p.modelc", feed).outputs["y"]
    assert np.array_equal(found, (feed["x"].astype(np.int32) - 9) @ weights.astype(np.int32))


def test_kernels_of_another_machine_give_the_very_numbers(tmp_path: Path) -> None:
    target = load_target("raspberry-pi-5")
    skip_without_tools(target.triple)
    path = gemm(tmp_path / "m.onnx", "uint8")
    modelc.compile(path, target, tmp_path / "p.modelc", database=False)
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert {s.intrinsic for s in steps if s.flops} >= {"neon-sdot"}
    feed = drawn(path)
    found = run_emulated(tmp_path / "p.modelc", feed).outputs["y"]
    assert np.array_equal(found, evaluate_graph(integers(path, multiplied(target)), feed)["y"])
