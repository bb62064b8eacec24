"""Sizes that a run finds: kernels behind NonZero, Compress, NonMaxSuppression and Unique compute what is there, with
nothing, one, few or all found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from sized_models import SELECT, Case, Feeds, N, agree, ints, saved

import modelc
from modelc.ir.sizes import is_sized
from modelc.package import read_package

MANY, WIDE = 512, 16
RNG = np.random.default_rng(0)
X = RNG.standard_normal((MANY, WIDE)).astype(np.float32)
W = RNG.standard_normal((WIDE, 24)).astype(np.float32)
SOME = (0, 1, 2, 3, 17, 200, MANY - 1, MANY, 0, 5)


def chosen(count: int) -> np.ndarray:
    scores = np.zeros(MANY, np.float32)
    scores[np.random.default_rng(count).permutation(MANY)[:count]] = 1
    return scores


def rows(count: int) -> Feeds:
    return {"x": X, "s": chosen(count)}


def apart(count: int) -> Feeds:
    corners = np.stack([np.arange(MANY), np.arange(MANY), np.arange(MANY) + 0.9, np.arange(MANY) + 0.9], 1)
    return {"x": X, "boxes": corners[None].astype(np.float32), "scores": chosen(count)[None, None]}


def repeated(count: int) -> Feeds:
    return {"x": X[np.arange(MANY) % max(count, 1)]}


PRODUCTS = [N("MatMul", ["r", "w"], ["h"]), N("Relu", ["h"], ["h1"]), N("Softmax", ["h1"], ["y"], axis=-1)]
AMONG = [  # every row beside every other
    N("Transpose", ["r"], ["across"], perm=[1, 0]),
    N("MatMul", ["r", "across"], ["near"]),
    N("Softmax", ["near"], ["weights"], axis=-1),
    N("MatMul", ["weights", "r"], ["z"]),
    N("ReduceMax", ["z"], ["best"], axes=[0], keepdims=0),
]
BOXES = [
    N("NonMaxSuppression", ["boxes", "scores", "every", "iou", "half"], ["selected"]),
    N("Gather", ["selected", "two"], ["number"], axis=1),
    N("Gather", ["x", "number"], ["r"], axis=0),
]
CONSTANTS = {"half": np.float32([0.5]), "w": W, "every": ints(MANY), "iou": np.float32([0.5]), "two": np.int64(2)}
CASES = {
    "non_zero": ([*SELECT, *PRODUCTS, *AMONG], ("y", "z", "best"), rows),
    "compress": (
        [N("Greater", ["s", "half"], ["m"]), N("Compress", ["x", "m"], ["r"], axis=0), *PRODUCTS, *AMONG],
        ("y", "z", "best"),
        rows,
    ),
    "boxes": ([*BOXES, *PRODUCTS], ("selected", "y"), apart),
    "unique": ([N("Unique", ["x"], ["r", "", "", "times"], axis=0), *PRODUCTS], ("times", "y"), repeated),
}


def compiled(folder: Path, name: str, **arguments: object) -> tuple[Path, Path]:
    nodes, outputs, feed = CASES[name]
    used = {x for node in nodes for x in node.input}
    case = Case(nodes, outputs, {n: x for n, x in CONSTANTS.items() if n in used}, [feed(3)])
    model = saved(case, folder / f"{name}.onnx")
    arguments = {"verify": False, **arguments}
    modelc.compile(model, output=folder / f"{name}.modelc", database=False, **arguments)
    return model, folder / f"{name}.modelc"


@pytest.mark.parametrize("name", CASES)
def test_nothing_one_few_and_all(tmp_path: Path, name: str) -> None:
    model, package = compiled(tmp_path, name)
    session = ort.InferenceSession(model)
    for threads in (1, 2):
        with modelc.load(package, threads=threads) as opened:
            for count in SOME:
                feed = CASES[name][2](count)
                agree(opened.run(feed), session.run(None, feed), CASES[name][1])


@pytest.mark.parametrize("name", CASES)
def test_work_goes_with_what_is_there(tmp_path: Path, name: str) -> None:
    _, package = compiled(tmp_path, name)
    plan = read_package(package).manifest.variants[0]
    (size,) = plan.free
    assert size.is_found and size.most == MANY
    assert any(is_sized(step.extent) for step in plan.steps)
    few, most = (sum(step.flops for step in plan.at({size.name: n}).steps) for n in (8, MANY))
    assert few * MANY / 8 < 1.01 * most


def test_any_choice_of_rows(tmp_path: Path) -> None:
    model, package = compiled(tmp_path, "non_zero")
    session = ort.InferenceSession(model)
    with modelc.load(package) as opened:

        @settings(max_examples=40, deadline=None)
        @given(st.sets(st.integers(0, MANY - 1), max_size=40), st.booleans())
        def check(places: set[int], others: bool) -> None:
            scores = np.full(MANY, float(others), np.float32)
            scores[[*places]] = not others
            agree(opened.run({"x": X, "s": scores}), session.run(None, {"x": X, "s": scores}), CASES["non_zero"][1])

        check()


def test_kernels_are_judged_at_what_is_found(tmp_path: Path) -> None:
    model, package = compiled(tmp_path, "non_zero", verify=True)
    for inputs in (None, rows(0), rows(1), rows(MANY)):
        report = modelc.verify(package, model, inputs)
        assert report.passed and not report.failure and all(kernel.samples for kernel in report.kernels)
    assert report.sizes == ()


def test_choices_rebuild_the_package(tmp_path: Path) -> None:
    model, package = compiled(tmp_path, "non_zero")
    again = tmp_path / "again.modelc"
    modelc.compile(model, output=again, choices=package / "choices.json", verify=False)
    files = sorted(path.name for path in package.iterdir())
    assert files == sorted(path.name for path in again.iterdir())
    for name in files:
        assert (package / name).read_bytes() == (again / name).read_bytes(), name


def test_what_is_found_among_what_was_found(tmp_path: Path) -> None:
    """The second size is at most the first: both are those of the run."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [MANY]) for n in ("s", "t")]
    nodes = [
        N("Greater", ["s", "half"], ["m"]),
        N("Compress", ["t", "m"], ["some"], axis=0),
        N("Greater", ["some", "half"], ["n"]),
        N("Compress", ["some", "n"], ["fewer"], axis=0),
        N("Exp", ["some"], ["a"]),
        N("Exp", ["fewer"], ["b"]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["k"]) for n in "ab"]
    half = onnx.numpy_helper.from_array(np.float32(0.5), "half")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [half])
    model = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    modelc.compile(model, output=tmp_path / "p.modelc", database=False)
    assert len(read_package(tmp_path / "p.modelc").manifest.variants[0].free) == 2
    session = ort.InferenceSession(model)
    with modelc.load(tmp_path / "p.modelc") as opened:
        for count, other in ((0, 3), (MANY, 0), (MANY, MANY), (40, 100), (1, MANY)):
            feed = {"s": chosen(count), "t": chosen(other)}
            agree(opened.run(feed), session.run(None, feed), ("a", "b"))
