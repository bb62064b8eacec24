"""The Sketches of rows and reductions: random points are accepted, and compute what their Blocks say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from operator_cases import Case, example, f
from sketch_points import accepted_points, checked
from three_ways import host_target, task_of

from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.construct import constructed
from modelc.space.rules.derivation import derive
from modelc.space.sketch import Sketch
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.reductions import LONGEST_CHAIN, longest_chain
from modelc.target import load_target

TARGET = load_target("x86-64-v4")


def reduction(op: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32") -> Task:
    return example(Case(op, (f(*shape).astype(dtype), np.asarray(axes)), {"keepdims": 0}, (1,))).task


TASKS = {
    "softmax": (task_of("Softmax", {"axis": -1}, [(301, 197)]), ["along rows", "in phases"]),
    "softmax of few rows": (task_of("Softmax", {"axis": -1}, [(3, 40001)]), ["in phases", "along rows"]),
    "softmax across rows": (task_of("Softmax", {"axis": 1}, [(2, 30, 17, 19)]), ["across rows", "in phases"]),
    "half": (task_of("Softmax", {"axis": -1}, [(45, 130)], dtypes=["float16"]), ["along rows", "in phases"]),
    "norm": (task_of("LayerNormalization", {"axis": -1}, [(61, 192), (192,)]), ["along rows", "in phases"]),
    "whole": (reduction("ReduceL2", (300, 301), (0, 1)), ["in phases"]),
    "int8": (reduction("ReduceMax", (400, 190), (0,), "int8"), ["by columns"]),
    "columns": (reduction("ReduceSum", (1003, 70), (0,)), ["by columns"]),
    "stretches": (reduction("ReduceMean", (40, 5001), (0,)), ["by columns"]),
}
RUN = {"softmax": 2, "softmax across rows": 1, "half": 1, "norm": 1, "whole": 2, "int8": 1, "columns": 2}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sweep(2)
def test_random_points_are_accepted(name: str) -> None:
    task, names = TASKS[name]
    found = sketches(task, replace(TARGET, cores=4), Policy())
    assert [s.name for s in found] == names
    different = [accepted_points(s, task, 20) for s in found]
    assert all(n >= min(20, s.size) * 2 // 3 for n, s in zip(different, found, strict=True)) and sum(different) > 1


@pytest.mark.parametrize("name", RUN)
@pytest.mark.sweep(3)
def test_random_points_compute_what_blocks_say(name: str) -> None:
    task, _ = TASKS[name]
    found = sketches(task, host_target(), Policy())
    assert sum(checked(s, task, RUN[name]) for s in found) >= RUN[name]


@pytest.mark.parametrize("cores", [1, 4, 64])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sweep(13)
def test_rules_are_taken_where_nothing_is_clearly_better(name: str, cores: int) -> None:
    task, target = TASKS[name][0], replace(TARGET, cores=cores)
    ruled, *others = sketches(task, target, Policy())
    start = ruled.candidate(ruled.start())
    best = constructed(ruled, cores, 1)[0]
    others_best = [s.handicap * constructed(s, cores, 1)[0].seconds for s in others]
    if (best.point == ruled.start()).all() and best.seconds <= min(others_best, default=best.seconds):
        assert chosen(task, target).candidate == start
    else:
        assert chosen(task, target).candidate != start


def test_a_point_knows_its_task() -> None:
    task, _ = TASKS["softmax"]
    sketch: Sketch = sketches(task, TARGET, Policy())[0]
    tasks = set()
    for point in sketch.every():
        values = sketch.values(point)
        found = sketch.derived(values)
        assert found == derive(task, sketch.candidate(point).stages)
        tasks.add(found.hash)
    assert len(tasks) == 3  # one for each number of groups of lanes


def test_columns_are_cut_for_threads_and_where_they_are_long() -> None:
    """49 rows of 2,048 numbers on one core: 4.9 us in one piece, 6.3 in three, of which each stores its sums."""
    for rows, cores, cut in ((49, 1, False), (49, 4, True), (1 << 15, 1, True)):
        found = chosen(reduction("ReduceMean", (rows, 2048), (0,)), replace(TARGET, cores=cores)).candidate
        assert any(stage.rule == "rfactor" for stage in found.stages) == cut


def test_no_knob_makes_long_sums_clearly_less_exact() -> None:
    (sketch,) = sketches(task_of("ReduceL2", {}, [(1 << 12, 1 << 12)]), replace(TARGET, cores=1), Policy())
    chains = [longest_chain(sketch.derived(sketch.values(point))) for point in sketch.every()]
    assert longest_chain(sketch.task) < max(chains) <= LONGEST_CHAIN
    assert len(chains) < sketch.size
