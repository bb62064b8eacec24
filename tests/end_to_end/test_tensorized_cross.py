"""Kernels of tensor intrinsics for other machines, under emulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from emulated_kernels import emulated
from model_seeds import F, model_of
from onnx import helper
from tensor_tasks import EVEN, ODD, RAGGED, contraction_of, from_end_to_end, intrinsics_in, ways_of
from tiny_package import skip_without_tools

import modelc
from modelc.package import read_package
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.target import Target, load_target, shipped_intrinsics

SHIPPED = {one.name: one for one in shipped_intrinsics()}
WANTED = ("matmul", "batch", "grouped", "columns", "odd depth")  # 35 rows, of which blocks of two leave one over
MORE = ("odd channels", "strided", "3D", "odd groups", "rows of batches", "short depth")


def machine(architecture: str) -> Target:
    """A target with all that its architecture's intrinsics need."""
    return load_target({"aarch64": "neoverse-n2", "armv7": "armv7-neon", "riscv64": "riscv64-v"}[architecture])


@pytest.mark.parametrize("architecture", ["aarch64", "armv7", "riscv64"])
def test_every_intrinsic_on_the_emulated_machine(architecture: str) -> None:
    target = machine(architecture)
    cases = {}
    for number, one in enumerate(target.available_intrinsics):  # the other cases by turns
        for case in (*WANTED, MORE[number % len(MORE)]):
            task = contraction_of(one, (EVEN | RAGGED | ODD)[case])
            way = ways_of(task, target)[one.name]
            candidate = tiled_candidate(way, default_knobs(way))
            assert intrinsics_in(candidate) == {one.name}
            cases[f"k_{len(cases)}"] = (from_end_to_end(task), candidate)
    kernels = emulated(cases, target)
    used = {one.name for kernel in kernels.values() for step in kernel.steps for one in step.intrinsics}
    assert used == {one.name for one in SHIPPED.values() if one.architecture == architecture}


@pytest.mark.parametrize("precision, units", [("bf16", "neon-bf"), ("int8", "neon-us")])
@pytest.mark.parametrize(
    "name, rows, depth",
    [("neoverse-n2", 64, 256), ("neoverse-v1", 64, 256), ("cortex-a510", 64, 256), ("neoverse-n2", 35, 101)],
)
def test_packages_for_boards_with_matrix_products_are_right(
    name: str, rows: int, depth: int, precision: str, units: str, tmp_path: Path
) -> None:
    skip_without_tools(load_target(name).triple)
    weights = np.random.default_rng(0).standard_normal((depth, 192)).astype(np.float32) / 16
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], [("x", F, [rows, depth])], [("y", F, [rows, 192])], {"w": weights})
    onnx.save(model, tmp_path / "m.onnx")
    result = modelc.compile(tmp_path / "m.onnx", name, tmp_path / "m.modelc", precision=precision, database=False)
    assert result.report is not None and result.report.passed
    assert f"intrin:{units}" in (read_package(result.path).path / "choices.json").read_text()
