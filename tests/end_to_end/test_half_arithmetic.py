"""Packages that compute in float16, for a machine that does, under emulation: right ones pass, wrong ones do not."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_model as small
from disassembly import disassembled
from emulated_kernels import emulator_of
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.compile.explain import explained
from modelc.compile.result import CompileResult
from modelc.errors import TargetError, VerificationError
from modelc.package import read_package
from modelc.runtime.files import ModelError
from modelc.target import load_target
from modelc.target.host import read_host
from modelc.verify.compare import BF16, F16
from modelc.verify.report import Report
from modelc.verify.verdict import verify_outputs

BOARD = "cortex-a76"


def network(path: Path, half: bool = False) -> Path:
    """A convolution, a depthwise one, and a pointwise one over more channels than a sum in float16 has terms."""
    rng, dtype = np.random.default_rng(0), np.float16 if half else np.float32
    shapes = {"w1": (32, 8, 3, 3), "w2": (32, 1, 3, 3), "w3": (320, 32, 1, 1), "w4": (8, 320, 1, 1)}
    weights = {n: (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(dtype) for n, s in shapes.items()}

    def conv(x: str, w: str, y: str, pad: int = 0, group: int = 1) -> onnx.NodeProto:
        return helper.make_node("Conv", [x, w], [y], w, pads=[pad] * 4, group=group)

    nodes = [
        conv("x", "w1", "a", 1),
        helper.make_node("Relu", ["a"], ["b"]),
        conv("b", "w2", "c", 1, 32),
        helper.make_node("Clip", ["c", "low", "high"], ["d"]),
        conv("d", "w3", "e"),
        helper.make_node("Relu", ["e"], ["f"]),
        conv("f", "w4", "y"),
    ]
    weights |= {"low": np.array(0, dtype), "high": np.array(6, dtype)}
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    x, y = (helper.make_tensor_value_info(n, kind, (1, 8, 8, 8)) for n in "xy")
    graph = helper.make_graph(nodes, "halves", [x], [y], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def lanes_of_multiply_adds(package: Path) -> Sequence[str]:
    """How the vectors of multiply-adds in a package's library are cut."""
    (library,) = package.glob("*.so")
    code = disassembled(library, load_target(BOARD).triple)
    return [text.split(",")[0].split(".")[-1] for _, text in code if text.startswith("fmla")]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model in float32."""
    emulator_of(load_target(BOARD))
    folder = tmp_path_factory.mktemp("half")
    report = check(modelc.compile(network(folder / "model.onnx"), BOARD, folder / "p", precision="f16"))
    assert sum(kernel.samples > 0 for kernel in report.kernels) >= 4
    return folder / "p"


def check(result: CompileResult) -> Report:
    """The verification of a package in float16."""
    assert "precision f16: 4 of 4 contractions in float16" in result.notes
    report = result.report
    assert report is not None and report.passed and report.outputs[0].rounded
    assert 1e-5 < report.outputs[0].distance.rms_rel < 5e-3
    assert result.path is not None and set(lanes_of_multiply_adds(result.path)) == {"8h"}
    return report


def test_a_package_computes_in_float16(package: Path) -> None:
    """A long sum in two parts, and nothing multiplied in float32."""
    steps = read_package(package).manifest.variants[0].steps
    assert sum(step.dtype == "float16" for step in steps) >= 4 and any("_parts" in step.name for step in steps)
    assert sum("precision f16" in why.precision for why in explained(package)) >= 4


def test_so_does_a_model_of_float16(tmp_path: Path) -> None:
    emulator_of(load_target(BOARD))
    check(modelc.compile(network(tmp_path / "model.onnx", half=True), BOARD, tmp_path / "p", precision="f16"))


def test_without_the_flag_a_model_of_float16_computes_in_float32(tmp_path: Path) -> None:
    model = network(tmp_path / "model.onnx", half=True)
    modelc.compile(model, BOARD, tmp_path / "p", verify=False)
    assert set(lanes_of_multiply_adds(tmp_path / "p")) == {"4s"}


def test_a_weight_that_is_off_by_a_quarter_is_noticed(package: Path, tmp_path: Path) -> None:
    other = onnx.load(network(tmp_path / "model.onnx"))
    first = other.graph.initializer[0]
    changed = numpy_helper.to_array(first).copy()
    changed.reshape(-1)[np.abs(changed).argmax()] *= 1.25
    first.CopyFrom(numpy_helper.from_array(changed, first.name))
    onnx.save(other, tmp_path / "other.onnx")
    report = modelc.verify(package, tmp_path / "other.onnx")
    assert not report.passed and report.first_wrong is not None and "w1" in report.first_wrong.nodes


def test_what_bfloat16_may_be_off_by_is_refused_in_float16(package: Path, tmp_path: Path) -> None:
    """A last layer that is 1.5 % off: more than verify.f16 allows, and less than verify.bf16."""
    other = onnx.load(network(tmp_path / "model.onnx"))
    last = next(tensor for tensor in other.graph.initializer if tensor.name == "w4")
    last.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(last) * np.float32(1.015), last.name))
    onnx.save(other, tmp_path / "other.onnx")
    report = verify_outputs(package, tmp_path / "other.onnx", samples=1)
    (output,) = report.outputs
    assert F16.rms < output.distance.rms_rel < BF16.rms and output.distance.max_abs
    assert not report.passed and "allowed through float16: 0.01 and 0.05 of the largest element" in report.sentence()
    assert verify_outputs(package, tmp_path / "other.onnx", samples=1, f16=BF16).passed


def test_what_leaves_the_range_is_refused_with_its_reason(tmp_path: Path) -> None:
    emulator_of(load_target(BOARD))
    model = onnx.load(network(tmp_path / "model.onnx"))
    del model.graph.node[2:]  # the first convolution and what follows it
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("b", TensorProto.FLOAT, (1, 32, 8, 8)))
    first = model.graph.initializer[0]
    first.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(first) * np.float32(6e4), first.name))
    onnx.save(model, tmp_path / "large.onnx")
    with pytest.raises(VerificationError, match=r"'b' at .*: inf, expected .*float16 ends at 65504.*--precision f32"):
        modelc.compile(tmp_path / "large.onnx", BOARD, tmp_path / "p", precision="f16")
    assert not (tmp_path / "p").exists()


def test_sapphire_rapids_has_it_and_takes_it_when_asked_alone(tmp_path: Path) -> None:
    """32 lanes of float16 in every multiply-add with the flag, and none without."""
    triple = load_target("sapphire-rapids").triple
    weights = {"w": np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)}
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = small.save(tmp_path / "one.onnx", [product], {"x": [12, 48]}, {"y": [12, 64]}, weights)
    for precision, lanes in (("f16", "ph"), (None, "ps")):
        asked = {"precision": precision, "verify": False, "database": False}
        modelc.compile(model, "sapphire-rapids", tmp_path / lanes, **asked)
        (library,) = (tmp_path / lanes).glob("*.so")
        adds = [text for _, text in disassembled(library, triple) if text.startswith("vfm")]
        assert {text.split()[0][-2:] for text in adds} == {lanes} and any("%zmm" in text for text in adds)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX512-FP16 is of x86-64")
@pytest.mark.skipif("avx512fp16" in read_host().features, reason="this CPU has AVX512-FP16")
def test_a_cpu_without_avx512_fp16_is_told(tmp_path: Path) -> None:
    there = load_target("x86-64-v3")
    there = replace(there, features=(*there.features, "avx512fp16"))
    modelc.compile(small.model(), there, tmp_path / "p", shapes=small.SHAPES, verify=False, database=False)
    with pytest.raises(ModelError, match="needs the CPU feature 'avx512fp16', which this machine lacks"):
        modelc.load(tmp_path / "p")


def test_a_target_without_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot multiply float16: it lacks fullfp16"):
        modelc.compile(small.model(), "cortex-a72", tmp_path / "p", shapes=small.SHAPES, precision="f16")
    assert not list(tmp_path.iterdir())
