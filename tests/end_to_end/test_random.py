"""Random numbers: the same with the same seed on any number of threads, others in every run, as they should be
distributed, and the same for ONNX Runtime when a package is verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from random_number_models import F, model_of, speech
from scipy import stats

import modelc
from modelc.errors import ModelError, VerificationError
from modelc.frontend.onnx import import_model
from modelc.frontend.witness.given import numbers
from modelc.verify import reference

TEXT = {"text": np.arange(12, dtype=np.int64)[None]}
FEED = {**TEXT, "prob": np.full((50, 20), 0.3, np.float32), "logits": np.zeros((3, 7), np.float32)}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model and its package, verified."""
    folder = tmp_path_factory.mktemp("speech")
    onnx.save(speech(), folder / "speech.onnx")
    result = modelc.compile(folder / "speech.onnx", output=folder / "speech.modelc", database=False)
    assert result.report is not None and result.report.passed and len(result.report.outputs) == 7
    return folder / "speech.onnx", folder / "speech.modelc"


def test_a_seed_says_what_is_drawn_and_every_run_draws_anew(compiled: tuple[Path, Path]) -> None:
    with modelc.load(compiled[1]) as a, modelc.load(compiled[1], threads=2) as b, modelc.load(compiled[1], seed=7) as c:
        first, same, other = a.run(FEED), b.run(FEED), c.run(FEED)
        second, again = a.run(FEED), b.run(FEED)
        a.seed(7)
        for name, array in a.run(FEED).items():
            np.testing.assert_array_equal(array, other[name])
        with pytest.raises(modelc.runtime.ModelError, match=r"seed is -1; expected a whole number"):
            a.seed(-1)
    assert set(first) == {"wave", "phase", "eps", "hits", "dropped", "token", "mask"}
    for name in first:
        np.testing.assert_array_equal(first[name], same[name])
        np.testing.assert_array_equal(second[name], again[name])
        assert not np.array_equal(first[name], second[name])
    for name in set(first) - {"phase"}:  # whose node has a seed of its own
        assert not np.array_equal(first[name], other[name])
    np.testing.assert_array_equal(first["phase"], other["phase"])
    np.testing.assert_allclose(first["dropped"], first["wave"] * first["mask"] / np.float32(0.7), rtol=1e-5)
    assert set(np.unique(first["hits"])) == {0, 1} and 0.2 < first["hits"].mean() < 0.4
    assert first["token"].shape == (3, 6) and set(np.unique(first["token"])) <= set(range(7))


def test_a_seed_is_a_number_of_64_bits(compiled: tuple[Path, Path]) -> None:
    for seed in (-1, 1 << 64):
        with pytest.raises(modelc.runtime.ModelError, match=r"seed is .*; expected a whole number from 0 to 184"):
            modelc.load(compiled[1], seed=seed)
    with modelc.load(compiled[1], seed=(1 << 64) - 1) as model:
        assert np.isfinite(model.run(FEED)["wave"]).all()


def test_verification_compares_what_was_drawn(compiled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, package = compiled
    report = modelc.verify(package, model, samples=2, per_layer=True)
    assert report.passed and report.samples == 2 and len(report.layers or ()) > 5
    monkeypatch.setattr(reference, "numbers", lambda graph, seed, run: numbers(graph, seed + 1, run))
    with pytest.raises(VerificationError):
        modelc.compile(model, output=package.with_name("other.modelc"), database=False)
    assert not package.with_name("other.modelc").exists()


def test_many_numbers_are_distributed_as_they_should_be(tmp_path: Path) -> None:
    shape = [400, 250]
    nodes = [
        helper.make_node("RandomNormal", [], ["normal"], shape=shape, mean=2.0, scale=3.0),
        helper.make_node("RandomNormal", [], ["another"], shape=shape),
        helper.make_node("RandomUniform", [], ["uniform"], shape=shape, low=-1.0, high=4.0),
        helper.make_node("RandomUniform", [], ["double"], shape=shape, dtype=TensorProto.DOUBLE),
        helper.make_node("RandomNormal", [], ["half"], shape=shape, dtype=TensorProto.FLOAT16),
        helper.make_node("Multinomial", ["logits"], ["classes"], sample_size=20_000),
        helper.make_node("Identity", ["x"], ["y"]),
    ]
    outputs = {"normal": F, "another": F, "uniform": F, "double": TensorProto.DOUBLE, "half": TensorProto.FLOAT16}
    outputs |= {"classes": TensorProto.INT32, "y": F}
    chances = np.array([[0.1, 0.2, 0.7]])
    model = model_of(nodes, {"x": (F, [1])}, outputs, logits=np.log(chances).astype(np.float32))
    onnx.save(model, tmp_path / "many.onnx")
    modelc.compile(tmp_path / "many.onnx", output=tmp_path / "many.modelc", database=False, verify=False)
    with modelc.load(tmp_path / "many.modelc", threads=2) as package:
        found = package.run({"x": np.zeros(1, np.float32)})
    drawn = numbers(import_model(tmp_path / "many.onnx"), 0, 0)
    for name in ("normal", "another", "uniform", "double", "half"):
        assert found[name].dtype == drawn[name].dtype and found[name].shape == (400, 250)
        np.testing.assert_allclose(found[name], drawn[name], rtol=1e-3 if name == "half" else 1e-5, atol=1e-5)
    laws = {"normal": stats.norm(2, 3), "another": stats.norm(), "uniform": stats.uniform(-1, 5)}
    laws |= {"double": stats.uniform(), "half": stats.norm()}
    for name, law in laws.items():
        x = found[name].astype(np.float64).ravel()
        assert stats.kstest(x, law.cdf).statistic < 0.006, name  # 1.95 / sqrt(n) is exceeded once in a thousand
        neighbours = np.corrcoef(x[:-1], x[1:])[0, 1], np.corrcoef(x[:-250], x[250:])[0, 1]
        assert max(map(abs, neighbours)) < 0.015, name
    assert abs(np.corrcoef(found["normal"].ravel(), found["another"].ravel())[0, 1]) < 0.015
    assert np.unique(found["double"]).size == 100_000
    counts = np.bincount(found["classes"].ravel(), minlength=3) / 20_000
    np.testing.assert_allclose(counts, chances[0], atol=0.015)


def test_what_cannot_be_given_to_onnx_runtime_is_refused(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["n"], shape=[2]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info("n", F, [2])],
    )
    loop = helper.make_node("Loop", ["count", "go"], ["y"], name="loop", body=inner)
    model = model_of([loop], {"x": (F, [1])}, {"y": F}, count=np.int64(3), go=np.array(True))
    onnx.save(model, tmp_path / "loop.onnx")
    with pytest.raises(ModelError, match="inside a branch, a loop or a function"):
        import_model(tmp_path / "loop.onnx")
