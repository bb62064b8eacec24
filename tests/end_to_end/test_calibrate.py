"""From a float model to bytes in one command: labels are kept, choices repeat it, others can run it, what must stay in
float32 does, and data that does not fit is answered with a sentence."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path

import digits
import numpy as np
import one_sided
import onnx
import onnx.parser
import onnxruntime
import pytest
from modelc_process import modelc as command
from onnx import numpy_helper
from repository import ROOT
from tiny_package import skip_without_tools

import modelc
from modelc.cli import main
from modelc.compile.request import CompileRequest
from modelc.errors import ConfigError, InputError
from modelc.frontend.quantize.equalise import applied, smoothable
from modelc.frontend.quantize.floats import float_model
from modelc.frontend.quantize.recipe import Recipe
from modelc.frontend.quantize.write import quantized
from modelc.package import run_emulated
from modelc.passes.machine import multiplied
from modelc.quantize import trials
from modelc.quantize.command import calibrated
from modelc.quantize.running import runs
from modelc.quantize.samples import read_samples
from modelc.target import load_target

OTHER = "cortex-a76"  # which multiplies bytes, whatever this machine does
METRIC = """
def accuracy(outputs, sample):
    return (outputs["scores"].argmax(-1) == sample["labels"]).mean()

def wrong(outputs, sample):
    return outputs["nothing"]

def leaves(outputs, sample):
    raise SystemExit(0)

def nothing(outputs, sample):
    return 0
