"""compile --weights int4: a float model's weights in four bits, and blocks that another has dequantized already."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_package import skip_without_tools

import modelc
from modelc.cli import main
from modelc.errors import ConfigError
from modelc.frontend.quantize.weights import in_four_bits
from modelc.package import read_package

TARGET = "x86-64-v3"
F = np.float32


def network(path: Path) -> Path:
    """A MatMul, a Gemm with a bias and factors, one whose depth is a multiple of 16 alone, and a small one."""
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.standard_normal((64, 96)),
        "b": rng.uniform(0.5, 1.5, (80, 96)),  # far from 0: zero points pay
        "c": rng.standard_normal((80, 64)),
        "d": rng.standard_normal((64, 3)),
        "bias": rng.standard_normal(80),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"], "first"),
        helper.make_node("Gemm", ["xa", "b", "bias"], ["xb"], "second", transB=1, alpha=0.5, beta=2.0),
        helper.make_node("MatMul", ["xb", "c"], ["xc"], "third"),
        helper.make_node("MatMul", ["xc", "d"], ["y"], "small"),
    ]
    return _saved(path, nodes, weights, (1, 64), (1, 3))


def _saved(path: Path, nodes: list, weights: dict, given: tuple, made: tuple, opset: int = 17) -> Path:
    init = [
        w if isinstance(w, onnx.TensorProto) else numpy_helper.from_array(w.astype(F), name)
        for name, w in weights.items()
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", given), ("y", made)))
    graph = helper.make_graph(nodes, "g", [x], [y], init)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_tools("x86_64-linux-gnu")
    made = tmp_path_factory.mktemp("int4")
    network(made / "m.onnx")
    arguments = ["compile", made / "m.onnx", "--target", TARGET, "-o", made / "p.modelc", "--no-database", "--no-bench"]
    assert status(*arguments, "--weights", "int4", "--emit-onnx", made / "q.onnx", "--json") == 0
    return made


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    return int(end.value.code or 0)


def test_what_is_stored_is_said(folder: Path) -> None:
    said = json.loads((folder / "p.modelc" / "choices.json").read_text())["packed"]
    layers = {layer["name"]: layer for layer in said["layers"]}
    assert {name: layer["block"] for name, layer in layers.items()} == {
        "first": 32,
        "second": 32,
        "third": 16,
        "small": 0,
    }
    assert layers["second"]["zeros"] and not layers["first"]["zeros"] and "fewer than" in layers["small"]["why"]
    assert all(0.01 < layers[name]["error"] < 0.1 for name in ("first", "second", "third"))
    manifest = read_package(folder / "p.modelc").manifest
    assert any("3 of 4 layers have weights of 4 bits" in note for note in manifest.notes)
    names = [step.name for step in manifest.variants[0].steps]
    assert sum(name.startswith("packeddot") for name in names) == 3


def test_others_run_what_was_written(folder: Path) -> None:
    """ONNX Runtime gives what the package gives, and what it is about in float32."""
    x = np.random.default_rng(3).standard_normal((1, 64)).astype(F)
    by_bits, real = (
        onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("q.onnx", "m.onnx")
    )
    with modelc.load(folder / "p.modelc") as model:
        made = model.run({"x": x})["y"]
    assert np.linalg.norm(made - by_bits) < 1e-3 * np.linalg.norm(by_bits)
    assert 1e-3 < np.linalg.norm(made - real) / np.linalg.norm(real) < 0.3


def test_the_float_model_is_rounded_to_compare(folder: Path) -> None:
    assert status("verify", folder / "p.modelc", "--against", folder / "m.onnx", "--quiet") == 0


def test_choices_repeat_it(folder: Path) -> None:
    again = folder / "again.modelc"
    modelc.compile(folder / "m.onnx", output=again, choices=folder / "p.modelc", verify=False)
    names = {path.name for path in again.iterdir()} - {"manifest.json"}
    assert [
        name for name in sorted(names) if (folder / "p.modelc" / name).read_bytes() != (again / name).read_bytes()
    ] == []


@pytest.mark.parametrize(
    "weights, kernel", [("int4", "packeddot"), ("int4-float", "packedmatmul"), (None, "packedmatmul")]
)
def test_dequantized_blocks_take_bytes_where_that_is_asked_for(tmp_path: Path, weights, kernel) -> None:
    """DequantizeLinear does not say what activations may be rounded to: by itself it rounds none."""
    rng = np.random.default_rng(1)
    whole = helper.make_tensor("w", TensorProto.INT4, (64, 96), rng.integers(-8, 8, 64 * 96))
    known = {"w": whole, "s": rng.uniform(0.5, 1.5, (2, 96))}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["real"], "real", axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "real"], ["y"], "product"),
    ]
    path = _saved(tmp_path / "m.onnx", nodes, known, (1, 64), (1, 96), 21)
    result = modelc.compile(path, TARGET, tmp_path / "m.modelc", weights=weights, database=False)
    assert result.report is not None and result.report.passed
    (variant,) = read_package(result.path).manifest.variants
    assert any(step.name.startswith(kernel) for step in variant.steps)
    if weights:
        (layer,) = result.recipe.layers
        assert (layer.bits, layer.block, layer.error) == (4, 32, 0.0)


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({"block": 32}, "give --weights int4 too"),
        ({"weights": "int4", "precision": "int8"}, "give one of --weights and --precision"),
        ({"weights": "int4", "choices": "p.modelc"}, "give either --weights or --choices"),
        ({"weights": "int4", "block": 24}, "expected int8, int4, int4-float in blocks of 16, 32"),
        ({"weights": "int3"}, "expected int8, int4, int4-float"),
    ],
)
def test_what_makes_no_sense_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, asked, sentence) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=sentence):
        modelc.compile("m.onnx", TARGET, "none.modelc", **asked)
    assert not (folder / "none.modelc").exists()


def test_a_model_without_such_weights_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, (1, 4), (1, 4))
    with pytest.raises(ConfigError, match="none multiplies a constant matrix"):
        modelc.compile(path, TARGET, tmp_path / "m.modelc", weights="int4")


def test_blocks_have_the_least_squared_error() -> None:
    """Less than the whole range gives, zero points less where weights are on one side, zeros stay zeros."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 40)).astype(F)
    w[:32, 0] = 0
    for weights in (w, w + 2):
        errors = {}
        for zeros in (False, True):
            stored = in_four_bits(weights, 32, zeros)
            assert stored.numbers.max() <= 15 and np.isfinite(stored.scales).all()
            errors[zeros] = np.square(stored.real() - weights).sum()
        assert errors[True] < errors[False]
        largest = np.abs(weights).reshape(2, 32, -1).max(1, keepdims=True).repeat(32, 1).reshape(weights.shape)
        step = np.where(largest > 0, largest / 7, 1)
        assert errors[False] < np.square(np.rint(weights / step) * step - weights).sum()
    assert (in_four_bits(w, 32, False).real()[:32, 0] == 0).all()
