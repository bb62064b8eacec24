"""Sizes that depend on data beside sizes that are free: there is room for the most that a run can find, and outputs
have what was found, without gaps."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_models import INFO, F, I, node, saved
from tiny_package import skip_without_tools

import modelc
from modelc.errors import ModelError

Feed = dict[str, np.ndarray]
MOST = 40
WEIGHTS = {"zero": np.float32(0), "first": np.int64(0), "w": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)}
ABOVE = [node("Gather", ["x", "first"], ["column"], axis=1), node("Greater", ["column", "zero"], ["above"])]
X = [INFO("x", F, ["rows", 4])]
PLACES = ([node("Greater", ["x", "zero"], ["g"]), node("NonZero", ["g"], ["places"])], X, {"places": I})
ROWS = (
    [
        *ABOVE,
        node("NonZero", ["above"], ["p"]),
        node("Transpose", ["p"], ["pt"]),
        node("GatherND", ["x", "pt"], ["found"]),
        node("MatMul", ["found", "w"], ["products"]),
        node("Relu", ["products"], ["y"]),
        node("ReduceMax", ["y"], ["best"], axes=[0], keepdims=0),
    ],
    X,
    {"y": F, "best": F},
)
COMPRESSED = (
    [*ABOVE, node("Compress", ["x", "above"], ["some"], axis=0), node("Softmax", ["some"], ["y"], axis=-1)],
    X,
    {"y": F},
)
DISTINCT = (
    [node("Unique", ["x"], ["u", "i", "inverse", "counts"], axis=0), node("MatMul", ["u", "w"], ["y"])],
    X,
    {"y": F, "inverse": I, "counts": I},
)
BOXES = (
    [
        node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["selected"]),
        node("Slice", ["selected", "two", "three", "one"], ["last"]),
        node("Squeeze", ["last", "one"], ["numbers"]),
        node("Squeeze", ["boxes", "none"], ["all"]),
        node("Gather", ["all", "numbers"], ["kept"]),
    ],
    [INFO("boxes", F, [1, "rows", 4]), INFO("scores", F, [1, 2, "rows"])],
    {"selected": I, "kept": F},
)
LIMITS = {"most": np.array([5]), "iou": np.array([0.5], np.float32)}
LIMITS |= {name: np.array([n]) for n, name in enumerate(("none", "one", "two", "three"))}


def write(path: Path, case: tuple[list, list, dict[str, int]]) -> Path:
    nodes, inputs, outputs = case
    used = {name for one in nodes for name in one.input}
    weights = {name: array for name, array in (WEIGHTS | LIMITS).items() if name in used}
    model = onnx.load(saved(path, nodes, inputs, list(outputs), weights))
    for output in model.graph.output:
        output.type.tensor_type.elem_type = outputs[output.name]
    onnx.save(model, path)
    return path


def drawn(rows: int) -> Feed:
    return {"x": np.random.default_rng(rows).integers(-2, 3, (rows, 4)).astype(np.float32)}


def boxes(rows: int) -> Feed:
    rng = np.random.default_rng(rows)
    corners = np.sort(rng.random((1, rows, 2, 2), np.float32), 2).reshape(1, rows, 4)
    return {"boxes": corners, "scores": rng.random((1, 2, rows), np.float32)}


@pytest.mark.parametrize(
    ("case", "draw"),
    [(PLACES, drawn), (ROWS, drawn), (COMPRESSED, drawn), (DISTINCT, drawn), (BOXES, boxes)],
    ids=["places", "rows", "compressed", "distinct", "boxes"],
)
def test_what_is_found_is_as_long_as_it_is(tmp_path: Path, case: tuple, draw: Callable[[int], Feed]) -> None:
    model = write(tmp_path / "m.onnx", case)
    dims = {"rows": range(1, MOST + 1)}
    modelc.compile(model, output=tmp_path / "p.modelc", dims=dims, verify=case is PLACES, database=False)
    session = ort.InferenceSession(model)
    with modelc.load(tmp_path / "p.modelc") as opened:
        for rows in (1, 2, 3, 7, 8, 20, 39, MOST, 5):
            found = opened.run(draw(rows))
            for name, expected in zip(case[2], session.run(None, draw(rows)), strict=True):
                assert found[name].shape == expected.shape and found[name].flags.c_contiguous
                np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def test_another_machine_says_how_much_there_is(tmp_path: Path) -> None:
    skip_without_tools("aarch64-linux-gnu")
    model = write(tmp_path / "m.onnx", PLACES)
    dims = {"rows": range(1, MOST + 1)}
    modelc.compile(model, "cortex-a76", tmp_path / "arm.modelc", dims=dims, verify=False, database=False)
    for rows in (3, 20):
        (expected,) = ort.InferenceSession(model).run(None, drawn(rows))
        assert np.array_equal(modelc.run(tmp_path / "arm.modelc", drawn(rows))["places"], expected)


JAVASCRIPT = """
import { load } from "./found.modelc/found.mjs";
const model = await load();
for (const rows of [3, 20]) {
    const x = Float32Array.from({ length: 4 * rows }, (_, k) => (k % 3) - 1);
    console.log(model.runShaped({ x: [rows, 4] }, { x }).places.join(" "));
}
"""


@pytest.mark.skipif(not (shutil.which("node") and find_spec("ziglang")), reason="needs Node.js and ziglang")
def test_javascript_reads_what_a_run_has(tmp_path: Path) -> None:
    model = write(tmp_path / "found.onnx", PLACES)
    asked = {"dims": {"rows": range(1, MOST + 1)}, "verify": False, "database": False}
    modelc.compile(model, "wasm32-simd", tmp_path / "found.modelc", **asked)
    (tmp_path / "app.mjs").write_text(JAVASCRIPT)
    done = subprocess.run(["node", "app.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    for rows, line in zip((3, 20), done.stdout.splitlines(), strict=True):
        x = (np.arange(4 * rows) % 3 - 1).reshape(rows, 4)
        assert line == " ".join(map(str, np.array(np.nonzero(x > 0)).reshape(-1)))


def test_where_another_rule_holds_is_a_sentence(tmp_path: Path) -> None:
    """Of fewer rows than are asked for, all are the best."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "none"], ["rows"]),
        node("Min", ["rows", "most"], ["k"]),
        node("TopK", ["x", "k"], ["best", "where"], axis=0),
    ]
    model = write(tmp_path / "m.onnx", (nodes, X, {"best": F, "where": I}))
    with pytest.raises(
        ModelError, match=r"with --dim rows=1 the output 'best' is \[1, 4\], and what holds .* \[5, 4\]"
    ):
        modelc.compile(model, output=tmp_path / "p.modelc", dims={"rows": range(1, MOST + 1)}, database=False)
    modelc.compile(model, output=tmp_path / "p.modelc", dims={"rows": range(5, MOST + 1)}, database=False)
