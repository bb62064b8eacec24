"""compile --precision int8 without samples: products of rows that are rounded in each run, and tables of bytes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper
from small_encoder import PRODUCTS, WIDTH, WORDS, encoder
from tiny_package import skip_without_tools

import modelc
from modelc.cli import main
from modelc.frontend.quantize.dynamic import ROWS, rounding_of_rows
from modelc.frontend.quantize.floats import FloatModel
from modelc.package import read_package, run_emulated
from modelc.passes.machine import multiplied
from modelc.target import load_target

OTHER = "cortex-a76"  # which multiplies bytes, whatever this machine does
F = np.float32


@cache
def target() -> str:
    """This machine, where it multiplies bytes so quickly that most layers pay."""
    return "native" if any(unit.speed > 2 for unit in multiplied(load_target("native"))) else OTHER


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder, what the command makes of it without samples, and the model that others can run."""
    skip_without_tools(load_target(target()).triple)
    made = tmp_path_factory.mktemp("dynamic")
    encoder(made / "m.onnx")
    arguments = ["compile", made / "m.onnx", "--target", target(), "-o", made / "p.modelc", "--precision", "int8"]
    assert status(*arguments, "--emit-onnx", made / "q.onnx", "--no-database", "--no-bench", "--json") == 0
    return made


def outputs(package: Path, ids: np.ndarray) -> dict[str, np.ndarray]:
    if target() != "native":
        return run_emulated(package, {"ids": ids}).outputs
    with modelc.load(package) as model:
        return model.run({"ids": ids})


