"""The Sketches of maps: random points are accepted, and compute what their Blocks say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sketch_points import accepted_points, checked
from three_ways import host_target, task_of

from modelc.ir.block import Block, Task
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.construct import constructed
from modelc.space.sketches.elementwise import Elementwise
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.maps import map_schedule
from modelc.target import load_target

TARGET = load_target("x86-64-v4")
TASKS = {
    "broadcast along channels": task_of("Add", {}, [(2, 30, 17, 19), (30, 1, 1)]),
    "broadcast along rows": task_of("Mul", {}, [(37, 301), (301,)]),
    "one long vector": task_of("Exp", {}, [(90001,)]),
    "a few elements": task_of("Add", {}, [(3, 5), (3, 5)]),
    "int8": task_of("Add", {}, [(5, 41, 83), (41, 1)], dtypes=["int8", "int8"]),
    "float16": task_of("Mul", {}, [(129, 67), (1, 67)], dtypes=["float16", "float16"]),
    "transposed": task_of("Transpose", {"perm": [0, 2, 3, 1]}, [(2, 35, 13, 29)]),
    "transposed int8": task_of("Transpose", {"perm": [1, 0]}, [(131, 77)], dtypes=["int8"]),
    "transposed and computed": task_of("Transpose", {"perm": [2, 0, 1]}, [(3, 50, 70)]),
    "padded": task_of(
        "Pad", {"mode": "edge"}, [(40, 211), (4,)], steering={1: np.array([1, 2, 3, 4])}, dtypes=["float32", "int64"]
    ),
}
RUN = {"broadcast along channels": 2, "int8": 2, "float16": 1, "transposed": 2, "transposed int8": 2, "padded": 1}


def sketch_of(task: Task, cores: int = 4) -> Elementwise:
    (sketch,) = sketches(task, replace(TARGET, cores=cores), Policy())
    assert isinstance(sketch, Elementwise)
    return sketch


@pytest.mark.parametrize("name", TASKS)
def test_random_points_are_accepted(name: str) -> None:
    sketch = sketch_of(TASKS[name])
    assert accepted_points(sketch, TASKS[name], 20) >= min(20, sketch.size // 2)


@pytest.mark.parametrize("name", RUN)
def test_random_points_compute_what_blocks_say(name: str) -> None:
    (sketch,) = sketches(TASKS[name], host_target(), Policy())
    assert checked(sketch, TASKS[name], RUN[name]) == RUN[name]


@pytest.mark.parametrize("cores", [1, 4, 64])
@pytest.mark.parametrize("name", TASKS)
def test_rules_are_a_point(name: str, cores: int) -> None:
    sketch = sketch_of(TASKS[name], cores)
    ruled = {b.name: map_schedule(sketch.task, b, sketch.target) for b in sketch.task.blocks if isinstance(b, Block)}
    assert sketch.candidate_of(sketch.values(sketch.start())).blocks == ruled
    best = constructed(sketch, cores, 1)[0]
    assert best.seconds <= float(sketch.estimate(sketch.start()[None, :], cores)[0])
    assert chosen(TASKS[name], sketch.target).candidate == best.candidate


def test_what_has_one_value_is_not_open() -> None:
    assert sketch_of(TASKS["a few elements"]).knobs == ()
    long = sketch_of(TASKS["one long vector"])
    assert [k.name.rpartition(".")[2] for k in long.knobs] == ["vectors", "chunk", "parallel"]
    assert [k.name.rpartition(".")[2] for k in sketch_of(TASKS["transposed int8"]).knobs] == ["tile", "parallel"]


def test_more_cores_take_less_time() -> None:
    sketch = sketch_of(TASKS["one long vector"], 16)
    seconds = [float(sketch.estimate(sketch.start()[None, :], cores)[0]) for cores in (1, 4, 16)]
    assert seconds[0] > seconds[1] > seconds[2]
