"""What ONNX Runtime's quantizers and its optimizer make of small models is compiled, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from microsoft_models import by_onnxruntime, two_ways
from quantized_models import TARGETS, run_here
from quantizers import (
    conv_net,
    dynamically,
    feeds,
    mlp,
    of_few_bits,
    operators,
    optimized,
    recurrent,
    speech,
    statically,
    transformer,
)

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.package import read_package
from modelc.passes.machine import multiplied

# Seven bits where ONNX Runtime may multiply without instructions for bytes: two products of eight saturate in 16.
SEVEN = {"per_channel": True, "reduce_range": True}
QUANTIZED: dict[str, tuple[Callable[[Path], Path], Callable[[Path, Path], Path], set[str]]] = {
    "a conv net, operators, u8": (
        conv_net,
        lambda m, p: statically(m, p, False, "u8", "u8"),
        {"QLinearAdd", "QLinearConcat", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax", "QGemm"},
    ),
    "a conv net, operators, s8": (
        conv_net,
        lambda m, p: statically(m, p, False, "s8", "s8", **SEVEN),
        {"QLinearConv", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearMul"},
    ),
    "a perceptron, operators": (
        mlp,
        lambda m, p: statically(m, p, False, "u8", "s8", **SEVEN),
        {"QGemm", "QLinearMatMul"},
    ),
    "a transformer, operators": (
        transformer,
        lambda m, p: statically(m, p, False, "u8", "s8", **SEVEN),
        {"QLinearSoftmax", "QLinearMatMul", "QLinearAdd"},
    ),
    "a perceptron, QDQ, optimized": (
        mlp,
        lambda m, p: optimized(statically(m, p, True, "u8", "s8", **SEVEN), p.with_suffix(".fused.onnx")),
        {"QGemm", "QLinearMatMul"},
    ),
    "a transformer, dynamic, optimized": (
        transformer,
        lambda m, p: optimized(dynamically(m, p, "s8", **SEVEN), p.with_suffix(".fused.onnx")),
        {"DynamicQuantizeMatMul", "MatMulIntegerToFloat", "SkipLayerNormalization"},
    ),
    "a transformer, optimized": (
        transformer,
        optimized,
        {"SkipLayerNormalization", "FusedMatMul"},
    ),
    "a conv net, optimized": (conv_net, optimized, {"FusedConv"}),
    "a recurrent net, dynamic": (
        recurrent,
        lambda m, p: dynamically(m, p, "s8", **SEVEN),
        {"DynamicQuantizeLSTM", "MatMulInteger"},
    ),
}


@pytest.mark.parametrize("what", QUANTIZED)
def test_what_is_quantized_means_the_same(tmp_path: Path, what: str) -> None:
    write, quantize, wanted = QUANTIZED[what]
    path = quantize(write(tmp_path / "m.onnx"), tmp_path / "q.onnx")
    assert wanted <= operators(path)
    two_ways(path, feeds(path), 1e-3, 1e-3)


PACKED = {
    "a conv net": lambda m, p: statically(conv_net(m), p, False, "u8", "s8", **SEVEN),
    "a transformer": lambda m, p: statically(transformer(m), p, True, "u8", "s8", **SEVEN),
    "weights of four bits": lambda m, p: of_few_bits(mlp(m), p, 4, False),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", PACKED)
@pytest.mark.sweep(2)
def test_packages_of_quantized_models_pass_their_verification(tmp_path: Path, what: str, target: str) -> None:
    """What runs in float, or without an instruction for bytes, is said, and nothing else."""
    path, machine = PACKED[what](tmp_path / "m.onnx", tmp_path / "q.onnx"), run_here(target)
    result = modelc.compile(path, machine, tmp_path / "p.modelc", database=False)
    assert result.report is not None and result.report.passed
    steps = read_package(tmp_path / "p.modelc").manifest.variants[0].steps
    kinds = {step.dtype for step in steps if step.flops}
    notes = [note for note in result.notes if "quantized contraction(s) run in" in note]
    if multiplied(machine):
        assert not notes
        assert what == "weights of four bits" or kinds & {"int8", "int32"}
    with modelc.load(tmp_path / "p.modelc") as model:
        found = model.run(feeds(path, 9))
    wanted = by_onnxruntime(path, feeds(path, 9))
    for name, value in wanted.items():
        assert np.ptp(value) > 0 and np.abs(found[name] - value).max() <= 0.02 * np.abs(value).max()


@pytest.mark.parametrize("weights", ["u8", "s8"])
@pytest.mark.sweep(1)
def test_an_encoder_of_speech_is_as_near_as_steps_of_its_activations_allow(tmp_path: Path, weights: str) -> None:
    path = dynamically(speech(tmp_path / "m.onnx"), tmp_path / "q.onnx", weights)
    modelc.compile(path, output=tmp_path / "p.modelc", verify=False, database=False)
    with modelc.load(tmp_path / "p.modelc") as model:
        (output,) = model.run(feeds(path)).values()
    (wanted,) = by_onnxruntime(path, feeds(path)).values()
    assert np.ptp(wanted) > 0 and np.abs(output - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_a_model_for_one_machine_alone_is_refused(tmp_path: Path) -> None:
    path = optimized(conv_net(tmp_path / "m.onnx"), tmp_path / "q.onnx")
    model = onnx.load(path)
    for entry in (*model.graph.node, *model.opset_import):
        entry.domain = entry.domain and f"{entry.domain}.nchwc"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="for the machine that it ran on; save the model with extended"):
        import_model(path)
