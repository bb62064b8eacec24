"""Loops that go to threads together, where one alone leaves cores without their part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from contraction_tasks import conv, product
from hypothesis import given
from hypothesis import strategies as st
from three_ways import Example, check, host_target, random_inputs, task_of

from modelc.ir.block import Task
from modelc.ir.nest import For, Nest, parallel_inside
from modelc.policy import Policy
from modelc.space.analysis.loops import span
from modelc.space.choose import DEFAULT, Schedules, chosen
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.space.tiling.parallel import CHUNKS_PER_CORE, busiest_share, joined

TARGET = replace(host_target(), cores=16)
DIRECT = Policy(winograd=False, strassen=False)
TRANSPOSED = task_of("ConvTranspose", {"strides": [2, 2], "pads": [1] * 4}, [(1, 512, 4, 4), (512, 256, 4, 4)], (1,))
TASKS = {
    "window": (conv(1, 40, (7, 7), 96), DIRECT),
    "filtered": (conv(1, 40, (14, 14), 96), Policy(strassen=False)),
    "windows of each channel": (conv(2, 64, (6, 6), 64, group=64), DEFAULT),
    "product": (product(40, 200, 97, before=(3,), bias=False), DEFAULT),
    "products of two inputs": (task_of("MatMul", {}, [(5, 24, 100), (5, 100, 90)]), DEFAULT),
}


def parallel_loops(nest: Nest) -> list[int]:
    """How many loops of each phase go to threads."""
    counts = []
    for phase in nest.phases:
        loop: For | None = parallel_inside(phase)
        counts.append(0)
        while loop is not None:
            counts[-1], loop = counts[-1] + 1, parallel_inside(loop.body)
    return counts


@pytest.mark.parametrize("name", TASKS)
def test_points_of_every_sketch_compute_the_same(name: str) -> None:
    """Threads take any part of the iterations: check() divides them. However small the work is, they wake for it."""
    task, policy = TASKS[name]
    target = replace(TARGET, cost=replace(TARGET.cost, fork_join_seconds=0.0))
    example, most = Example(task, random_inputs(task), atol=1e-4), 0
    for sketch in sketches(task, target, policy)[:6]:
        points = [sketch.start(), *sketch.random(1, np.random.default_rng(1))]
        most = max(most, *(max(parallel_loops(check(example, sketch.candidate(p), target).nest)) for p in points))
    assert most > 1


@pytest.mark.parametrize(
    ("task", "alone"),
    [(conv(1, 512, (7, 7), 512), 7), (product(40, 200, 512, before=(3,)), 3)],
    ids=["window", "product"],
)
def test_the_schedule_that_is_chosen_has_work_for_every_core(task: Task, alone: int) -> None:
    choice = chosen(task, TARGET, DIRECT)
    loop = parallel_inside(choice.nest.phases[-1])
    assert loop is not None and loop.extent >= alone
    assert busiest_share([(alone, 1)], TARGET.cores) > 1.3 / TARGET.cores
    assert max(parallel_loops(choice.nest)) > 1 or loop.extent >= 2 * TARGET.cores


@pytest.mark.parametrize("shape", [(4, 64, 64), (1, 2048, 16), (2, 8192, 128), (40, 200, 97)])
@pytest.mark.parametrize("constant", [True, False])
def test_no_estimate_rises_with_cores(shape: tuple[int, int, int], constant: bool) -> None:
    """A product of 4 x 64 x 64 took 7 times as long on 2 cores as on 1, by its estimate: a thread had to be woken."""
    m, k, n = shape
    task = task_of("MatMul", {}, [(m, k), (k, n)], (1,) if constant else ())
    targets = [replace(TARGET, cores=cores) for cores in (1, 2, 4, 16, 64)]
    estimates = [Schedules(target).seconds(task.canonical()) for target in targets]
    assert estimates == sorted(estimates, reverse=True)
    choice = chosen(task, targets[1])
    assert shape != (4, 64, 64) or not any(parallel_loops(choice.nest))
    check(task, choice.candidate, targets[1])


@pytest.mark.parametrize("task", [conv(1, 40, (7, 7), 96), TRANSPOSED], ids=["window", "transposed window"])
def test_loops_that_are_priced_as_joined_are_joined(task: Task) -> None:
    """Phases of a transposed convolution read much the same, so what it pads is copied around their loops: a core had
    nothing to do, and dcgan took 1.47 times as long on two threads (Zen 4)."""
    target, checked = replace(TARGET, cores=2), 0
    for sketch in (s for s in sketches(task, target, DIRECT) if isinstance(s, Contraction)):
        tiled, start = sketch.tiled, sketch.start_values()
        for number, parallel in enumerate(sketch.model.parallel):
            values = {**start, "parallel": parallel}
            together = sketch.model.together(values["order"] == "rows", number)
            tiles = tiled.tiles(sketch.knobs_of(values))
            which = joined([span(loop, tiled.ranges, tiles) for loop in together], target)
            tags = sketch.candidate(sketch.point(values)).blocks[tiled.anchor.name].tags
            assert all(tags[loop] == "parallel" for loop, there in zip(together, which, strict=True) if there)
            checked += len(together)
    assert checked


def test_a_target_says_how_uneven_the_parts_of_cores_may_be() -> None:
    """Three tiles for two cores: one has 4/3 of an even part."""
    spans, pair = [(3, 1), (7, 1)], replace(TARGET, cores=2)
    lenient = replace(pair, cost=replace(pair.cost, uneven_ratio=1.4))
    assert [bool(there) for there in joined(spans, pair)] == [True, True]
    assert [bool(there) for there in joined(spans, lenient)] == [True, False]
    assert float(busiest_share(spans, 2, lenient)) == pytest.approx(2 / 3)


SIZES = st.tuples(st.integers(1, 12), st.integers(1, 5))


@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(1, 16))
def test_the_busiest_core_has_its_part_of_all_iterations(tiles: list[tuple[int, int]], cores: int) -> None:
    """Iterations are counted and cut as in runtime/modelc_pool.c; tiles are whole."""
    spans = [(trips * tile, tile) for trips, tile in tiles]
    target = replace(TARGET, cores=cores)
    which = joined(spans, target)
    trips = int(np.prod([n for (n, _), there in zip(tiles, which, strict=True) if there]))
    chunks = min(trips, cores * CHUNKS_PER_CORE)
    bounds = [trips * k // chunks for k in range(chunks + 1)]
    shares = [bounds[chunks * (k + 1) // cores] - bounds[chunks * k // cores] for k in range(cores)]
    share = float(busiest_share(spans, cores, target))
    assert share == pytest.approx(max(shares) / trips, rel=0.5 if trips > chunks else 1e-9)
    assert not any(there for there, before in zip(which[1:], which, strict=False) if not before)
