"""Layers that --calibrate gives back for their error multiply float16 where the target computes in it, and what would
leave its range does not."""

from __future__ import annotations

import json
from pathlib import Path

import digits
import numpy as np
import onnx
import pytest
from disassembly import disassembled
from emulated_kernels import emulator_of
from onnx import numpy_helper

import modelc
from modelc.compile.request import CompileRequest
from modelc.compile.result import CompileResult
from modelc.frontend.quantize.floats import float_model
from modelc.frontend.quantize.layers import layers_of
from modelc.frontend.quantize.recipe import LayerChoice, Recipe
from modelc.frontend.quantize.write import terms, write_rounded
from modelc.package import run_emulated
from modelc.partition.narrow_products import relative_error
from modelc.quantize.command import compile_quantized
from modelc.quantize.trials import Halves, Trials
from modelc.target import load_target

BOARD = "cortex-a76"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with a channel between its convolutions that one scale for bytes leaves nothing of the others with."""
    made = tmp_path_factory.mktemp("halves")
    digits.classifier(made / "m.onnx", 3000.0, "LeakyRelu")
    np.savez(made / "samples.npz", **digits.batches(12, 2))
    return made


@pytest.fixture(scope="module")
def result(folder: Path) -> CompileResult:
    emulator_of(load_target(BOARD))
    flags = {"precision": "int8", "database": False, "emit_onnx": folder / "q.onnx"}
    flags |= {"calibrate": folder / "samples.npz", "max_drop": 0.02}
    request = CompileRequest(folder / "m.onnx", BOARD, folder / "p.modelc", **flags)
    return compile_quantized(request)


def test_what_bytes_cost_too_much_is_float16(result: CompileResult) -> None:
    assert isinstance(result.recipe, Recipe) and result.path is not None
    layers = {layer.name: layer for layer in result.recipe.layers}
    assert [(layer.name, layer.dtype, layer.why) for layer in layers.values()] == [
        ("first", "float16", "no faster in bytes by estimate"),
        ("second", "float16", "given back for its error"),
        ("third", "int8", ""),
    ]
    assert all(0 < layers[name].network < 0.01 and layers[name].saved_seconds > 0 for name in ("first", "second"))
    assert any("1 of 3 layers multiply bytes; in float16: first, second" in note for note in result.notes)
    choices = json.loads((result.path / "choices.json").read_text())
    assert [layer["dtype"] for layer in choices["quantized"]["layers"]] == ["float16", "float16", "int8"]


def test_the_package_is_right_and_computes_so(folder: Path, result: CompileResult) -> None:
    """Every multiply-add of vectors is on eight lanes, but for those of bytes; and the drop is what was said."""
    assert result.report is not None and result.path is not None and result.recipe is not None
    assert result.report.passed and result.report.narrow == "float16" and result.report.outputs[0].rounded
    (library,) = result.path.glob("*.so")
    code = [text for _, text in disassembled(library, load_target(BOARD).triple)]
    lanes = {text.split(",")[0].split(".")[-1] for text in code if text.startswith("fmla")}
    assert lanes == {"8h"} and any(text.startswith("sdot") for text in code)
    images = digits.batches(1, 3)["x"][0]
    wanted, made = digits.run(folder / "m.onnx", images), run_emulated(result.path, {"x": images}).outputs["scores"]
    assert (made.argmax(-1) == wanted.argmax(-1)).mean() >= 0.98
    assert np.linalg.norm(made - wanted) < 0.05 * np.linalg.norm(wanted)


def test_choices_repeat_it(folder: Path, result: CompileResult) -> None:
    assert result.path is not None
    again = folder / "again.modelc"
    modelc.compile(folder / "m.onnx", output=again, choices=result.path, precision="int8", verify=False)
    names = {path.name for path in result.path.iterdir()} - {"verification.json", "manifest.json"}
    assert "choices.json" in names
    assert [name for name in sorted(names) if (result.path / name).read_bytes() != (again / name).read_bytes()] == []


def test_verify_takes_the_float_model_and_sees_a_wrong_weight(folder: Path, result: CompileResult) -> None:
    assert result.path is not None
    assert modelc.verify(result.path, folder / "m.onnx", samples=1, check="quick").passed
    other = scaled(folder / "q.onnx", folder, "w1", 1.05)
    report = modelc.verify(result.path, other, samples=1)
    assert not report.passed and report.first_wrong is not None and "first" in report.first_wrong.nodes


def test_others_run_the_emitted_model_with_such_layers_in_float32(folder: Path, result: CompileResult) -> None:
    model = onnx.load(folder / "q.onnx")
    assert onnx.TensorProto.FLOAT16 not in {tensor.data_type for tensor in model.graph.initializer}
    images = digits.batches(1, 4)["x"][0]
    same = digits.run(folder / "q.onnx", images).argmax(-1) == digits.run(folder / "m.onnx", images).argmax(-1)
    assert same.mean() >= 0.98


# --- what float16 would add, by itself ------------------------------------------------------------------------------


def test_a_layer_in_float16_is_off_by_its_sums(folder: Path, tmp_path: Path) -> None:
    """What stands for a layer in float16 is off as much as sums are that are rounded with every term, every time."""
    floats = float_model(folder / "m.onnx")
    layers = layers_of(floats)
    deviations = {layer.name: relative_error(terms(floats, layer)) for layer in layers}
    recipe = Recipe(tuple(LayerChoice(layer.name, "float16", 0, 0, 0) for layer in layers), {})
    write_rounded(folder / "m.onnx", recipe, deviations, tmp_path / "rounded.onnx")
    images = digits.batches(1, 3)["x"][0]
    wanted = digits.run(folder / "m.onnx", images)
    apart = [np.linalg.norm(digits.run(tmp_path / "rounded.onnx", images) - wanted) for _ in range(2)]
    assert apart[0] == apart[1] and 1e-3 < apart[0] / np.linalg.norm(wanted) < 2e-2


def fitting(model: Path, folder: Path) -> Halves:
    """Which layers can be in float16, where each stores what it reads and writes so."""
    floats = float_model(model)
    layers = layers_of(floats)
    stored = {layer.name: frozenset({layer.x, layer.y}) for layer in layers}
    samples = [{"x": images} for images in digits.batches(2, 2)["x"]]
    return Trials(floats, layers, 127, samples, folder, 1, lambda said: None).halves(stored)


def scaled(path: Path, folder: Path, name: str, factor: float) -> Path:
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), name))
    onnx.save(model, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def test_what_leaves_the_range_of_float16_stays_in_float32(folder: Path, tmp_path: Path) -> None:
    right = fitting(folder / "m.onnx", tmp_path)
    assert right.errors.keys() == {"first", "second", "third"} and not right.refused
    large = fitting(scaled(folder / "m.onnx", tmp_path, "b1", 1e6), tmp_path)
    assert "'c1' reaches" in large.refused["first"] and "float16 ends at 65504" in large.refused["first"]
    assert large.refused.keys() == {"first", "second", "third"} and not large.errors
    assert "its weights reach" in fitting(scaled(folder / "m.onnx", tmp_path, "w3", 1e6), tmp_path).refused["third"]
