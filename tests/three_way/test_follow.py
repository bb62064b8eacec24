"""Transpositions that follow a tiled reduction: where they run, and that the results stay the same."""

import numpy as np
import pytest
from contractions import contractions
from schedules import loops
from three_ways import Example, check, host_target, random_inputs, task_of

from modelc.ir.block import Block
from modelc.ir.loop import Inside
from modelc.space.analysis.follow import iterators
from modelc.space.analysis.loops import covered
from modelc.space.construct import constructed
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.target import load_target

TARGET = load_target("x86-64-v4")


def conv(shape, out, kernel, strides=1, group=1, pads=0, name="Conv"):
    dims = len(shape) - 2
    attrs = {"pads": (pads,) * (2 * dims), "strides": (strides,) * dims, "group": group}
    weights = (out, shape[1] // group, *(kernel,) * dims) if name == "Conv" else (shape[1], out, *(kernel,) * dims)
    return task_of(name, attrs, [shape, weights], consts=(1,))


TASKS = {
    "few channels": conv((1, 3, 23, 29), 32, 3, strides=2, pads=1),
    "window": conv((1, 16, 5, 17), 16, 3, pads=1),
    "grouped": conv((1, 32, 6, 14), 64, 3, group=2, pads=1),
    "pointwise": conv((1, 32, 19, 23), 64, 1),
    "pointwise in 3d": conv((2, 32, 3, 9, 11), 32, 1),
    "transposed": conv((1, 32, 6, 7), 32, 4, strides=2, pads=1, name="ConvTranspose"),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sweep(2)
def test_every_way_computes_the_same(name: str) -> None:
    example = Example(TASKS[name], random_inputs(TASKS[name]), rtol=1e-4, atol=1e-4)
    for sketch in contractions(TASKS[name], host_target()):
        check(example, constructed(sketch, sketch.target.cores, 1)[0].candidate)


@pytest.mark.parametrize("name", ["few channels", "window", "grouped"])
def test_a_store_runs_inside_the_loops_of_its_tile(name: str) -> None:
    way = contractions(TASKS[name], TARGET)[0].tiled
    candidate = tiled_candidate(way, default_knobs(way))
    last = way.task.blocks[-1]
    place = candidate.blocks[last.name].at
    assert last.name.startswith("store_") and isinstance(place, Inside) and place.block == way.anchor.name
    assert {candidate.blocks[c.name].scope for c in way.consumers} == {"local"}


@pytest.mark.parametrize("name", ["pointwise", "pointwise in 3d"])
def test_pointwise_results_are_also_computed_where_they_are_stored(name: str) -> None:
    plain = contractions(TASKS[name], TARGET)[-1].tiled
    assert not any(b.name.startswith("store_") for b in plain.task.blocks)
    assert plain.strides[plain.vector] == 1


def test_iterators_stand_for_those_of_the_anchor() -> None:
    way = contractions(TASKS["window"], TARGET)[-2].tiled
    last = way.task.blocks[-1]
    assert isinstance(last, Block)
    own = iterators(way.anchor, [*way.consumers, last])[last.name]
    assert sorted(set(own.values())) == ["h", "n", "o", "w"]
    assert all(last.ranges[k] == way.anchor.ranges[v] for k, v in own.items())


def test_what_an_iteration_covers() -> None:
    ranges, tiles = {"h": 28, "w": 10, "o": 64}, {"h": (14, 7), "o": (32, 16)}
    assert covered(ranges, [], tiles) == ranges
    assert covered(ranges, loops("o0 h0"), tiles) == {"h": 14, "w": 10, "o": 32}
    assert covered(ranges, loops("o0 h0 h1 w0 h2"), tiles) == {"h": 1, "w": 1, "o": 32}
    assert np.prod(list(covered(ranges, loops("o0 o1 o2"), tiles).values())) == 280
