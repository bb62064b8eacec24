"""compile --weights int8 and int4: tables too, and by samples, which round weights of 4 bits and say the drop."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tiny_package import skip_without_tools

import modelc
from modelc.cli import main
from modelc.errors import ConfigError
from modelc.frontend.quantize.gptq import Inputs, compensated, moved, moves_of
from modelc.frontend.quantize.weights import in_four_bits

TARGET = "x86-64-v3"
F = np.float32
WORDS, WIDTH, LENGTH = 300, 64, 12


def encoder(path: Path, read_in_float: bool = False) -> Path:
    """Words looked up, two layers with a residual, and the table once more as the head; or with its mean."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((WORDS, 16)) @ rng.standard_normal((16, WIDTH)) / 4
    weights = {
        "table": table,
        "a": rng.standard_normal((WIDTH, 128)) / 8,
        "b": rng.standard_normal((128, WIDTH)) / 11,
        "bias": rng.standard_normal(WIDTH) / 8,
    }
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["x"], "lookup"),
        helper.make_node("MatMul", ["x", "a"], ["xa"], "first"),
        helper.make_node("Relu", ["xa"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "b"], ["rb"], "second"),
        helper.make_node("Add", ["rb", "bias"], ["biased"], "biased"),
        helper.make_node("Add", ["biased", "x"], ["y"], "residual"),
        helper.make_node("Transpose", ["table"], ["turned"], "turned", perm=[1, 0]),
        helper.make_node("MatMul", ["y", "turned"], ["scores"], "head"),
    ]
    if read_in_float:
        nodes[-2:] = [
            helper.make_node("ReduceMean", ["table"], ["mean"], "mean", axes=[0], keepdims=0),
            helper.make_node("Add", ["y", "mean"], ["scores"], "moved"),
        ]
    made = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, LENGTH, WIDTH if read_in_float else WORDS])
    words = helper.make_tensor_value_info("words", TensorProto.INT64, [1, LENGTH])
    constants = [numpy_helper.from_array(w.astype(F), name) for name, w in weights.items()]
    graph = helper.make_graph(nodes, "g", [words], [made], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_tools("x86_64-linux-gnu")
    made = tmp_path_factory.mktemp("packed")
    encoder(made / "m.onnx")
    words = np.random.default_rng(1).integers(0, WORDS, (48, 1, LENGTH))
    np.savez(made / "data.npz", words=words)
    return made


def compiled(folder: Path, name: str, **options: object) -> tuple[modelc.CompileResult, dict[str, dict]]:
    """The result, and the layers that choices.json has by name."""
    options = {"target": TARGET, "database": False, "emit_onnx": folder / f"{name}.onnx", **options}
    result = modelc.compile(folder / "m.onnx", output=folder / f"{name}.modelc", **options)
    assert result.report is not None and result.report.passed
    layers = json.loads((result.path / "choices.json").read_text())["packed"]["layers"]
    return result, {layer["name"]: layer for layer in layers}


def outputs(path: Path, words: np.ndarray) -> np.ndarray:
    if path.suffix == ".modelc":
        with modelc.load(path) as model:
            return model.run({"words": words})["scores"].copy()
    options = onnxruntime.SessionOptions()  # whose fusions would round activations
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"words": words})[0]


@pytest.mark.parametrize(("weights", "bits", "most_size", "error"), [("int8", 8, 0.3, 0.02), ("int4", 4, 0.2, 0.25)])
def test_tables_and_weights_have_few_bits(
    folder: Path, weights: str, bits: int, most_size: float, error: float
) -> None:
    """In the package too, which computes what ONNX Runtime does of the emitted model; the table is also the head."""
    result, layers = compiled(folder, weights, weights=weights)
    assert {name: layer["bits"] for name, layer in layers.items()} == dict.fromkeys(layers, bits)
    assert layers.keys() == {"lookup", "first", "second", "head"} and layers["lookup"]["table"]
    numbers = 4 * (2 * WORDS * WIDTH + 2 * WIDTH * 128)  # of the table once for its lookups, and once for the head
    assert result.params_bytes < most_size * numbers
    words = np.random.default_rng(2).integers(0, WORDS, (1, LENGTH))
    real, emitted, made = (outputs(folder / f"{n}", words) for n in ("m.onnx", f"{weights}.onnx", f"{weights}.modelc"))
    assert np.linalg.norm(made - emitted) < 1e-3 * np.linalg.norm(emitted)
    assert 1e-4 < np.linalg.norm(made - real) / np.linalg.norm(real) < error
    (said,) = [note for note in result.notes if "drop by rounding weights" in note]
    assert "not measured (there are no samples; on 4 inputs drawn at random" in said


