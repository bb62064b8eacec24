"""One row by int8 weights on a CPU without VNNI: the weights are multiplied as bytes, and nothing saturates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from quantized_models import run_here

import modelc
from modelc.package import read_package

K, N = 70, 40
DRAWN = np.random.default_rng(0).integers(0, 256, (1, K))
ROWS = (np.full((1, K), 255), np.zeros((1, K), int), np.arange(K)[None] % 2 * 255, np.full((1, K), 128), DRAWN)
BYTES, WORDS = "vpsignb", "vpmaddwd"


def compiled(folder: Path, weights: NDArray[np.int8], rows: int | str, zero: int | None, **options: object) -> Path:
    constants = [numpy_helper.from_array(weights, "w")]
    constants += [] if zero is None else [numpy_helper.from_array(np.array(zero, np.uint8), "z")]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", *["z"] * (zero is not None)], ["y"])],
        "row",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [rows, len(weights)])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [rows, N])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    path = folder / "p.modelc"
    modelc.compile(folder / "m.onnx", run_here("x86-64-v3"), path, database=False, **options)
    return path


def instructions(package: Path) -> list[str]:
    return [step.instruction for step in read_package(package).manifest.variants[0].steps if step.intrinsic]


@pytest.mark.parametrize("zero", [None, 0, 131, 255])
def test_sums_of_the_largest_bytes_are_exact(tmp_path: Path, zero: int | None) -> None:
    weights = np.random.default_rng(1).integers(-127, 128, (K, N)).astype(np.int8)
    weights[:, :3] = 127, -127, 0
    weights[1::2, 3], weights[::2, 3] = 127, -127
    package = compiled(tmp_path, weights, 1, zero)
    assert instructions(package) == [BYTES]
    with modelc.load(package) as model:
        for rows in ROWS:
            exact = (rows - (zero or 0)) @ weights.astype(np.int64)
            assert np.array_equal(model.run({"x": rows.astype(np.uint8)})["y"], exact)


@pytest.mark.parametrize(("high", "instruction"), [(126, BYTES), (127, WORDS)])
def test_minus_128_is_shifted_or_multiplied_in_16_bits(tmp_path: Path, high: int, instruction: str) -> None:
    """|-128| with the sign of an activation is no int8."""
    weights = np.random.default_rng(2).integers(-128, high + 1, (K, N)).astype(np.int8)
    weights[0], weights[1] = -128, high
    package = compiled(tmp_path, weights, 1, 7)
    assert instructions(package) == [instruction]
    with modelc.load(package) as model:
        for rows in ROWS:
            exact = (rows - 7) @ weights.astype(np.int64)
            assert np.array_equal(model.run({"x": rows.astype(np.uint8)})["y"], exact)


@pytest.mark.parametrize(("rows", "options"), [(2, {}), ("rows", {"dims": {"rows": "1..64"}})])
def test_more_rows_share_the_widened_weights(tmp_path: Path, rows: int | str, options: dict[str, object]) -> None:
    """A package for any number of them is one for many."""
    weights = np.where(np.arange(K * N).reshape(K, N) % 3, 127, -127).astype(np.int8)
    package = compiled(tmp_path, weights, rows, None, **options)
    assert set(instructions(package)) == {WORDS}
    with modelc.load(package) as model:
        for count in (2,) if rows == 2 else (1, 5, 64):
            made = model.run({"x": np.full((count, K), 255, np.uint8)})["y"]
            assert np.array_equal(made, np.full((count, K), 255) @ weights.astype(np.int64))
