"""Layers and tables by row where there are samples: what no range of all rows holds is rounded by row as it is
computed, before it is given back to float32."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from repository import ROOT
from tiny_package import skip_without_tools

import modelc
from modelc.cli import main
from modelc.compile.request import CompileRequest
from modelc.frontend.quantize.recipe import Recipe
from modelc.frontend.quantize.write import quantized
from modelc.package import run_emulated
from modelc.passes.machine import multiplied
from modelc.quantize import decide
from modelc.quantize.command import calibrated, traded_off
from modelc.target import load_target

OTHER = "cortex-a76"  # which multiplies bytes, whatever this machine does
WORDS, LENGTH, WIDTH = 500, 32, 256
MODEL = f"""<ir_version: 8, opset_import: ["" : 17]>
rows (int64[1, {LENGTH}] ids, float[1, {LENGTH}, 1] sizes) => (float[1, {LENGTH}, {WIDTH}] y)
{{
    [looked_up] words = Gather (table, ids)
    x = Mul (words, sizes)
    [first] a = MatMul (x, w1)
    b = LayerNormalization <axis = -1, epsilon = 1e-12> (a, gamma)
    [second] c = MatMul (b, w2)
    d = Add (c, b)
    y = Tanh (d)
}}"""


@cache
def target() -> str | Path:
    """This machine, where it multiplies bytes so quickly that most layers pay."""
    return "native" if any(unit.speed > 2 for unit in multiplied(load_target("native"))) else OTHER


def samples(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Words whose rows are of any size from a thousandth to a thousand, which the norm takes out again."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-3, 3, (count, 1, LENGTH, 1))
    return {"ids": rng.integers(0, WORDS, (count, 1, LENGTH)), "sizes": sizes.astype(np.float32)}


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> CompileRequest:
    """The network on samples, for a machine without float16."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(1)
    model = onnx.parser.parse_model(MODEL)
    shapes = {"table": (WORDS, WIDTH), "w1": (WIDTH, WIDTH), "w2": (WIDTH, WIDTH), "gamma": (WIDTH,)}
    for name, shape in shapes.items():
        numbers = np.ones(shape) if name == "gamma" else rng.normal(0, WIDTH**-0.5, shape)
        model.graph.initializer.append(numpy_helper.from_array(numbers.astype(np.float32), name))
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "samples.npz", **samples(16))
    board = folder / "board.yaml"
    board.write_text((ROOT / "targets" / f"{OTHER}.yaml").read_text().replace("neon-f16, ", ""))
    chosen = board if target() == OTHER else "native"
    return CompileRequest(
        folder / "m.onnx", chosen, precision="int8", calibrate=folder / "samples.npz", max_drop=0.05, database=False
    )


def ways(recipe: Recipe) -> dict[str, str]:
    return {layer.name: layer.dtype for layer in recipe.layers}


def test_a_layer_whose_rows_no_range_holds_is_dynamic(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = calibrated(request_)
    assert ways(recipe) == {"looked_up": "table", "first": "dynamic", "second": "int8"}
    assert recipe.summary["drop"] <= 0.05 and "looked_up" not in recipe.ranges and "x" not in recipe.ranges
    assert all(0 < layer.alone < 0.03 for layer in recipe.layers)
    assert "1 of them with activations rounded by row" in recipe.notes[0] and "1 table has rows" in recipe.notes[0]
    monkeypatch.setattr(decide, "products_of", lambda floats: ())
    by_ranges = {layer.name: layer for layer in calibrated(request_).layers}
    assert (by_ranges["first"].dtype, by_ranges["first"].why) == ("float32", "given back for its error")


def test_without_a_drop_tables_are_given_back_too(request_: CompileRequest) -> None:
    recipe = calibrated(replace(request_, max_drop=0.0))
    assert {*ways(recipe).values()} == {"float32"} and recipe.summary["drop"] == 0
    assert {layer.why for layer in recipe.layers} == {"given back for its error"}
    assert all(layer.network > 0 for layer in recipe.layers)


def test_a_trade_off_counts_them(request_: CompileRequest) -> None:
    rows = traded_off(replace(request_, max_drop=None))
    assert (rows[-1].layers, rows[-1].dynamic, rows[-1].tables, rows[-1].drop) == (0, 0, 0, 0)
    chosen = next(row for row in rows if row.dynamic)
    assert (chosen.layers, chosen.every, chosen.tables) == (2, 2, 1)
    assert chosen.params_bytes < 0.3 * rows[-1].params_bytes


def test_the_package_computes_it_and_choices_repeat_it(request_: CompileRequest, tmp_path: Path) -> None:
    """The package, and ONNX Runtime with the model for others, on rows that nobody calibrated with."""
    skip_without_tools(load_target(target()).triple)
    model, package, emitted = request_.path, tmp_path / "p.modelc", tmp_path / "q.onnx"
    arguments = ["compile", model, "--target", request_.target, "--precision", "int8", "--max-drop", "5%"]
    arguments += ["--calibrate", request_.calibrate, "-o", package, "--emit-onnx", emitted, "--no-database"]
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments), "--no-bench", "--quiet"])
    assert end.value.code in (0, None)
    said = json.loads((package / "choices.json").read_text())["quantized"]
    assert ways(Recipe.from_json(said)) == {"looked_up": "table", "first": "dynamic", "second": "int8"}
    assert quantized(model, Recipe.from_json(said)).SerializeToString() == onnx.load(emitted).SerializeToString()
    again = tmp_path / "again.modelc"
    modelc.compile(model, output=again, choices=package, verify=False)
    names = {path.name for path in package.iterdir()} - {"verification.json", "manifest.json"}
    assert [name for name in sorted(names) if (package / name).read_bytes() != (again / name).read_bytes()] == []

    feed = {name: array[0] for name, array in samples(1, seed=9).items()}
    (real,), (bytes_,) = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
        for path in (model, emitted)
    )
    if target() == "native":
        with modelc.load(package) as loaded:
            made = loaded.run(feed)["y"]
    else:
        made = run_emulated(package, feed).outputs["y"]
    assert off(made, bytes_) < 0.01  # a step where a tie falls otherwise
    assert 1e-3 < off(made, real) < 0.05
    assert all(off(row, right) < 0.1 for row, right in zip(made[0], real[0], strict=True))


def off(made: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(made - right) / np.linalg.norm(right))
