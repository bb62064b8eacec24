"""Long sums in parts: in turn, side by side, in lanes; and when they are chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from sketch_points import accepted_points
from three_ways import check, host_target, task_of

import modelc
from modelc.compile.config import load_config
from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.choose import DEFAULT, chosen
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.target import Target, load_target

TARGET = replace(load_target("x86-64-v4"), cores=1)


def product(m: int, k: int, n: int, computed: bool = True, before: tuple[int, ...] = ()) -> Task:
    return task_of("MatMul", {}, [(*before, m, k), (*(before if computed else ()), k, n)], () if computed else (1,))


def contractions_in_parts(task: Task, target: Target) -> list[Contraction]:
    """The Sketches of `task` that have its sum in parts."""
    found = [s for s in sketches(task, target, DEFAULT) if isinstance(s, Contraction)]
    return [s for s in found if any(stage.rule == "rfactor" for stage in s.stages)]


def parts(task: Task, policy: Policy = DEFAULT, target: Target = TARGET) -> list[int]:
    """The numbers of parts in the schedule that is chosen."""
    stages = chosen(task, target, policy).candidate.stages
    return [int(stage.args["count"]) for stage in stages if stage.rule == "rfactor" and stage.args["parts"] == "outer"]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(
    "task",
    [
        product(7, 1500, 40),
        product(9, 1024, 37, before=(3,)),
        product(1, 1536, 200),
        product(1, 1280, 448),
        product(1, 1024, 192, before=(3,)),
        product(1, 2048, 5, computed=False),
        product(5, 3000, 11, computed=False),
    ],
    ids=lambda task: "x".join(str(b.shape) for b in task.buffers),
)
def test_points_of_every_order_compute_the_same(task: Task, cores: int) -> None:
    target = replace(host_target(), cores=cores)
    tried = 0
    for sketch in contractions_in_parts(task, target):
        assert accepted_points(sketch, task, 12)
        points = sketch.random(3, np.random.default_rng(1))
        tried += len([check(task, sketch.candidate(point), target) for point in points])
    assert tried or cores == 1


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1024, 2600), st.integers(1, 40), st.booleans())
def test_any_depth_is_cut_into_equal_parts(m: int, k: int, n: int, computed: bool) -> None:
    task = product(m, k, n, computed)
    for sketch in contractions_in_parts(task, replace(host_target(), cores=2)):
        assert accepted_points(sketch, task, 3)
        (stage,) = [s for s in sketch.stages if s.rule == "rfactor"]
        assert int(stage.args["size"]) * int(stage.args["count"]) == k


def test_parts_in_turn_keep_a_computed_matrix_near() -> None:
    """128 x 4096 x 128 took 1.22 times as long whole (Zen 4): each register tile went through 4,096 rows again."""
    assert parts(product(128, 4096, 128)) and not parts(product(128, 4096, 128, computed=False))
    assert not parts(product(128, 512, 128)), "a short sum"
    assert not parts(product(128, 4096, 128), policy=Policy(parts=False))


def test_one_row_streams_a_few_rows_of_a_matrix_side_by_side() -> None:
    """1 x 4096 x 4096 took 2.4 times as long by columns of 4,096 rows (Zen 4)."""
    (count,) = parts(product(1, 4096, 4096))
    assert 4096 // count in (8, 16)
    assert parts(product(1, 1024, 1024)), "took 1.5 times as long by columns, of 4 MB that lie in the last cache"


def test_threads_have_strips_of_the_columns_that_one_row_goes_over() -> None:
    """Parts of panels of 64 columns, which threads take by turns, are no streams of rows."""
    target, task = replace(TARGET, cores=4), product(1, 4096, 4096)
    assert parts(task, target=target)
    choice = chosen(task, target)
    (strip,) = [int(stage.args["size"]) for stage in choice.candidate.stages if stage.rule == "split"]
    assert strip in (1024, 256)
    loops = [loop for own in choice.candidate.blocks.values() for loop, tag in own.tags.items() if tag == "parallel"]
    assert [str(loop) for loop in loops] == ["nq0"]


def test_a_sum_to_a_few_results_goes_along_lanes() -> None:
    """2 x 65536 x 2 took 2.5 to 3.7 times as long with lanes along 2 columns (Zen 4); its constant lies by columns."""
    for computed in (False, True):
        task = product(2, 65536, 2, computed)
        candidate = chosen(task, TARGET).candidate
        assert any(stage.rule == "rfactor" and stage.args["parts"] == "inner" for stage in candidate.stages)
        assert bool(candidate.layouts) != computed
    small = product(2, 8192, 3, computed=False)
    check(small, chosen(small, host_target()).candidate, host_target())


def test_a_package_of_long_sums(tmp_path: Path) -> None:
    """A product of two computed matrices with a bias and a rectifier behind it, judged kernel by kernel."""
    info = helper.make_tensor_value_info
    shapes = {"x": [48, 4096], "w": [4096, 96], "b": [96]}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    inputs = [info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "long", inputs, [info("y", TensorProto.FLOAT, [48, 96])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = tmp_path / "long.onnx"
    onnx.save(model, path)
    assert load_config().policy.parts
    result = modelc.compile(path, output=tmp_path / "long.modelc", database=False)
    assert result.report is not None and result.report.passed