"""


@cache
def target() -> str:
    """This machine, where it multiplies bytes so quickly that most layers pay."""
    return "native" if any(unit.speed > 2 for unit in multiplied(load_target("native"))) else OTHER


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("calibrate")
    digits.classifier(made / "m.onnx")
    np.savez(made / "samples.npz", **digits.batches(12, 2))
    (made / "metric.py").write_text(METRIC)
    return made


@pytest.fixture(scope="module")
def package(folder: Path) -> Path:
    """What the command makes of the network, with the quantized model beside it."""
    skip_without_tools(load_target(target()).triple)
    arguments = ["compile", folder / "m.onnx", "--target", target(), "-o", folder / "p.modelc", "--no-database"]
    arguments += ["--precision", "int8", "--calibrate", folder / "samples.npz", "--emit-onnx", folder / "q.onnx"]
    arguments += ["--metric", f"{folder / 'metric.py'}:accuracy", "--no-bench", "--quiet", "--json"]
    with redirect_stdout(io.StringIO()) as said:
        assert status(*arguments) == 0
    (folder / "said.json").write_text(said.getvalue())
    return folder / "p.modelc"


def status(*arguments: object) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments)])
    return int(end.value.code or 0)


def answers(package: Path, images: np.ndarray) -> np.ndarray:
    if target() != "native":
        return run_emulated(package, {"x": images}).outputs["scores"]
    with modelc.load(package) as model:
        return model.run({"x": images})["scores"]


def without_halves(folder: Path) -> Path:
    """The other machine, if it computed nothing in float16: test_calibrate_halves.py has what it does then."""
    path = folder / "board.yaml"
    path.write_text((ROOT / "targets" / f"{OTHER}.yaml").read_text().replace("neon-f16, ", ""))
    return path


def test_labels_are_kept(folder: Path, package: Path) -> None:
    """Of pictures that nothing was trained or calibrated on, by the package itself."""
    right = {"float": 0, "bytes": 0}
    unseen = digits.batches(7, 3)
    for images, labels in zip(unseen["x"], unseen["labels"], strict=True):
        right["float"] += int((digits.run(folder / "m.onnx", images).argmax(-1) == labels).sum())
        right["bytes"] += int((answers(package, images).argmax(-1) == labels).sum())
    count = unseen["labels"].size
    assert right["float"] > 0.9 * count and right["bytes"] >= right["float"] - 0.01 * count


def test_the_package_says_what_was_decided(package: Path) -> None:
    said = json.loads((package / "choices.json").read_text())["quantized"]
    assert [layer["name"] for layer in said["layers"]] == ["first", "second", "third"]
    assert "int8" in {layer["dtype"] for layer in said["layers"]}
    for layer in said["layers"]:
        assert 0 < layer["alone"] < 0.1 and (layer["why"] or layer["saved_seconds"] > 0)
    assert said["summary"]["held_back"] == 3 and said["summary"]["drop"] <= 0.01
    notes = json.loads((package / "manifest.json").read_text())["notes"]
    assert any("layers multiply bytes" in note for note in notes)
    assert any("drop by quantizing" in note for note in notes)
    assert any("a drop of 1.00% cannot be seen: one of the 96 rows that are held back" in note for note in notes)
    seconds = json.loads((package.parent / "said.json").read_text())["seconds"]
    assert next(iter(seconds)) == "calibrate" and seconds["calibrate"] > 0


def test_choices_repeat_it_without_samples(folder: Path, package: Path) -> None:
    again = folder / "again.modelc"
    modelc.compile(folder / "m.onnx", output=again, choices=package, verify=False)
    names = {path.name for path in package.iterdir()} - {"verification.json", "manifest.json"}
    assert "choices.json" in names
    assert [name for name in sorted(names) if (package / name).read_bytes() != (again / name).read_bytes()] == []


def test_verify_takes_the_float_model(folder: Path, package: Path) -> None:
    report = modelc.verify(package, folder / "m.onnx", samples=1, check="quick")
    assert report.passed and any("quantized" in note for note in report.notes)


def test_others_run_the_quantized_model(folder: Path, package: Path) -> None:
    onnx.checker.check_model(folder / "q.onnx")
    operators = [node.op_type for node in onnx.load(folder / "q.onnx").graph.node]
    assert operators.count("QuantizeLinear") >= 1
    images = digits.batches(1, 4)["x"][0]
    session = onnxruntime.InferenceSession(folder / "q.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"x": images})
    assert (scores.argmax(-1) == digits.run(folder / "m.onnx", images).argmax(-1)).mean() > 0.9


@pytest.mark.parametrize("activation", ["LeakyRelu", "Relu"])
def test_what_costs_too_much_is_given_back(folder: Path, tmp_path: Path, activation: str) -> None:
    """One channel between two layers has numbers so large that one scale leaves nothing of the others. It is scaled
    where what is between allows that; elsewhere the layer stays in float32 on a machine that has no float16."""
    model = digits.classifier(tmp_path / "m.onnx", 3000.0, activation)
    calibration = {"calibrate": folder / "samples.npz", "max_drop": 0.02}
    recipe = calibrated(CompileRequest(model, without_halves(tmp_path), precision="int8", **calibration))
    layers = {layer.name: layer for layer in recipe.layers}
    assert layers["third"].dtype == "int8" and recipe.summary["drop"] <= 0.02
    assert all(layer.network > 0 for layer in layers.values() if layer.why.startswith("given back"))
    if activation == "Relu":
        assert layers["second"].dtype == "int8" and list(recipe.smoothed) == ["r1"]
    else:
        assert (layers["second"].dtype, layers["second"].why) == ("float32", "given back for its error")


def test_weights_of_one_sign_are_asymmetric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all layers with symmetric weights are worse than may be, one of them has weights that are all positive or
    all negative in each channel: these get zero points instead of float32, and only these. The package, ONNX Runtime
    with the quantized model, and the model that choices make again give the same."""
    skip_without_tools(load_target(OTHER).triple)
    model, samples = one_sided.one_sided(tmp_path / "m.onnx"), tmp_path / "samples.npz"
    np.savez(samples, x=one_sided.samples(16))
    board = without_halves(tmp_path)
    request = CompileRequest(model, board, precision="int8", calibrate=samples, max_drop=1)
    every = calibrated(request)
    assert every.narrow == {*one_sided.LAYERS} and not every.asymmetric and every.summary["drop"] > 0.028
    with monkeypatch.context() as without:
        without.setattr(trials, "WORTH", 0)
        before = calibrated(replace(request, max_drop=0.022))
    assert before.narrow == {"first", "third"}

    arguments = ["compile", model, "--target", board, "-o", tmp_path / "p.modelc", "--no-database", "--no-bench"]
    arguments += ["--precision", "int8", "--calibrate", samples, "--max-drop", "0.022", "--quiet"]
    assert status(*arguments, "--emit-onnx", tmp_path / "q.onnx") == 0
    said = json.loads((tmp_path / "p.modelc" / "choices.json").read_text())["quantized"]
    assert [layer["weights"] for layer in said["layers"]] == ["symmetric", "asymmetric", "symmetric"]
    assert said["summary"]["drop"] <= 0.022 < every.summary["drop"]
    assert said["summary"]["int8_seconds"] < before.summary["int8_seconds"]
    (second,) = [layer for layer in every.layers if layer.name == "second"]
    assert said["layers"][1]["alone"] ** 2 < 0.75 * second.alone**2
    assert 0 < said["layers"][1]["saved_seconds"] < second.saved_seconds  # sums take their time

    emitted = onnx.load(tmp_path / "q.onnx")
    onnx.checker.check_model(emitted)
    assert quantized(model, Recipe.from_json(said)).SerializeToString() == emitted.SerializeToString()
    zeros = {t.name: numpy_helper.to_array(t) for t in emitted.graph.initializer if t.name.endswith("weights/zero")}
    assert {name.split("/")[0]: bool(array.any()) for name, array in zeros.items()} == {
        "first": False,
        "second": True,
        "third": False,
    }
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", options, providers=["CPUExecutionProvider"])
    images = one_sided.samples(1, seed=5)
    (wanted,) = session.run(None, {"x": images})
    made = run_emulated(tmp_path / "p.modelc", {"x": images}).outputs["y"]
    assert np.abs(made - wanted).max() < 0.01 * np.abs(wanted).max()  # a number next to a tie is a step away


