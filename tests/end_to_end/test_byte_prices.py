"""Of a model that is quantized already, what is estimated to be slower in bytes than in float32 is multiplied in
float32, and `compile` says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from integer_contractions import drawn
from microsoft_models import by_onnxruntime, write
from onnx import NodeProto, TensorProto, helper
from quantized_models import Written, run_here

import modelc
from modelc.compile.byte_prices import slower_in_bytes
from modelc.compile.config import load_config
from modelc.frontend.onnx import import_model
from modelc.ir.graph import Graph
from modelc.ops import evaluate_graph
from modelc.package import read_package
from modelc.passes import run_passes
from modelc.passes.machine import Machine
from modelc.space.choose import Schedules
from modelc.target import load_target


def network(path: Path) -> Path:
    """A window of 5 x 5 over few numbers, and a product of many channels."""
    w = Written()
    x = w.through("x", "xd", 0.0301, 117)
    wide = w.node("Conv", [x, w.weight("w1", (64, 64, 5, 5), 0, 0.002)], "wide", pads=[2, 2, 2, 2])
    x = w.through(w.node("Relu", [wide], "r"), "rd", 0.0197, 3)
    point = w.node("Conv", [x, w.weight("w2", (256, 64, 1, 1), 0, 0.002)], "point")
    w.through(point, "y", 0.0397, 121)
    return w.save(path, {"x": [1, 64, 12, 12]}, {"y": [1, 256, 12, 12]})


def test_what_is_slower_in_bytes_stays_in_float32(tmp_path: Path) -> None:
    target, path = run_here("x86-64-v3"), network(tmp_path / "m.onnx")
    result = modelc.compile(path, target, tmp_path / "p.modelc", database=False)
    (note,) = [note for note in result.notes if "its price is" in note]
    assert "1 quantized contraction(s) run in float32 ('wide')" in note and "us in bytes and" in note
    assert result.report is not None and result.report.passed
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert {"float32", "int8"} <= {step.dtype for step in steps if step.flops}
    written = json.loads((tmp_path / "p.modelc" / "choices.json").read_text())
    assert written["real"].keys() == {"wide"}
    modelc.compile(path, output=tmp_path / "q.modelc", choices=tmp_path / "p.modelc", verify=False)
    for name in ("params.bin", "choices.json"):
        assert (tmp_path / "p.modelc" / name).read_bytes() == (tmp_path / "q.modelc" / name).read_bytes()
    with modelc.load(tmp_path / "p.modelc") as model:
        assert len(np.unique(model.run(drawn(path))["y"])) > 8


@pytest.mark.parametrize(("name", "real"), [("raspberry-pi-5", set()), ("x86-64-v3", {"wide"})])
def test_where_bytes_are_multiplied_quickly_nothing_is_kept(tmp_path: Path, name: str, real: set[str]) -> None:
    """With dot products of bytes everything is quicker in them. Weights stay bytes where parameters have a limit."""
    target, original = load_target(name), import_model(network(tmp_path / "m.onnx"))

    def simplified(reasons: object) -> Graph:
        machine = Machine.of(target)
        return run_passes(original, machine=Machine(machine.units, machine.kept_bytes, machine.dots, reasons))  # type: ignore[arg-type]

    given = (original, simplified, target, load_config())
    reasons = slower_in_bytes(*given, lambda model: None, Schedules)
    assert reasons.keys() == real
    assert not slower_in_bytes(*given, lambda model: int(1.2 * model), Schedules)
    assert slower_in_bytes(*given, lambda model: 9 * model, Schedules).keys() == real
    graph = simplified(reasons)
    assert sum(node.op == "ConvInteger" for node in graph.nodes) == 2 - len(real)


F = np.float32
RNG = np.random.default_rng(4)
# weights of uint8, which ONNX Runtime multiplies exactly without instructions for bytes too
FIRST = dict(w1=RNG.integers(1, 256, (64, 64, 5, 5)).astype(np.uint8), z1=np.uint8(128))
LAST = dict(w2=RNG.integers(1, 256, (64, 256)).astype(np.uint8), z2=np.uint8(128), s2=F(0.003))
Model = tuple[Path, dict[str, np.ndarray]]


def node(op: str, inputs: str, output: str, **attrs: object) -> NodeProto:
    """Called as its first output."""
    return helper.make_node(op, inputs.split(), output.split(), output.split()[0], **attrs)


def linear(path: Path) -> Model:
    """The same network in QLinearConv and QLinearMatMul."""
    feeds = {"x": RNG.integers(0, 256, (1, 64, 12, 12)).astype(np.uint8)}
    scales = dict(sx=F(0.0301), sm=F(0.0197), sy=F(0.0397), s1=RNG.uniform(0.0005, 0.001, 64).astype(F))
    zeros = dict(zx=np.uint8(117), zm=np.uint8(3), zy=np.uint8(121), z1=np.full(64, 128, np.uint8))
    known = FIRST | LAST | zeros | scales | dict(b=RNG.integers(-9000, 9000, 64).astype(np.int32))
    nodes = [
        node("QLinearConv", "x sx zx w1 s1 z1 sm zm b", "wide", pads=[2, 2, 2, 2]),
        node("Transpose", "wide", "last", perm=[0, 2, 3, 1]),
        node("QLinearMatMul", "last sm zm w2 s2 z2 sy zy", "y"),
    ]
    return write(path, nodes, feeds, known, "y"), feeds


def dynamic(path: Path) -> Model:
    """The same network with scales of each run: ConvInteger, with a bias that is quantized at run time, and
    MatMulInteger."""
    feeds = {"x": RNG.standard_normal((1, 64, 12, 12)).astype(F)}
    known = dict(s1=F(0.001), b=4 * RNG.standard_normal((1, 64, 1, 1)).astype(F))
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("Mul", "s s1", "by"),
        node("Div", "b by", "bias_steps"),
        node("Floor", "bias_steps", "bias_floor"),
        node("Cast", "bias_floor", "whole_bias", to=TensorProto.INT32),
        node("ConvInteger", "q w1 z z1", "wide", pads=[2, 2, 2, 2]),
        node("Add", "wide whole_bias", "biased"),
        node("Cast", "biased", "real", to=TensorProto.FLOAT),
        node("Mul", "real by", "scaled"),
        node("Relu", "scaled", "a"),
        node("Transpose", "a", "last", perm=[0, 2, 3, 1]),
        node("DynamicQuantizeLinear", "last", "qa sa za"),
        node("MatMulInteger", "qa w2 za z2", "point"),
        node("Cast", "point", "sums", to=TensorProto.FLOAT),
        node("Mul", "sa s2", "times"),
        node("Mul", "sums times", "y"),
    ]
    return write(path, nodes, feeds, known | FIRST | LAST, "y"), feeds


def near(computed: np.ndarray, wanted: np.ndarray) -> None:
    """Bytes may be a step away next to ties, which are few; what such bytes are multiplied to differs as little."""
    apart = np.abs(computed.astype(np.float64) - wanted.astype(np.float64))
    assert len(np.unique(wanted)) > 50
    if wanted.dtype.kind in "iu":
        assert apart.max() <= 1 and (apart > 0).mean() < 0.01
    else:
        assert np.sqrt(np.square(apart).mean()) < 1e-3 * np.std(wanted)


@pytest.mark.parametrize("written", [linear, dynamic])
def test_in_operators_of_whole_numbers_too(tmp_path: Path, written: Callable[[Path], Model]) -> None:
    """Interpreted, compiled and by ONNX Runtime."""
    target, (path, feeds) = run_here("x86-64-v3"), written(tmp_path / "m.onnx")
    result = modelc.compile(path, target, tmp_path / "p.modelc", database=False)
    (note,) = [note for note in result.notes if "quantized contraction(s)" in note]
    assert "1 quantized contraction(s) run in float32 ('wide'): its price is" in note
    assert result.report is not None and result.report.passed
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    assert {"float32", "int8"} <= {step.dtype for step in steps if step.flops}
    real = json.loads((tmp_path / "p.modelc" / "choices.json").read_text())["real"]
    assert real.keys() == {"wide"}
    machine = Machine.of(target)
    graph = run_passes(import_model(path), machine=replace(machine, real=real))
    assert Counter(n.op for n in graph.nodes if "Conv" in n.op or "MatMul" in n.op) == {"Conv": 1, "MatMulInteger": 1}
    wanted = by_onnxruntime(path, feeds)["y"]
    near(evaluate_graph(graph, feeds)["y"], wanted)
    with modelc.load(tmp_path / "p.modelc") as model:
        near(model.run(feeds)["y"], wanted)


def test_sums_in_float32_are_those_of_whole_numbers(tmp_path: Path) -> None:
    """To the last bit, as far as float32 has whole numbers; who reads them as whole numbers gets these."""
    known = dict(w=RNG.integers(0, 256, (8, 1, 3, 3)).astype(np.uint8), zx=np.uint8(9), zw=np.uint8(131), s=F(0.013))
    known |= dict(m=RNG.integers(-128, 128, (9, 16)).astype(np.int8), zm=RNG.integers(-9, 9, 16).astype(np.int8))
    feeds = {name: RNG.integers(0, 256, shape).astype(np.uint8) for name, shape in (("x", (1, 1, 9, 7)), ("r", (5, 9)))}
    nodes = [
        node("ConvInteger", "x w zx zw", "few", pads=[1, 0, 1, 2], strides=[2, 1]),
        node("Cast", "few", "few_real", to=TensorProto.FLOAT),
        node("Mul", "few_real s", "y"),
        node("MatMulInteger", "r m zx zm", "product"),
        node("Cast", "product", "product_real", to=TensorProto.FLOAT),
        node("Mul", "product_real s", "t"),
        node("MatMulInteger", "r m", "whole"),
    ]
    path = write(tmp_path / "m.onnx", nodes, feeds, known, "y t whole")
    original = import_model(path)
    for machine in (Machine(), Machine.of(load_target("x86-64-v3"))):
        graph = run_passes(original, machine=replace(machine, real=dict.fromkeys(("few", "product", "whole"), "why")))
        ops = Counter(n.op for n in graph.nodes)
        assert (ops["Conv"], ops["MatMul"], ops["MatMulInteger"], ops["Round"]) == (1, 1, 1, 0)
        numbers, wanted = evaluate_graph(graph, feeds), evaluate_graph(original, feeds)
        assert all(np.array_equal(numbers[name], wanted[name]) and np.ptp(wanted[name]) > 0 for name in wanted)


def test_what_is_rounded_by_the_model_stays_rounded(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w", "c"),
        node("Round", "c", "r"),
        node("Cast", "r", "whole", to=TensorProto.INT32),
        node("Cast", "whole", "y", to=TensorProto.FLOAT),
    ]
    feeds = {"x": RNG.standard_normal((1, 3, 4, 4)).astype(F)}
    known = dict(w=RNG.standard_normal((8, 3, 1, 1)).astype(F))
    graph = run_passes(import_model(write(tmp_path / "m.onnx", nodes, feeds, known, "y")), machine=Machine(()))
    assert [n.op for n in graph.nodes].count("Round") == 1


def test_where_nothing_multiplies_bytes_all_is_in_float32(tmp_path: Path) -> None:
    """Without instructions for bytes QLinearConv is summed in float32, as what is between DequantizeLinear and
    QuantizeLinear is, and a note says so."""
    path, feeds = linear(tmp_path / "m.onnx")
    graph = run_passes(import_model(path), machine=Machine())
    assert not {"QLinearConv", "QLinearMatMul"} & {n.op for n in graph.nodes}
    assert "2 quantized contraction(s) run in float32" in graph.notes[0] and "no instruction" in graph.notes[0]
    near(evaluate_graph(graph, feeds)["y"], by_onnxruntime(path, feeds)["y"])