def in_onnxruntime(model: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def off(made: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(made - right) / np.linalg.norm(right))


def test_outputs_are_those_of_the_model_in_bytes_and_near_the_float_model(folder: Path) -> None:
    ids = np.random.default_rng(5).integers(0, WORDS, (2, 32))
    made, bytes_, real = (
        outputs(folder / "p.modelc", ids),
        *(in_onnxruntime(folder / name, {"ids": ids}) for name in ("q.onnx", "m.onnx")),
    )
    for name in ("hidden", "head", "labels"):
        assert off(made[name], bytes_[name]) < 0.01  # a step where a tie falls otherwise
        assert 1e-4 < off(made[name], real[name]) < 0.04
    assert np.mean(made["head"].argmax(-1) == real["head"].argmax(-1)) > 0.95


def test_what_is_in_bytes_is_said(folder: Path) -> None:
    said = json.loads((folder / "p.modelc" / "choices.json").read_text())["quantized"]
    layers = {layer["name"]: layer for layer in said["layers"]}
    assert set(layers) == {*PRODUCTS, "looked up"} and layers["looked up"]["dtype"] == "table"
    assert {layers[name]["dtype"] for name in ("inner", "outer", "head")} == {"dynamic"}
    assert all(0 < layer["alone"] < 0.03 for layer in layers.values())
    assert 0 < said["summary"]["error_on_drawn"] < 0.04 and "drop" not in said["summary"]
    notes = read_package(folder / "p.modelc").manifest.notes
    narrow = sum(layer["dtype"] == "dynamic" for layer in layers.values())
    assert f"{narrow} of 8 layers multiply bytes, {narrow} of them with activations rounded by row" in notes[0]
    assert "1 table has rows of bytes" in notes[0]
    assert "not measured (there are no samples; on 4 inputs drawn at random the relative error of" in notes[1]


def test_rows_are_rounded_once(folder: Path) -> None:
    """Query, key and value read the same bytes."""
    steps = read_package(folder / "p.modelc").manifest.variants[0].steps
    said = json.loads((folder / "p.modelc" / "choices.json").read_text())["quantized"]["layers"]
    narrow = {layer["name"] for layer in said if layer["dtype"] == "dynamic"}
    read = {"joined": "mixed rows", "inner": "second", "outer": "swish", "head": "hidden", "pooled": "first words"}
    rounded = {f"{read.get(name, 'first')}{ROWS}bytes" for name in narrow}
    kernels = {step.name.partition(".")[0]: {*step.nodes} for step in steps}  # a product may be several steps
    assert sum(bool(nodes & narrow) for nodes in kernels.values()) == len(narrow)
    assert sorted(len(nodes & rounded) for nodes in kernels.values() if nodes & rounded) == [1] * len(rounded)


def test_the_package_is_small(folder: Path) -> None:
    """The table is there twice: as it is looked up, and as it is multiplied."""
    weights = sum(numpy_helper.to_array(t).nbytes for t in onnx.load(folder / "m.onnx").graph.initializer)
    assert read_package(folder / "p.modelc").manifest.params_bytes < 0.3 * (weights + 4 * WORDS * WIDTH)


def test_choices_repeat_it(folder: Path) -> None:
    again = folder / "again.modelc"
    modelc.compile(folder / "m.onnx", output=again, choices=folder / "p.modelc", verify=False)
    names = {path.name for path in (folder / "p.modelc").iterdir()} - {"verification.json", "manifest.json"}
    assert "choices.json" in names
    same = [(again / name).read_bytes() == (folder / "p.modelc" / name).read_bytes() for name in sorted(names)]
    assert all(same)


def test_verify_takes_the_float_model(folder: Path) -> None:
    report = modelc.verify(folder / "p.modelc", folder / "m.onnx", samples=1, check="quick")
    assert report.passed and any("quantized" in note for note in report.notes)


def test_others_run_the_emitted_model(folder: Path) -> None:
    onnx.checker.check_model(folder / "q.onnx", full_check=True)
    operators = [node.op_type for node in onnx.load(folder / "q.onnx").graph.node]
    assert operators.count("MatMulInteger") >= 3 and "QuantizeLinear" not in operators


def test_sizes_stay_open(tmp_path: Path) -> None:
    if target() != "native":
        pytest.skip("this machine multiplies no bytes, and every size under emulation takes long")
    encoder(tmp_path / "m.onnx", "batch", "length")
    emitted, package = tmp_path / "q.onnx", tmp_path / "p.modelc"
    dims = {"batch": 1, "length": "1..48@32"}
    modelc.compile(
        tmp_path / "m.onnx",
        output=package,
        precision="int8",
        dims=dims,
        emit_onnx=emitted,
        database=False,
        verify=False,
    )
    rng = np.random.default_rng(3)
    with modelc.load(package) as model:
        for length in (1, 7, 32, 48):
            ids = rng.integers(0, WORDS, (1, length))
            right = in_onnxruntime(emitted, {"ids": ids})
            for name, made in model.run({"ids": ids}).items():
                assert off(made, right[name]) < 0.01


# --- what stays float32 ---------------------------------------------------------------------------------------------


def _saved(path: Path, nodes: list, weights: dict[str, np.ndarray], inputs: dict, made: tuple[int, ...]) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, made)],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_a_layer_of_rows_with_outliers_stays_float32(tmp_path: Path) -> None:
    """One number of each row is so large that the others are rounded away. In operator set 18, whose ReduceMax takes
    its axes as an input."""
    skip_without_tools(load_target(target()).triple)
    rng = np.random.default_rng(0)
    outlier = np.ones(256, F)
    outlier[3] = 3000
    weights = {"a": rng.standard_normal((256, 256)).astype(F), "b": rng.standard_normal((256, 256)).astype(F)}
    weights["a"][:, 3] = 1
    weights["b"][3] = 0
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["plain"], "near"),
        helper.make_node("Mul", ["plain", "outlier"], ["uneven"], "outliers"),
        helper.make_node("MatMul", ["uneven", "b"], ["y"], "far"),
    ]
    x = {"x": (TensorProto.FLOAT, (64, 256))}
    model = _saved(tmp_path / "m.onnx", nodes, {**weights, "outlier": outlier}, x, (64, 256))
    result = modelc.compile(
        model, output=tmp_path / "p.modelc", target=target(), precision="int8", database=False, verify=False
    )
    assert result.recipe is not None
    layers = {layer["name"]: layer for layer in result.recipe.report()["layers"]}
    assert layers["near"]["dtype"] == "dynamic" and layers["near"]["alone"] < 0.02
    assert layers["far"]["dtype"] == "float32" and layers["far"]["why"].startswith("its error in bytes is above 5%")