def test_samples_round_weights_and_measure_the_drop(folder: Path) -> None:
    result, layers = compiled(folder, "by-samples", weights="int4", calibrate=folder / "data.npz", max_drop=0.5)
    assert {layer["bits"] for layer in layers.values()} == {4}
    for name in ("first", "second", "head"):
        assert layers[name]["output"] < 0.7 * layers[name]["nearest"] and layers[name]["moves"]
    notes = " ".join(result.notes)
    assert "3 rounded by samples" in notes and "on 12 samples that were held back" in notes
    words = np.load(folder / "data.npz")["words"]
    off = {}
    compiled(folder, "int4", weights="int4")
    for name in ("int4", "by-samples"):
        pairs = [(outputs(folder / f"{name}.onnx", x), outputs(folder / "m.onnx", x)) for x in words[3::4]]
        off[name] = sum(float(np.square(made - real).sum()) for made, real in pairs)
    assert off["by-samples"] < off["int4"]
    made, emitted = (outputs(folder / f"by-samples.{end}", words[3]) for end in ("modelc", "onnx"))
    assert np.linalg.norm(made - emitted) < 1e-3 * np.linalg.norm(emitted)
    again = folder / "again.modelc"
    modelc.compile(folder / "m.onnx", output=again, choices=result.path, verify=False)
    assert (again / "params.bin").read_bytes() == (result.path / "params.bin").read_bytes()


def test_what_costs_most_is_wider_until_the_drop_fits(folder: Path) -> None:
    """Where scores may be off by 1 %, 4 bits do not do; where by nothing, all is in float32. A metric judges too."""

    def distance(outputs: dict[str, np.ndarray], sample: dict[str, np.ndarray]) -> float:
        wanted = onnxruntime.InferenceSession(folder / "m.onnx").run(None, {"words": sample["words"]})[0]
        return 1 - float(np.linalg.norm(outputs["scores"] - wanted) / np.linalg.norm(wanted))

    options = {"weights": "int4", "calibrate": folder / "data.npz", "metric": distance}
    result, layers = compiled(folder, "metric", **options, max_drop=0.03)
    bits = [layer["bits"] for layer in layers.values()]
    assert 8 in bits and result.recipe.summary["drop"] <= 0.03
    assert all(layer["why"] == "wider, for the drop" for layer in layers.values() if layer["bits"] == 8)
    _, layers = compiled(folder, "none", **options, max_drop=0.0, verify=True)
    assert {layer["bits"] for layer in layers.values()} == {0}


def test_a_table_that_something_reads_in_float32_stays_so(folder: Path, tmp_path: Path) -> None:
    encoder(tmp_path / "m.onnx", read_in_float=True)
    _, layers = compiled(tmp_path, "float", weights="int8")
    assert layers["lookup"]["bits"] == 0 and layers["lookup"]["why"] == "'mean' reads it in float32"
    assert layers["first"]["bits"] == 8


def test_what_makes_no_sense_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--trade-off is of layers in bytes"):
        modelc.compile(folder / "m.onnx", TARGET, weights="int4", calibrate=folder / "data.npz", trade_off=True)
    with pytest.raises(SystemExit) as end:
        main(["compile", str(folder / "m.onnx"), "--weights", "int4", "--max-drop", "1%"])
    assert end.value.code == 2 and "give --calibrate" in capsys.readouterr().err


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.booleans(), st.integers(0, 2**32 - 1))
def test_numbers_move_only_where_outputs_become_nearer(blocks: int, columns: int, zeros: bool, seed: int) -> None:
    """And are read back from text; inputs that are all 0 move nothing."""
    rng = np.random.default_rng(seed)
    depth = 16 * blocks
    w = rng.standard_normal((depth, columns)).astype(F)
    nearest = in_four_bits(w, 16, zeros)
    x = rng.standard_normal((3 * depth, 4)) @ rng.standard_normal((4, depth)) + 0.1 * rng.standard_normal(
        (3 * depth, depth)
    )
    inputs = Inputs(x.T @ x)
    chosen = compensated(w, nearest, inputs)
    assert chosen is not None and chosen.numbers.max() <= 15
    direct = np.linalg.norm(x @ (chosen.real() - w)) / np.linalg.norm(x @ w)
    assert inputs.error(w, chosen.real()) == pytest.approx(direct, rel=1e-3)
    assert inputs.error(w, chosen.real()) < 1.05 * inputs.error(w, nearest.real())
    assert np.array_equal(moved(nearest, moves_of(nearest, chosen)).numbers, chosen.numbers)
    assert compensated(w, nearest, Inputs(np.zeros((depth, depth)))) is None


def test_moves_of_another_matrix_are_refused() -> None:
    w = np.random.default_rng(0).standard_normal((32, 8)).astype(F)
    large, small = in_four_bits(w, 32, False), in_four_bits(w[:, :4], 32, False)
    for moves in (moves_of(large, large), moves_of(small, small)[:8], "&"):
        with pytest.raises(ConfigError, match="otherwise than this model has them"):
            moved(small, moves)
