"""Functions that make a byte of a byte are tables of 256 bytes: what ONNX Runtime gives for each of them, by the
interpreter and as a package, on every kind of vector that the table is permuted in."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from quantized_models import TARGETS, Written, run_here
from scalar_kernels import NATIVE, call, function, library
from tvm import tirx as tx

import modelc
from modelc.codegen.math.operations import lower_op
from modelc.frontend.onnx import import_model
from modelc.ir.arithmetic import looked_up
from modelc.ir.expr import Op, Var, const
from modelc.ir.graph import Graph
from modelc.ops import evaluate_graph
from modelc.passes import run_passes
from modelc.passes.machine import ANY, Machine
from modelc.target import load_target
from modelc.verify.kernels.rounding import Analysis, Rounded, exact

EVERY = np.arange(256, dtype=np.uint8)
Steps = tuple[float, int]  # a scale and a zero point, from the least byte on
TIE = 1e-3  # in steps: engines may round what is so near to a tie to either side


class Bytes(Written):
    """A QDQ model of bytes."""

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype, self.least = dtype, int(np.iinfo(dtype).min)

    def number(self, name: str, value: float) -> str:
        self.weights[name] = np.float32(value)
        return name

    def real(self, q: str, name: str, steps: Steps) -> str:
        return self.node("DequantizeLinear", [q, *self.steps(name, steps)], name)

    def bytes(self, x: str, name: str, steps: Steps) -> str:
        return self.node("QuantizeLinear", [x, *self.steps(name, steps)], name)

    def steps(self, name: str, steps: Steps) -> list[str]:
        scale, zero = steps
        self.weights |= {f"{name}_s": np.float32(scale), f"{name}_z": np.array(self.least + zero, self.dtype)}
        return [f"{name}_s", f"{name}_z"]

    def write(self, path: Path, inputs: dict[str, list[int]], outputs: list[str], floats: Sequence[str] = ()) -> Path:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        kinds = {name: TensorProto.FLOAT if name in floats else kind for name in (*inputs, *outputs)}
        graph = helper.make_graph(
            self.nodes,
            "bytes",
            [helper.make_tensor_value_info(n, kinds[n], s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, kinds[n], None) for n in outputs],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in self.weights.items()],
        )
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def silu(m: Bytes, x: str, y: str) -> str:
    return m.node("Mul", [x, m.node("Sigmoid", [x], f"{y}_gate")], y)


def quantized_silu(m: Bytes, x: str, y: str) -> str:
    """As quantizers write it: the gate is quantized too."""
    gate = m.bytes(m.node("Sigmoid", [x], f"{y}_gate"), f"{y}_gate_q", (1 / 256, 0))
    return m.node("Mul", [m.real(gate, f"{y}_gate_r", (1 / 256, 0)), x], y)


def gelu(m: Bytes, x: str, y: str) -> str:
    erf = m.node("Erf", [m.node("Div", [x, m.number(f"{y}_root", 2**0.5)], f"{y}_a")], f"{y}_b")
    whole = m.node("Mul", [x, m.node("Add", [erf, m.number(f"{y}_one", 1)], f"{y}_c")], f"{y}_d")
    return m.node("Mul", [whole, m.number(f"{y}_half", 0.5)], y)


def clipped_exp(m: Bytes, x: str, y: str) -> str:
    limits = [m.number(f"{y}_low", -1.5), m.number(f"{y}_high", 1.2)]
    return m.node("Exp", [m.node("Clip", [x, *limits], f"{y}_clipped")], y)


FUNCTIONS = {
    "Tanh": lambda m, x, y: m.node("Tanh", [x], y),
    "Sigmoid": lambda m, x, y: m.node("Sigmoid", [x], y),
    "Elu": lambda m, x, y: m.node("Elu", [x], y, alpha=0.7),
    "Softplus": lambda m, x, y: m.node("Softplus", [x], y),
    "silu": silu,
    "quantized silu": quantized_silu,
    "gelu": gelu,
    "clipped exp": clipped_exp,
}
steps = st.tuples(st.floats(0.002, 0.2), st.integers(0, 255))


def chain(path: Path, name: str, dtype: str, read: Steps, written: Steps, shape: list[int] | None = None) -> Path:
    """The model y = QuantizeLinear(z), where z is the function `name` of DequantizeLinear(q)."""
    m = Bytes(dtype)
    m.bytes(FUNCTIONS[name](m, m.real("q", "x", read), "z"), "y", written)
    return m.write(path, {"q": shape or [256]}, ["y"])


def by_onnxruntime(path: Path, feed: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """Values of the model `names`, whatever is an output of it."""
    model = onnx.load(path)
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names if n != "y")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(list(names), feed)


def assert_bytes(found: np.ndarray, wanted: np.ndarray, number: np.ndarray, scale: float) -> None:
    """Equal, but where a `number` lies at a tie between two bytes."""
    tie = np.abs(np.abs(number / np.float32(scale) % 1) - 0.5) < TIE
    apart = np.abs(found.astype(int) - wanted)
    assert (apart <= tie).all(), np.flatnonzero(apart > tie)


def tables(graph: Graph) -> int:
    return sum(node.op == "ByteTable" for node in graph.nodes)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["uint8", "int8"]), steps, steps)
def test_a_table_has_what_onnxruntime_gives(
    tmp_path_factory: pytest.TempPathFactory, name: str, dtype: str, read: Steps, written: Steps
) -> None:
    path = chain(tmp_path_factory.mktemp("chain") / "m.onnx", name, dtype, read, written)
    feed, graph = {"q": EVERY.view(dtype)}, run_passes(import_model(path))
    assert [node.op for node in graph.nodes] == ["ByteTable"]
    (found,) = evaluate_graph(graph, feed).values()
    np.testing.assert_array_equal(found, evaluate_graph(import_model(path), feed)["y"])
    assert_bytes(found, *by_onnxruntime(path, feed, "y", "z"), written[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_package_looks_up(tmp_path: Path, dtype: str, target: str) -> None:
    """All 256 bytes, at every place of a vector, and what no vector is full of."""
    machine = run_here(target)
    path = chain(tmp_path / "m.onnx", "gelu", dtype, (0.031, 117), (0.021, 9), [3, 4 * 256 + 37])
    numbers = np.arange(3 * (4 * 256 + 37), dtype=np.int64).reshape(3, -1)
    feed = {"q": (numbers * 37 % 256).astype(np.uint8).view(dtype)}
    result = modelc.compile(path, output=tmp_path / "m.modelc", target=machine, database=False)
    assert result.report is not None and result.report.passed
    with modelc.load(tmp_path / "m.modelc") as model:
        found = model.run(feed)["y"]
    assert_bytes(found, *by_onnxruntime(path, feed, "y", "z"), 0.021)


def test_between_contractions_it_is_in_their_kernels(tmp_path: Path) -> None:
    """What quantizes a sum, looks up, and is read by a convolution as bytes."""
    m = Bytes("uint8")
    x = m.real(m.bytes("x", "xq", (0.03, 117)), "xr", (0.03, 117))
    c = m.node("Conv", [x, m.weight("w", (32, 32, 1, 1), 0, 0.003)], "c")
    q = m.real(m.bytes(c, "cq", (0.0213, 128)), "cr", (0.0213, 128))
    t = m.real(m.bytes(m.node("Tanh", [q], "t"), "tq", (1 / 127, 128)), "tr", (1 / 127, 128))
    m.bytes(m.node("Conv", [t, m.weight("v", (32, 32, 1, 1), 0, 0.003)], "d"), "y", (0.0119, 128))
    path = m.write(tmp_path / "m.onnx", {"x": [1, 32, 9, 9]}, ["y"], ["x"])
    result = modelc.compile(path, output=tmp_path / "m.modelc", database=False)
    assert result.report is not None and result.report.passed
    steps = json.loads((tmp_path / "m.modelc" / "manifest.json").read_text())["variants"][0]["steps"]
    kernels = {step["name"].partition(".")[0].partition("_")[0] for step in steps}
    assert kernels == {"quantizelinear", "convinteger"}


# --- where there is none --------------------------------------------------------------------------------------------


def kept(path: Path, machine: Machine = ANY) -> list[str]:
    """The operators of the model at `path` after the passes, in which there is no table."""
    graph = run_passes(import_model(path), machine=machine)
    assert not tables(graph)
    return [node.op for node in graph.nodes]


def test_scales_of_a_run_have_no_table(tmp_path: Path) -> None:
    m = Bytes("uint8")
    x = m.real("q", "x", (0.03, 117))
    m.steps("y", (0.01, 100))
    m.node("QuantizeLinear", [m.node("Tanh", [x], "z"), "scale", "y_z"], "y")
    assert "Tanh" in kept(m.write(tmp_path / "m.onnx", {"q": [64], "scale": []}, ["y"], ["scale"]))


def test_scales_by_channel_have_no_table(tmp_path: Path) -> None:
    m = Bytes("uint8")
    m.weights |= {"s": np.float32([0.01, 0.02, 0.03]), "z": np.uint8([1, 2, 3])}
    x = m.node("DequantizeLinear", ["q", "s", "z"], "x", axis=0)
    m.bytes(m.node("Tanh", [x], "t"), "y", (0.01, 100))
    assert "Tanh" in kept(m.write(tmp_path / "m.onnx", {"q": [3, 8]}, ["y"]))


def test_a_result_that_others_read_as_real_has_no_table(tmp_path: Path) -> None:
    m = Bytes("uint8")
    t = m.node("Tanh", [m.real("q", "x", (0.03, 117))], "t")
    m.bytes(t, "y", (0.01, 100))
    m.node("ReduceSum", [t], "sum", keepdims=0)
    assert "Tanh" in kept(m.write(tmp_path / "m.onnx", {"q": [64]}, ["y", "sum"], ["sum"]))


def test_a_function_of_two_bytes_has_no_table(tmp_path: Path) -> None:
    m = Bytes("uint8")
    x, y = m.real("q", "x", (0.03, 117)), m.real("p", "p_r", (0.03, 117))
    m.bytes(m.node("Mul", [x, m.node("Sigmoid", [y], "g")], "z"), "y", (0.01, 100))
    assert "Sigmoid" in kept(m.write(tmp_path / "m.onnx", {"q": [64], "p": [64]}, ["y"]))


def test_what_is_cheap_is_computed(tmp_path: Path) -> None:
    m = Bytes("uint8")
    m.bytes(m.node("LeakyRelu", [m.real("q", "x", (0.03, 117))], "z", alpha=0.1), "y", (0.01, 100))
    path = m.write(tmp_path / "m.onnx", {"q": [64]}, ["y"])
    assert "LeakyRelu" in kept(path)
    assert tables(run_passes(import_model(path), machine=Machine(lookup_operations=1.0)))


def test_a_byte_that_others_read_too_is_where_a_table_begins(tmp_path: Path) -> None:
    """What is dequantized may have other readers, and so may the bytes between two functions."""
    m = Bytes("uint8")
    x = m.real("q", "x", (0.03, 117))
    t = m.bytes(m.node("Tanh", [x], "t"), "between", (0.008, 128))
    m.bytes(m.node("Exp", [m.real(t, "tr", (0.008, 128))], "e"), "y", (0.012, 0))
    m.node("ReduceSum", [x], "sum", keepdims=0)
    for outputs, count in ((["y", "sum"], 1), (["y", "between", "sum"], 2)):
        graph = run_passes(import_model(m.write(tmp_path / f"{count}.onnx", {"q": [256]}, outputs, ["sum"])))
        assert tables(graph) == count and not {"Tanh", "Exp"} & {node.op for node in graph.nodes}
        found = evaluate_graph(graph, {"q": EVERY})
        assert_bytes(found["y"], *by_onnxruntime(tmp_path / "1.onnx", {"q": EVERY}, "y", "e"), 0.012)


def test_the_price_is_the_target_s() -> None:
    """Vectors that are not permuted load their bytes one by one."""
    wide, narrow, loads = (Machine.of(load_target(n)) for n in ("x86-64-v4", "x86-64-v3", "armv7-neon"))
    assert wide.lookup_operations < narrow.lookup_operations < narrow.slow_operations
    assert loads.lookup_operations > loads.slow_operations


# --- lookups --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", ["native", "x86-64-v4", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("lanes", [1, 3, 4, 8, 16, 24, 32, 64])
def test_every_form_of_a_lookup(tmp_path: Path, cpu: str, lanes: int) -> None:
    """The lowest eight bits of any number; a number of lanes that no register is full of."""
    if cpu != "native" and (platform.machine() != "x86_64" or not runs(cpu)):
        pytest.skip(f"this machine is no {cpu}")
    target = NATIVE if cpu == "native" else {"kind": "llvm", "mcpu": cpu}
    rng = np.random.default_rng(lanes)
    table = rng.integers(0, 256, 256, dtype=np.uint8)

    def build(x: object) -> object:
        words = [tx.IntImm("int32", int(word)) for word in table.view("<i4")]
        words = words if lanes == 1 else [tx.Broadcast(word, lanes) for word in words]
        return lower_op("lookup", [x, *words], "int32", lanes)

    x = np.concatenate([np.arange(-256, 512), rng.integers(-(2**31), 2**31, 192 * 5)]).astype(np.int32)
    x = x[: len(x) // lanes * lanes]
    lib = library({"lookup": function("lookup", build, ["int32"], "int32", lanes, target)}, tmp_path, target)
    found = call(lib, "lookup", [x], "int32", lanes)
    np.testing.assert_array_equal(found, table[x & 255])
    np.testing.assert_array_equal(found, looked_up(x, *table.view("<i4")))


def runs(cpu: str) -> bool:
    """Whether the machine has the vectors of this level."""
    has = tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(NATIVE))
    return {"x86-64-v4": "avx512bw", "x86-64-v3": "avx2"}.get(cpu, "sse2") in has


def test_a_byte_at_a_tie_is_one_of_its_neighbours() -> None:
    """What the judge of kernels takes for right where a byte may be one away, or anywhere."""
    table = np.zeros(256, np.uint8)
    table[10:13] = 50, 7, 90
    lookup = Op("lookup", (Var("x"), *(const(int(word), "int32") for word in table.view("<i4"))))
    words = [exact(word) for word in table.view("<i4")]
    far = np.array([0.0, 1.0, 3.0])
    found = Analysis().operate(lookup, [Rounded(np.full(3, 11, np.int32), "int32", None, far), *words])
    assert found.value.tolist() == [7, 7, 7]
    assert np.asarray(found.bias).tolist() == [0, 83, 255]