def test_a_table_that_others_read_in_float32_stays_so(tmp_path: Path) -> None:
    skip_without_tools(load_target(target()).triple)
    rng = np.random.default_rng(0)
    weights = {"t": rng.standard_normal((200, 512)).astype(F), "w": rng.standard_normal((512, 512)).astype(F)}
    nodes = [
        helper.make_node("ReduceMean", ["t"], ["mean"], "mean", keepdims=0),
        helper.make_node("Gather", ["t", "ids"], ["looked up"], "lookup"),
        helper.make_node("MatMul", ["looked up", "w"], ["product"], "product"),
        helper.make_node("Add", ["product", "mean"], ["y"], "sum"),
    ]
    model = _saved(tmp_path / "m.onnx", nodes, weights, {"ids": (TensorProto.INT64, (64,))}, (64, 512))
    result = modelc.compile(
        model, output=tmp_path / "p.modelc", target=target(), precision="int8", database=False, verify=False
    )
    assert result.recipe is not None
    layers = {layer["name"]: layer for layer in result.recipe.report()["layers"]}
    assert (layers["lookup"]["dtype"], layers["lookup"]["why"]) == ("float32", "'mean' reads it in float32")
    assert layers["product"]["dtype"] == "dynamic"


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metric", "judge.py:f"], "--metric judges on samples: give --calibrate DATA.npz too"),
        (["--max-drop", "1%"], "--max-drop judges on samples: give --calibrate DATA.npz too"),
        (["--target", "cortex-a72"], "precision int8: the target cortex-a72 has no instruction that multiplies bytes"),
        (["--weights", "int4"], "weights and layers in int8 were asked for"),
    ],
)
def test_flags_that_do_not_go_together(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder(tmp_path / "m.onnx")
    arguments = ["compile", tmp_path / "m.onnx", "-o", tmp_path / "p.modelc", "--no-database", "--precision", "int8"]
    others = [] if "--target" in flags else ["--target", OTHER]
    assert status(*arguments, *others, *flags) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_convolutions_alone_are_answered_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"w": np.ones((8, 8, 3, 3), F)}
    x = {"x": (TensorProto.FLOAT, (1, 8, 16, 16))}
    model = _saved(tmp_path / "m.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], weights, x, (1, 8, 14, 14))
    assert status("compile", model, "-o", tmp_path / "p.modelc", "--target", OTHER, "--precision", "int8") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has none of these: it has 1 convolution, which --calibrate DATA.npz quantizes" in said


def test_choices_of_another_model_say_so(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = FloatModel(onnx.load(folder / "m.onnx"))
    model.model.graph.name = "another"
    onnx.save(model.model, tmp_path / "m.onnx")
    tree = json.loads((folder / "p.modelc" / "choices.json").read_text())
    del tree["quantized"]
    (tmp_path / "choices.json").write_text(json.dumps(tree))
    arguments = ["compile", tmp_path / "m.onnx", "-o", tmp_path / "p.modelc", "--precision", "int8"]
    assert status(*arguments, "--choices", tmp_path / "choices.json") == 2
    assert "choices.json says nothing of bytes in this model" in " ".join(capsys.readouterr().err.split())


# --- rounding -------------------------------------------------------------------------------------------------------


@cache
def _rounding() -> onnxruntime.InferenceSession:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])
    model = FloatModel(
        helper.make_model(helper.make_graph([], "g", [x], []), opset_imports=[helper.make_opsetid("", 17)])
    )
    model.model.ir_version = 10
    model.model.graph.node.extend(rounding_of_rows(model, "x"))
    given = {"bytes": TensorProto.UINT8, "scale": TensorProto.FLOAT}
    model.model.graph.output.extend(
        helper.make_tensor_value_info(f"x{ROWS}{n}", kind, None) for n, kind in given.items()
    )
    return onnxruntime.InferenceSession(model.model.SerializeToString(), providers=["CPUExecutionProvider"])


@given(arrays(F, (3, 5), elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)))
@settings(max_examples=60, deadline=None)
def test_rows_are_near_what_their_bytes_stand_for(x: np.ndarray) -> None:
    """Each by its own scale, rows of zeros too, and no byte is beyond 127 of either sign."""
    whole, scale = _rounding().run(None, {"x": x})
    steps = whole.astype(np.float64) - 128
    assert np.abs(steps).max() <= 127 and (scale > 0).all()
    assert (np.abs(steps * scale.astype(np.float64) - x) <= 0.5001 * scale).all()
    largest = np.abs(x).max(axis=1)
    assert (np.abs(steps).max(axis=1)[largest > 2.0**-99] == 127).all()
