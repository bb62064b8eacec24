"""Size as a constraint: what constants take, and compiling within limits."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from small_model import save

import modelc
from modelc.compile.config import load_config
from modelc.compile.limits import Limits
from modelc.errors import ConfigError
from modelc.package import read_package
from modelc.runtime import load
from modelc.space.constants import Within
from modelc.target import load_target

TARGET = "x86-64-v3"
UPWARDS = 0x800  # FE_UPWARD of x86


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution that Winograd's rule computes, and a product."""
    rng = np.random.default_rng(0)
    weights = {
        "w": (rng.standard_normal((64, 32, 3, 3)) / 17).astype(np.float32),
        "v": (rng.standard_normal((64, 32)) / 8).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "window", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    return save(tmp_path_factory.mktemp("sizes") / "net.onnx", nodes, {"x": [1, 32, 24, 24]}, {"y": [1, 32]}, weights)


def compiled(model: Path, folder: Path, **options: object) -> modelc.CompileResult:
    options = {"target": TARGET, "output": folder / "p", "verify": False, "database": False, **options}
    return modelc.compile(model, **options)  # type: ignore[arg-type]


def test_growth_is_said_and_limits_are_kept(model: Path, tmp_path: Path) -> None:
    plain = 4 * (64 * 32 * 9 + 64 * 32)
    free = compiled(model, tmp_path, max_params="100x", output=tmp_path / "free")
    assert free.constants.model_bytes == plain and free.constants.stored_bytes == free.params_bytes > 2 * plain
    (row,) = free.constants.growth
    assert row.why == "sums of weights (winograd)" and "window" in row.nodes
    kept = compiled(model, tmp_path, max_params=f"{plain}B", params="stored")
    assert kept.params_bytes == plain == kept.constants.stored_bytes and kept.constants.schedules
    assert 0 <= kept.constants.slower[0] < 10
    assert read_package(tmp_path / "p").manifest.params_bytes == plain
    if set(load_target(TARGET).features) <= set(load_target("native").features):
        feed = np.random.default_rng(1).standard_normal((1, 32, 24, 24)).astype(np.float32)
        with load(tmp_path / "p") as opened:
            small = opened.run({"x": feed})["y"].copy()
        with load(tmp_path / "free") as opened:
            np.testing.assert_allclose(small, opened.run({"x": feed})["y"], rtol=1e-3, atol=1e-4)


def test_constants_that_fill_no_vector_are_stored_as_they_are(tmp_path: Path) -> None:
    """20 channels are two and a half vectors: within 1.0x they are multiplied in narrower ones, and the package is
    verified."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((48, 20)).astype(np.float32) / 7}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    model = save(tmp_path / "net.onnx", nodes, {"x": [64, 48]}, {"y": [64, 20]}, weights)
    free = compiled(model, tmp_path, max_params="100x", output=tmp_path / "free")
    assert free.params_bytes > 4 * 48 * 20
    runs = set(load_target(TARGET).features) <= set(load_target("native").features)
    kept = compiled(model, tmp_path, max_params="1.0x", verify=runs)
    assert kept.params_bytes == 4 * 48 * 20 == read_package(tmp_path / "p").manifest.params_bytes


def test_the_default_limit_gives_way_to_what_is_much_faster(tmp_path: Path) -> None:
    """Minimal filtering of 7 x 7 taps with strides of two reads 8 x 8, 1.31 times as many: in vectors of 16 the direct
    convolution would be slower by more than a tenth."""
    weights = {"w": np.random.default_rng(0).standard_normal((64, 3, 7, 7)).astype(np.float32) / 12}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[3, 3, 3, 3])]
    model = save(tmp_path / "net.onnx", nodes, {"x": [1, 3, 224, 224]}, {"y": [1, 64, 112, 112]}, weights)
    free = compiled(model, tmp_path, target="x86-64-v4", output=tmp_path / "free")
    assert 1.2 * free.file_bytes < free.params_bytes < 2 * free.file_bytes
    assert any("no schedules for 1.2 times it" in note for note in free.notes)
    limited = compiled(model, tmp_path, target="x86-64-v4", max_params="1.2x")
    assert limited.params_bytes < 1.2 * free.file_bytes
    assert not any("no schedules for" in note for note in limited.notes)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"max_params": "0.5x"}, r"allows 40960 bytes of parameters, and the least .* is 81920 \(1x\)"),
        ({"max_arena": "1KB"}, "--max-arena 1KB allows 1000 bytes, and the arena has "),
        ({"max_library": "1KiB"}, r"--max-library 1KiB allows 1024 bytes, and libnet.so has "),
        ({"max_params": "much"}, "--max-params much is no size: expected bytes such as 400KB or 4MiB, or times"),
        ({"max_arena": "1.2x"}, "--max-arena 1.2x is no size"),
    ],
)
def test_limits_that_cannot_be_met_are_refused(
    model: Path, tmp_path: Path, limit: dict[str, str], sentence: str
) -> None:
    plain = load_config().allowing(winograd=False, strassen=False, chains=False)
    with pytest.raises(ConfigError, match=sentence):
        compiled(model, tmp_path, config=plain, **limit)
    assert not list(tmp_path.iterdir())


def test_what_size_costs_is_said() -> None:
    """Schedules that were taken for the default limit, and constants for which there are none."""
    within = Within(1000, 1150, slower=(0.013,), schedules={"task": None})  # type: ignore[dict-item]
    (note,) = Limits().notes(within, 1000)
    assert "within 1.2 times the model's file, 1.3% slower by estimate" in note
    (note,) = Limits().notes(replace(within, model_bytes=1400, stored_bytes=1500), 1000)
    assert "are 1.50 times the model's file: what the model computes from its constants is 1.40 times that" in note
    (note,) = Limits().notes(replace(within, stored_bytes=1500), 1000)
    assert "are 1.50 times the model's file: no schedules for 1.2 times it are at most 10% slower" in note
    assert not Limits(params="100x").notes(within, 1000) and not Limits().notes(replace(within, slower=(0.0,)), 1000)


def test_sums_of_weights_are_made_when_the_package_is_opened(model: Path, tmp_path: Path) -> None:
    """By default where they would take more than 1.2 times the model's file; the kernels, and what they compute, are
    the same bit for bit."""
    packages = {
        name: compiled(model, tmp_path, output=tmp_path / name, **options)
        for name, options in {"auto": {}, "stored": {"params": "stored", "max_params": "100x"}}.items()
    }
    auto, stored = packages["auto"], packages["stored"]
    assert auto.constants.opened and auto.params_bytes < 1.2 * auto.file_bytes
    assert not stored.constants.opened and stored.params_bytes > 2 * auto.params_bytes
    assert stored.params_bytes == auto.params_bytes - 4 * 64 * 32 * 9 + auto.made_bytes
    manifest = read_package(tmp_path / "auto").manifest
    spaces = {a.space for step in manifest.variants[0].steps for a in step.arguments}
    assert "made" in spaces and sum(constant.bytes for constant in manifest.made) == auto.made_bytes
    if set(load_target(TARGET).features) <= set(load_target("native").features):
        feed = np.random.default_rng(1).standard_normal((1, 32, 24, 24)).astype(np.float32)
        results = []
        libm = ctypes.CDLL(None)
        libm.fesetround(UPWARDS)  # as a program may have it: opening computes as runs do
        try:
            with load(tmp_path / "auto", threads=1) as opened:
                results.append(opened.run({"x": feed})["y"].copy())
        finally:
            libm.fesetround(0)
        for name in packages:
            with load(tmp_path / name, threads=2) as first, load(tmp_path / name, threads=1) as second:
                results += [opened.run({"x": feed})["y"].copy() for opened in (first, second)]
        assert all(np.array_equal(result, results[0]) for result in results)


def test_a_package_that_is_not_opened_stores_its_sums(model: Path, tmp_path: Path) -> None:
    made = compiled(model, tmp_path, freestanding=True)
    assert not made.made_bytes and made.params_bytes < 1.2 * made.file_bytes
    with pytest.raises(ConfigError, match="a free-standing package is not opened"):
        compiled(model, tmp_path, freestanding=True, params="opened")
    with pytest.raises(ConfigError, match=r"codegen\.params is 'never'; expected stored, opened, auto"):
        text = (Path(modelc.__file__).parents[1] / "configs" / "default.yaml").read_text()
        (tmp_path / "c.yaml").write_text(text.replace("params: auto", "params: never"))
        load_config(tmp_path / "c.yaml")


def test_choices_say_what_is_opened(model: Path, tmp_path: Path) -> None:
    compiled(model, tmp_path, params="opened", output=tmp_path / "first")
    compiled(model, tmp_path, choices=tmp_path / "first", target=None, output=tmp_path / "second")
    params = [(tmp_path / name / "params.bin").read_bytes() for name in ("first", "second")]
    assert params[0] == params[1] and len(params[0]) < 90_000
