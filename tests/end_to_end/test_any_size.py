"""One package for every size of its inputs: at sizes that it was not compiled for beside ONNX Runtime, from Python and
from C; sizes that it does not take are sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_models import INFO, node, saved
from onnx import TensorProto

import modelc
from modelc.compile.any_size import any_size as with_open_sizes
from modelc.errors import ModelError
from modelc.package import read_package
from modelc.runtime import ModelError as LoadedError

F, I = TensorProto.FLOAT, TensorProto.INT64
Feed = dict[str, np.ndarray]


def perceptron(path: Path) -> Path:
    """Rows of any number -> two products, a softmax."""
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Add", ["a", "b1"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w2"], ["d"]),
        node("Softmax", ["d"], ["y"], axis=-1),
    ]
    weights = {"w1": (40, 72), "b1": (72,), "w2": (72, 10)}
    drawn = {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in weights.items()}
    return _saved(path, nodes, [INFO("x", F, ["rows", 40])], ["y"], drawn)


def encoder(path: Path) -> Path:
    """Tokens and a mask of any length -> attention, the beginning of a table, sums over all."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Gather", ["table", "ids"], ["words"]),
        node("Shape", ["ids"], ["shape"]),
        node("Slice", ["shape", "one", "two"], ["length"]),
        node("Slice", ["positions", "zero", "length", "one"], ["places"]),
        node("Add", ["words", "places"], ["x"]),
        *(node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["there"], to=F),
        node("Sub", ["there", "unit"], ["away"]),
        node("Mul", ["away", "huge"], ["bias"]),
        node("Unsqueeze", ["bias", "one"], ["over"]),
        node("Add", ["scores", "over"], ["kept"]),
        node("Softmax", ["kept"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["hidden"]),
        node("ReduceMean", ["hidden"], ["pooled"], axes=[1], keepdims=0),
    ]
    weights = {f"w{n}": rng.standard_normal((24, 24)).astype(np.float32) / 4 for n in "qkv"}
    weights |= {"table": rng.standard_normal((50, 24)), "positions": rng.standard_normal((1, 40, 24))}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    weights |= {"unit": np.float32(1), "huge": np.float32(1e9)}
    weights |= {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    inputs = [INFO("ids", I, [1, "seq"]), INFO("mask", I, [1, "seq"])]
    return _saved(path, nodes, inputs, ["hidden", "pooled"], weights, opset=13)


def pictures(path: Path) -> Path:
    """Pictures of any height and width, in steps of 8 -> convolutions (one by Winograd's rule), windows, sums."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1], group=16),
        node("Conv", ["c", "w2"], ["d"]),
        node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", ["e", "", "scales"], ["f"], mode="nearest"),
        node("Conv", ["f", "w3"], ["g"], pads=[1, 1, 1, 1]),
        node("Add", ["d", "g"], ["map"]),
        node("GlobalAveragePool", ["map"], ["pooled"]),
    ]
    shapes = {"w0": (16, 3, 3, 3), "w1": (16, 1, 3, 3), "w2": (24, 16, 1, 1), "w3": (24, 24, 3, 3)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}
    weights |= {"scales": np.array([1, 1, 2, 2], np.float32)}
    return _saved(path, nodes, [INFO("x", F, [1, 3, "height", "width"])], ["map", "pooled"], weights, opset=13)


def _saved(
    path: Path, nodes: list[onnx.NodeProto], inputs: list, outputs: list[str], weights: Feed, opset: int = 17
) -> Path:
    saved(path, nodes, inputs, outputs, weights)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return path


def rows(n: int) -> Feed:
    return {"x": np.random.default_rng(n).standard_normal((n, 40)).astype(np.float32)}


def tokens(n: int) -> Feed:
    rng = np.random.default_rng(n)
    return {"ids": rng.integers(0, 50, (1, n)), "mask": (np.arange(n) <= n * 2 // 3).astype(np.int64)[None]}


def picture(height: int, width: int) -> Feed:
    return {"x": np.random.default_rng(height).standard_normal((1, 3, height, width)).astype(np.float32)}


CASES = {
    "rows": (perceptron, {"rows": range(1, 33)}, [rows(n) for n in (1, 2, 3, 7, 12, 20, 31, 32)]),
    "tokens": (encoder, {"seq": range(1, 41)}, [tokens(n) for n in (1, 2, 5, 9, 15, 16, 33, 40)]),
    "pictures": (
        pictures,
        {"height": range(8, 97, 8), "width": range(8, 65, 8)},
        [picture(8 * h, 8 * w) for h, w in ((1, 1), (1, 8), (12, 1), (2, 3), (5, 5), (7, 4), (11, 7), (12, 8))],
    ),
}


Made = Callable[[str], tuple[Path, Path, list[Feed]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Of a case the model, its package for any size, and inputs of sizes that it was not compiled for."""

    @cache
    def of_case(case: str) -> tuple[Path, Path, list[Feed]]:
        make, dims, feeds = CASES[case]
        folder = tmp_path_factory.mktemp(case)
        model = make(folder / "model.onnx")
        modelc.compile(model, output=folder / "any.modelc", dims=dims)
        return model, folder / "any.modelc", feeds

    return of_case


@pytest.mark.parametrize("case", CASES)
def test_a_package_takes_every_size(made: Made, case: str) -> None:
    model, package, feeds = made(case)
    session = ort.InferenceSession(model)
    names = [output.name for output in session.get_outputs()]
    with modelc.load(package) as opened:
        first = opened.run(feeds[-2])
        kept = {name: array.copy() for name, array in first.items()}
        for feed in (*feeds, *reversed(feeds)):
            outputs = opened.run(feed)
            for name, expected in zip(names, session.run(None, feed), strict=True):
                near = 2e-5 * max(1.0, float(np.abs(expected).max()))  # Winograd's rule rounds by the largest
                np.testing.assert_allclose(outputs[name], expected, rtol=2e-4, atol=near)
        again = opened.run(feeds[-2])
        for name, array in kept.items():  # the same bits, whatever ran before
            assert np.array_equal(again[name], array)
    manifest = read_package(package).manifest
    (plan,) = manifest.variants
    assert plan.free and manifest.verification is not None and manifest.verification["passed"]
    assert any(step.takes for step in plan.steps)
    assert any(step.error_bound for step in plan.steps) == ("pictures" in str(package))  # Winograd's rule


@pytest.mark.parametrize("given", [0, 33, 100])
def test_a_size_out_of_bounds_is_a_sentence(made: Made, given: int) -> None:
    with modelc.load(made("rows")[1]) as opened:
        with pytest.raises(LoadedError, match=f"'x' has {given} along dimension 0, which is 'rows': expected 1 to 32"):
            opened.run({"x": np.zeros((given, 40), np.float32)})
        with pytest.raises(LoadedError, match="dimension 1: expected 40"):
            opened.run({"x": np.zeros((3, 41), np.float32)})
        assert opened.run(rows(3))["y"].shape == (3, 10)


def test_inputs_that_disagree_are_a_sentence(made: Made) -> None:
    feed = {**tokens(7), "mask": tokens(8)["mask"]}
    with modelc.load(made("tokens")[1]) as opened, pytest.raises(LoadedError, match="expected 7, by the model"):
        opened.run(feed)


@pytest.mark.parametrize(
    ("dims", "sentence"),
    [
        ({"rows": range(0, 5)}, "expected sizes from 1 on"),
        ({"rows": range(5, 5)}, "expected sizes from 1 on"),
        ({"rows": range(3, 33, 4)}, "in steps of 4"),
        ({"lines": range(1, 5)}, "'rows'"),
    ],
)
def test_ranges_that_are_none_are_sentences(tmp_path: Path, dims: dict[str, range], sentence: str) -> None:
    model = perceptron(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=sentence):
        modelc.compile(model, output=tmp_path / "any.modelc", dims=dims)
    assert not (tmp_path / "any.modelc").exists()


def test_more_sizes_than_a_library_has_are_a_sentence(tmp_path: Path) -> None:
    model = perceptron(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="17 dimensions are open; at most 16"):
        with_open_sizes(model, {f"d{k}": range(1, 5) for k in range(17)})