CHANNELS = """<ir_version: 8, opset_import: ["" : 17]>
channels (float[2, 8, 6, 6] x) => (float[2, 36, 5] y)
<float zero = {0}, float six = {6}, int64[3] rows = {2, 8, 36}>
{
    a = Conv (x, w1, b1)
    c = Clip (a, zero, six)
    d = Conv <group: int = 8, pads = [1, 1, 1, 1]> (c, w2)
    r = Relu (d)
    e = Conv (r, w3, b3)
    f = Reshape (e, rows)
    t = Transpose <perm = [0, 2, 1]> (f)
    n = LayerNormalization <axis = -1> (t, gamma, beta)
    g = MatMul (n, w4)
    m = Mul (g, gamma)
    s = Add (m, beta)
    y = MatMul (s, w5)
}"""


def test_channels_are_scaled_and_nothing_else_changes(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(CHANNELS)
    shapes = {"w1": (8, 8, 1, 1), "b1": (8,), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1), "b3": (8,)}
    shapes |= {"gamma": (8,), "beta": (8,), "w4": (8, 8), "w5": (8, 5)}
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "m.onnx")
    floats = float_model(tmp_path / "m.onnx")
    assert [place.value for place in smoothable(floats)] == ["c", "r", "n", "s"]
    applied(floats, {v: rng.uniform(0.1, 3, 8).astype(np.float32) for v in ("c", "r", "n", "s")})
    onnx.save(floats.model, tmp_path / "scaled.onnx")
    images = rng.normal(0, 2, (2, 8, 6, 6)).astype(np.float32)
    wanted, scaled = (digits.run(tmp_path / name, images) for name in ("m.onnx", "scaled.onnx"))
    np.testing.assert_allclose(scaled, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


# --- what does not fit --------------------------------------------------------------------------------------------


def without(name: str) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def test_a_trade_off_has_rows_to_choose_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And compiling with the drop that a row names gives that row."""
    model, samples = one_sided.one_sided(tmp_path / "m.onnx"), tmp_path / "samples.npz"
    np.savez(samples, x=one_sided.samples(16))
    board = without_halves(tmp_path)
    flags = ["compile", model, "--target", board, "--precision", "int8", "--calibrate", samples, "--no-database"]
    assert status(*flags, "--trade-off", "--json", "-o", tmp_path / "p.modelc") == 0
    said = json.loads(capsys.readouterr().out)
    rows = said["trade_off"]
    assert said["path"] is None and said["seconds"]["calibrate"] > 0 and not (tmp_path / "p.modelc").exists()
    assert (rows[0]["layers"], rows[-1]["layers"], rows[-1]["drop"], rows[-1]["speed"]) == (3, 0, 0, 1)
    for faster, slower in itertools.pairwise(rows):
        assert faster["seconds"] < slower["seconds"] and faster["drop"] > slower["drop"]
        assert faster["params_bytes"] <= slower["params_bytes"]
    chosen = rows[1]
    recipe = calibrated(CompileRequest(model, board, precision="int8", calibrate=samples, max_drop=chosen["max_drop"]))
    assert recipe.summary["drop"] <= chosen["max_drop"] and len(recipe.narrow) == chosen["layers"]
    assert status(*flags, "--trade-off") == 0
    assert "chosen by --max-drop" in " ".join(capsys.readouterr().out.split())


def test_samples_side_by_side_give_what_they_give_alone(tmp_path: Path) -> None:
    digits.classifier(tmp_path / "m.onnx")
    samples = [{"x": images} for images in digits.batches(9, 5)["x"]]
    made = [outputs["scores"] for outputs in runs(tmp_path / "m.onnx", samples, 2)]
    wanted = [digits.run(tmp_path / "m.onnx", sample["x"]) for sample in samples]
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


def spoiled(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays["x"][5, 3] = np.nan
    return arrays


BAD: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "an input is missing": (without("x"), "no array for the input 'x' float32[32, 1, 12, 12]; it has 'labels'"),
    "another shape": (lambda a: {"x": a["x"][:, :, :, :8]}, "'x' of shape [32, 1, 8, 12]; expected 'x' float32[32"),
    "another dtype": (
        lambda a: {"x": a["x"].astype(np.float64)},
        "in float64; expected float32: write it with .astype",
    ),
    "too few": (lambda a: {"x": a["x"][:5]}, "has 5 sample(s); expected 8 to"),
    "other counts": (lambda a: a | {"labels": a["labels"][:3]}, "'x' has 12 samples and 'labels' 3"),
    "no number": (spoiled, "sample 5 has a number in 'x' that is not finite"),
    "all equal": (lambda a: {"x": np.repeat(a["x"][:1], 9, axis=0)}, "all 9 samples are equal"),
    "objects": (lambda a: {"x": np.array([{}] * 12, object)}, "is no .npz file of numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_does_not_fit(folder: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, said = BAD[case]
    np.savez(tmp_path / "bad.npz", **change(digits.batches(12, 2)))
    arguments = ["compile", folder / "m.onnx", "--target", OTHER, "-o", tmp_path / "p.modelc", "--no-database"]
    assert status(*arguments, "--precision", "int8", "--calibrate", tmp_path / "bad.npz") == 2
    complaint = " ".join(capsys.readouterr().err.split())
    assert said in complaint and "Traceback" not in complaint
    assert not (tmp_path / "p.modelc").exists()


def test_a_folder_has_a_file_for_each_sample(folder: Path, tmp_path: Path) -> None:
    given = digits.batches(9, 2)
    for k, images in enumerate(given["x"]):
        np.save(tmp_path / f"{k:02}.npy", images)
    samples = read_samples(tmp_path, folder / "m.onnx", {})
    assert len(samples.calibrating) == 7 and len(samples.judging) == 2 and samples.others == ()
    np.testing.assert_array_equal(samples.judging[0]["x"], given["x"][3])
    np.savez(tmp_path / "02.npz", labels=given["labels"][0])
    with pytest.raises(InputError, match=r"02\.npz has no array for the input 'x'"):
        read_samples(tmp_path, folder / "m.onnx", {})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--emit-onnx", "q.onnx"], "--emit-onnx writes the model that was quantized, and none is"),
        (["--calibrate", "SAMPLES"], "--calibrate is for --precision int8 or auto, and this is f32"),
        (["--max-drop", "1%"], "--max-drop judges on samples: give --calibrate DATA.npz too"),
        (["--trade-off"], "--trade-off judges on samples: give --calibrate DATA.npz too"),
        (
            ["--precision", "int8", "--calibrate", "SAMPLES", "--trade-off", "--max-drop", "1%"],
            "trade_off shows what max_drop can choose by samples, and was given with max_drop",
        ),
        (
            ["--precision", "int8", "--calibrate", "SAMPLES", "--max-drop", "much"],
            "expected a share, such as 1% or 0.01",
        ),
        (["--precision", "int8", "--calibrate", "SAMPLES", "--metric", "METRIC:wrong"], "failed: KeyError: 'nothing'"),
        (["--precision", "int8", "--calibrate", "SAMPLES", "--metric", "METRIC:no"], "has no function 'no'"),
        (["--precision", "int8", "--calibrate", "SAMPLES", "--metric", "METRIC:leaves"], "it called sys.exit(0)"),
        (["--precision", "int8", "--calibrate", "SAMPLES", "--metric", "EXITS:f"], "it called sys.exit('bye')"),
        (["--precision", "int8", "--calibrate", "nowhere.npz"], "nowhere.npz cannot be read"),
    ],
)
def test_flags_that_do_not_go_together(
    folder: Path, tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"SAMPLES": str(folder / "samples.npz"), "METRIC": str(folder / "metric.py")}
    places["EXITS"] = str(tmp_path / "exits.py")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit('bye')\n")
    for name, place in places.items():
        flags = [flag.replace(name, place) for flag in flags]
    arguments = ["compile", str(folder / "m.onnx"), "--target", OTHER, "-o", str(tmp_path / "p.modelc")]
    assert status(*arguments, "--no-database", *flags) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("when", ["loaded", "called"])
def test_a_metric_does_not_end_the_command(folder: Path, tmp_path: Path, when: str) -> None:
    """In a process of its own, which the metric would end."""
    body = {"loaded": "os._exit(0)\ndef f(outputs, sample): ...", "called": "def f(outputs, sample): os._exit(0)"}
    (tmp_path / "exits.py").write_text(f"import os\n{body[when]}\n")
    flags = ["--target", OTHER, "--precision", "int8", "--calibrate", folder / "samples.npz", "--no-database"]
    with command(tmp_path, "compile", folder / "m.onnx", "-o", "p", *flags, "--metric", "exits.py:f") as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "it called os._exit(0)" in " ".join(said.split()), said
    assert not (tmp_path / "p").exists()


def test_a_metric_may_be_a_function(folder: Path, tmp_path: Path) -> None:
    seen = set[tuple[str, ...]]()

    def accuracy(outputs: dict[str, np.ndarray], sample: dict[str, np.ndarray]) -> float:
        seen.add((*outputs, *sorted(sample)))
        return float((outputs["scores"].argmax(-1) == sample["labels"]).mean())

    options = {"target": target(), "precision": "int8", "calibrate": folder / "samples.npz", "stop_after": "import"}
    modelc.compile(folder / "m.onnx", metric=accuracy, **options)
    assert seen == {("scores", "labels", "x")}

    def wrong(outputs: dict[str, np.ndarray], sample: dict[str, np.ndarray]) -> float:
        return float(outputs["nothing"][0])

    with pytest.raises(modelc.ConfigError, match="the metric wrong failed: KeyError: 'nothing'"):
        modelc.compile(folder / "m.onnx", metric=wrong, **options)
    with pytest.raises(modelc.ConfigError, match=r"the metric is 3; expected FILE\.py:FUNCTION.*or that function"):
        modelc.compile(folder / "m.onnx", metric=3, **options)  # type: ignore[arg-type]


def test_a_target_without_products_of_bytes_says_so(folder: Path) -> None:
    samples = folder / "samples.npz"
    request = CompileRequest(folder / "m.onnx", "riscv64-v", precision="int8", calibrate=samples)
    with pytest.raises(ConfigError, match="has no instruction that multiplies bytes"):
        calibrated(request)
