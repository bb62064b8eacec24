"""Bytes, weights of 4 bits and float16 in packages for any size: what is calibrated, once, holds at every size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from control_models import INFO, F, node, saved
from tiny_package import skip_without_tools

import modelc
from modelc.errors import ConfigError
from modelc.package import read_package
from modelc.target import load_target

ROWS = range(1, 33)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((128, 96)), "b": rng.standard_normal(96), "w2": rng.standard_normal((96, 10))}
    nodes = [
        node("MatMul", ["x", "w1"], ["a"]),
        node("Add", ["a", "b"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "w2"], ["y"]),
    ]
    arrays = {name: (array / 8).astype(np.float32) for name, array in weights.items()}
    return saved(tmp_path_factory.mktemp("precision") / "m.onnx", nodes, [INFO("x", F, ["rows", 128])], ["y"], arrays)


def x(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, 128)).astype(np.float32)


def near(model: Path, package: Path, share: float) -> None:
    """Compares a package with the float model at sizes of which it was not made."""
    session = ort.InferenceSession(model)
    with modelc.load(package) as opened:
        for rows in (1, 2, 9, 20, 32):
            (expected,) = session.run(None, {"x": x(rows)})
            y = opened.run({"x": x(rows)})["y"]
            assert y.shape == expected.shape and np.abs(y - expected).max() < share * np.abs(expected).max()


def test_what_is_calibrated_holds_at_every_size(model: Path, tmp_path: Path) -> None:
    """Samples are of several sizes, and what they say is one recipe."""
    samples = tmp_path / "samples"
    samples.mkdir()
    for rows in range(1, 10):
        np.savez(samples / f"{rows:02}.npz", x=x(rows))
    asked = {"precision": "int8", "calibrate": samples, "max_drop": 0.1, "dims": {"rows": ROWS}}
    result = modelc.compile(model, output=tmp_path / "p.modelc", **asked)
    assert result.recipe is not None and result.recipe.narrow
    assert result.report is not None and result.report.passed and {"rows": 32} in result.report.sizes
    near(model, tmp_path / "p.modelc", 0.05)
    modelc.compile(model, output=tmp_path / "again.modelc", choices=tmp_path / "p.modelc", verify=False)
    for name in ("params.bin", "choices.json"):
        assert (tmp_path / "p.modelc" / name).read_bytes() == (tmp_path / "again.modelc" / name).read_bytes()
    assert modelc.verify(tmp_path / "p.modelc", model, check="quick").passed


def test_weights_have_4_bits_without_a_word_on_sizes(model: Path, tmp_path: Path) -> None:
    modelc.compile(model, output=tmp_path / "p.modelc", weights="int4-float", verify=False)
    (plan,) = read_package(tmp_path / "p.modelc").manifest.variants
    assert plan.free and json.loads((tmp_path / "p.modelc/choices.json").read_text())["packed"]
    near(model, tmp_path / "p.modelc", 0.3)


def test_float16_goes_from_size_to_size(model: Path, tmp_path: Path) -> None:
    skip_without_tools(load_target("cortex-a76").triple)
    asked = {"precision": "f16", "dims": {"rows": range(1, 9)}}
    result = modelc.compile(model, "cortex-a76", tmp_path / "p.modelc", **asked)
    assert result.report is not None and result.report.passed


def test_what_is_decided_at_one_size_is_a_sentence(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision auto, which is decided at one size \(say f32 or bf16\)"):
        modelc.compile(model, "sapphire-rapids", tmp_path / "p.modelc", precision="auto", dims={"rows": ROWS})
