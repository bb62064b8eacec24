"""One package for every size of its inputs: at sizes that it was not compiled for beside ONNX Runtime, from Python and
from C; sizes that it does not take are sentences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from any_size_models import averaged, encoder, filtered, one_hot, perceptron, pictures, pooled, strided

import modelc
from modelc.compile.any_size import any_size as with_open_sizes
from modelc.compile.choices import read_choices_file
from modelc.errors import ModelError
from modelc.package import read_package
from modelc.runtime import ModelError as LoadedError
from modelc.runtime import loader
from modelc.space import any_size as schedules_of_any_size

Feed = dict[str, np.ndarray]


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


@pytest.mark.parametrize(
    ("case", "target"), [*((case, "native") for case in CASES), ("tokens", "x86-64-v4"), ("tokens", "riscv64-v")]
)
def test_the_best_schedule_holds_at_every_size(case: str, target: str, tmp_path: Path) -> None:
    make, dims, _ = CASES[case]
    result = modelc.compile(make(tmp_path / "m.onnx"), target, tmp_path / "any.modelc", dims=dims, verify=False)
    assert result.kernels and result.rejected == 0


@pytest.mark.parametrize("matter", ["1", "1,8"])
def test_where_one_of_a_batch_matters_other_loops_go_to_threads(matter: str, tmp_path: Path) -> None:
    model = filtered(tmp_path / "model.onnx")
    dims = {"batch": f"1..32@{matter}"}
    modelc.compile(model, "x86-64-v3", tmp_path / "any.modelc", dims=dims, database=False, verify=False)
    (candidate,) = read_choices_file(tmp_path / "any.modelc").tasks.values()
    parallel = {str(loop) for s in candidate.blocks.values() for loop, tag in s.tags.items() if tag == "parallel"}
    assert parallel == {"th0", "pc0"}  # rows of tiles, and of the input: not n0 and pa0


def test_a_schedule_for_one_may_be_none_for_several(tmp_path: Path) -> None:
    model = one_hot(tmp_path / "model.onnx")
    dims = {"batch": "1..64@1"}
    made = modelc.compile(model, "x86-64-v3", tmp_path / "any.modelc", dims=dims, database=False, verify=False)
    assert made.kernels == 2 and made.rejected


def test_the_schedule_that_every_task_has_covers_what_is_one_at_the_usual_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order = schedules_of_any_size._in_order
    monkeypatch.setattr(schedules_of_any_size, "_in_order", lambda *given: [[*in_order(*given)][-1]])
    model = strided(tmp_path / "model.onnx")  # one row up to a height of 32
    modelc.compile(model, output=tmp_path / "any.modelc", dims={"height": "1..256@4"}, database=False)


def test_attention_over_scores_in_bytes_is_one_task_at_all_sizes_or_at_none(tmp_path: Path) -> None:
    model = pooled(tmp_path / "model.onnx")
    modelc.compile(model, output=tmp_path / "any.modelc", dims={"batch": range(1, 65)})
    session = ort.InferenceSession(model)
    with modelc.load(tmp_path / "any.modelc") as loaded:
        for batch in (1, 5, 40, 64):
            x = np.random.default_rng(batch).standard_normal((batch, 40, 32)).astype(np.float32)
            np.testing.assert_allclose(loaded.run({"x": x})["y"], session.run(None, {"x": x})[0], atol=1e-2)


def test_an_extent_may_be_another_at_an_end_of_a_narrow_range_alone(tmp_path: Path) -> None:
    model = averaged(tmp_path / "model.onnx")  # 3 rows at 48, and 4 above
    modelc.compile(model, output=tmp_path / "any.modelc", dims={"height": "48..64"})
    session = ort.InferenceSession(model)
    with modelc.load(tmp_path / "any.modelc") as loaded:
        for height in (48, 49, 57, 64):
            x = np.random.default_rng(height).standard_normal((1, 3, height, 20)).astype(np.float32)
            np.testing.assert_allclose(loaded.run({"x": x})["y"], session.run(None, {"x": x})[0], atol=1e-5)


@pytest.mark.parametrize("given", [0, 33, 100])
def test_a_size_out_of_bounds_is_a_sentence(made: Made, given: int) -> None:
    with modelc.load(made("rows")[1]) as opened:
        with pytest.raises(LoadedError, match=f"'x' has {given} along dimension 0, which is 'rows': expected 1 to 32"):
            opened.run({"x": np.zeros((given, 40), np.float32)})
        with pytest.raises(LoadedError, match="dimension 1: expected 40"):
            opened.run({"x": np.zeros((3, 41), np.float32)})
        assert opened.run(rows(3))["y"].shape == (3, 10)


def test_the_library_is_asked_once_whether_shapes_fit(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "MOST_FITTED", 2)
    with modelc.load(made("rows")[1]) as opened:
        asked, fit = [], opened._library.fit

        def counted(*given: Any) -> int:
            asked.append(given)
            return int(fit(*given))

        monkeypatch.setattr(opened._library, "fit", counted)
        for count, total in ((3, 1), (7, 2), (3, 2), (7, 2), (11, 3), (7, 4), (11, 4), (32, 4)):
            assert opened.run(rows(count))["y"].shape == (count, 10)
            assert len(asked) == total


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


def test_a_range_with_sizes_that_the_model_refuses_is_a_sentence(tmp_path: Path) -> None:
    model = pictures(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"'Add_7'.*; this is at height=25, width=40: .*--dim NAME=A..B:STEP"):
        modelc.compile(model, output=tmp_path / "any.modelc", dims={"height": range(8, 97), "width": range(8, 65, 8)})


def test_more_sizes_than_a_library_has_are_a_sentence(tmp_path: Path) -> None:
    model = perceptron(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="17 dimensions are open; at most 16"):
        with_open_sizes(model, {f"d{k}": range(1, 5) for k in range(17)})
