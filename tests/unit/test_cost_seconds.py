"""Two prices of the same schedule: what a Sketch estimates, and the closed form for Candidates of any Sketch, by which
families of Sketches are compared."""

from __future__ import annotations

import pytest
from three_ways import task_of

from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.choose import families
from modelc.space.construct import constructed
from modelc.space.cost.seconds import task_seconds
from modelc.space.sketches.contraction import Contraction
from modelc.target import list_targets, load_target

TASKS = {
    "product": task_of("MatMul", {}, [(512, 512), (512, 512)], (1,)),
    "few rows": task_of("MatMul", {}, [(64, 1024), (1024, 1024)], (1,)),
    "window": task_of("Conv", {"pads": (1,) * 4}, [(1, 64, 28, 28), (64, 64, 3, 3)], (1,), True),
}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", list_targets())
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_contractions_have_one_price(task: Task, name: str, cores: int) -> None:
    target = load_target(name)
    sketches = [s for s in families(task, target, Policy())[0] if isinstance(s, Contraction)]
    assert sketches
    for sketch in sketches:
        (best, *_) = constructed(sketch, cores, 1)
        derived = sketch.derived(sketch.values(best.point))
        ratio = task_seconds(derived, best.candidate, target, cores) / best.seconds
        assert 0.75 < ratio < 1.25, (sketch.name, ratio)
