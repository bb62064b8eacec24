"""Random points of a Sketch: whether verifiers accept them, and whether their kernels are right."""

from __future__ import annotations

import numpy as np
from three_ways import check, host_target

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.space.choose import accepted
from modelc.space.sketch import Sketch


def accepted_points(sketch: Sketch, task: Task, count: int, seed: int = 0) -> int:
    """How many of at most `count` random points differ, all of them accepted as schedules of `task`."""
    points = sketch.random(count, np.random.default_rng(seed))
    found = [sketch.candidate(point) for point in points]
    for candidate in found:
        accepted(task, Candidate.from_json(candidate.to_json()), sketch.target)
    seconds = sketch.estimate(points, 4)
    assert seconds.shape == (len(points),) and (seconds > 0).all()
    return len({str(candidate) for candidate in found})


def checked(sketch: Sketch, task: Task, count: int, seed: int = 1) -> int:
    """How many of `count` random points were run, and computed what the Blocks of `task` say."""
    assert sketch.target == host_target()
    points = sketch.random(count, np.random.default_rng(seed))
    return len([check(task, sketch.candidate(point), sketch.target) for point in points])
