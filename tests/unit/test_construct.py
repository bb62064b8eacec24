"""Construction by walks and by a greedy tree: deterministic, within registers and caches, right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analytic_tasks import TARGET, TASKS, model
from greedy import greedy, tiled_of
from populations import every_candidate
from three_ways import random_inputs, run_task, run_tree, task_of

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.verify_nest import verify_nest
from modelc.space.construct import (
    CACHE,
    REGISTERS,
    STEPS,
    WALKS,
    caching_benefit,
    constructed,
    graph_of,
    measures,
    thread_benefit,
    tiling_benefit,
    trajectory,
    walks,
)
from modelc.space.cost.analytic import estimate
from modelc.space.cost.register_tile import registers
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive
from modelc.space.sketches.contraction import Contraction
from modelc.target import Target


def construct(task: Task, target: Target, seed: int = 0) -> Candidate | None:
    tiled = tiled_of(task, target)
    return None if tiled is None else constructed(Contraction(tiled), target.cores, 1, seed)[0].candidate


def one(*values: float) -> list[np.ndarray]:
    return [np.array([v]) for v in values]


def test_formulas() -> None:
    assert tiling_benefit(*one(8, 4, 1, 2)) == 1.0  # half the traffic for twice the footprint
    assert tiling_benefit(*one(8, 2, 1, 2)) == 2.0
    assert caching_benefit(50, 10, 14, 40, np.zeros(1)) == pytest.approx(50 / 14)  # latencies alone
    assert caching_benefit(50, 10, 14, 40, np.full(1, 1e9)) == pytest.approx(4)  # bandwidths alone
    assert thread_benefit(8, *one(4, 2)) == 2.0  # four accumulators cover half of the latency, eight all of it
    assert thread_benefit(8, *one(8, 2)) == 1.0


@pytest.mark.parametrize("name", TASKS)
def test_what_is_constructed_computes_right(name: str) -> None:
    task, _ = model(name)
    inputs = random_inputs(task)
    wanted = run_task(task, inputs)
    for candidate in (construct(task, TARGET), greedy(task, TARGET)):
        assert candidate is not None
        nest = build_nest(task, candidate)
        verify_nest(nest, derive(task, candidate.stages))
        for buffer, found in run_tree(task, candidate, nest, inputs).items():
            np.testing.assert_allclose(found, wanted[buffer], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["conv", "depthwise", "batched"])
def test_equal_seeds_construct_equal_candidates(name: str) -> None:
    task, m = model(name)
    assert str(construct(task, TARGET, 3)) == str(construct(task, TARGET, 3))
    assert str(greedy(task, TARGET)) == str(greedy(task, TARGET))
    a, b, c = walks(m, 3), walks(m, 3), walks(m, 4)
    assert (a.rows == b.rows).all() and (a.parallel == b.parallel).all()
    assert len(a) != len(c) or (a.rows != c.rows).any() or (a.chunk != c.chunk).any()


@pytest.mark.parametrize("kilobytes", [1024, 32])
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sweep(10)
def test_registers_and_memory_are_respected(name: str, kilobytes: int) -> None:
    """At every step of every walk the register tile fits in the registers and the chunk and panel in the cache."""
    l1, l2, *_ = TARGET.caches
    small = replace(TARGET, caches=(replace(l1, bytes=16384), replace(l2, bytes=kilobytes << 10)))
    _, m = model(name, small)
    graph = graph_of(m)
    seen = 0
    for states in trajectory(graph, np.random.default_rng(0)):
        tiles = graph.tiles(states.at)
        assert (measures(graph, tiles, REGISTERS)[1] <= TARGET.vector.registers).all()
        assert (measures(graph, tiles, CACHE)[1] <= kilobytes << 10).all()
        for level in (CACHE, REGISTERS):  # what is known of all chunks and panels is what is known of each
            pairs = zip(graph.measured(states.at, level), measures(graph, tiles, level), strict=True)
            assert all((known == own).all() for known, own in pairs)
        seen += 1
    assert 0 < seen <= STEPS
    kept = walks(m, 0)
    assert 0 < len(kept) <= WALKS * STEPS
    assert (registers(m.tiled, kept.rows, kept.vectors) <= TARGET.vector.registers).all()


def test_walks_stay_in_the_graph() -> None:
    _, m = model("conv")
    graph = graph_of(m)
    for column, sizes in enumerate(graph.sizes):
        at = np.arange(len(sizes))
        up = graph.larger(column, at)
        assert up[-1] == -1 and (up[:-1] > at[:-1]).all()
        grown = sizes[up[:-1]]
        assert ((grown <= 2 * sizes[:-1]) | (up[:-1] == at[:-1] + 1)).all()
    assert graph.tiles(np.zeros((1, len(graph.sizes)), np.int64)).tolist() == [[1] * 5]


@pytest.mark.parametrize("name", TASKS)
def test_walks_come_near_the_analytic_optimum(name: str) -> None:
    _, m = model(name)
    best = estimate(m, every_candidate(m)).seconds.min()
    assert estimate(m, walks(m, 0)).seconds.min() <= 1.25 * best


def test_other_tasks_are_not_constructed() -> None:
    softmax = task_of("Softmax", {"axis": -1}, [(4, 33)])
    relu = task_of("Relu", {}, [(4, 33)])
    whole = task_of("MatMulInteger", {}, [(4, 8), (8, 16)], dtypes=["uint8", "int8"])
    for task in (softmax, relu, whole):
        assert construct(task, TARGET) is None and greedy(task, TARGET) is None
