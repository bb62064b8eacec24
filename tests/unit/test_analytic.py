"""The analytic cost: whatever knobs are drawn, their Candidate computes right; what the cost says of simple cases."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from analytic_tasks import TARGET, TASKS, conv, model
from greedy import tiled_of
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import best_of, every_candidate, knobs_at, population_of, random_candidates
from schedules import loops
from three_ways import random_inputs, run_task, run_tree, task_of

from modelc.ir.block import Task
from modelc.ir.text import parse_task
from modelc.ir.verify_nest import verify_nest
from modelc.layout.classes import WINDOWS
from modelc.space.cost.analytic import estimate
from modelc.space.cost.conflicts import conflicting_lines
from modelc.space.cost.model import model_of
from modelc.space.cost.register_tile import kernel_cycles, registers
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive
from modelc.space.sketches.clean import exposed
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.space.sketches.vectorized import tiled_space
from modelc.space.tiling.tiled import TiledKnobs


@settings(deadline=None, max_examples=24)
@given(st.sampled_from(list(TASKS)), st.integers(0, 2**20))
def test_any_knobs_make_a_candidate_that_computes_right(name: str, seed: int) -> None:
    task, m = model(name)
    drawn = random_candidates(m, 1, seed)
    candidate = tiled_candidate(m.tiled, knobs_at(m, drawn, 0))
    nest = build_nest(task, candidate)
    verify_nest(nest, derive(task, candidate.stages))
    inputs = random_inputs(task)
    wanted = run_task(task, inputs)
    for buffer, found in run_tree(task, candidate, nest, inputs).items():
        np.testing.assert_allclose(found, wanted[buffer], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_the_space_fits_in_the_registers_and_has_the_default(name: str) -> None:
    _, m = model(name)
    space = every_candidate(m)
    assert (registers(m.tiled, space.rows, space.vectors) <= TARGET.vector.registers).all()
    for k, n in enumerate(m.tiled.inside[:1]):
        assert (space.chunk % space.rows[:, k] == 0).all() and (space.chunk < 2 * m.tiled.ranges[n] + 32).all()
    default = population_of(m, [default_knobs(m.tiled)])
    found = (space.rows == default.rows).all(axis=1) & (space.vectors == default.vectors)
    assert found.any()


@pytest.mark.parametrize("name", TASKS)
def test_estimates_do_not_depend_on_the_rest_of_the_population(name: str) -> None:
    _, m = model(name)
    drawn = random_candidates(m, 40, 1)
    whole = estimate(m, drawn)
    assert np.isfinite(whole.seconds).all() and (whole.seconds > 0).all()
    assert (whole.efficiency <= 1).all() and (whole.balance <= 1).all()
    for p in range(0, len(drawn), 7):
        alone = estimate(m, population_of(m, [knobs_at(m, drawn, p)]))
        assert alone.seconds[0] == whole.seconds[p] and (alone.traffic[0] == whole.traffic[p]).all()


def test_tails_are_counted() -> None:
    """13 rows by 37 columns in tiles of 5 rows x 2 vectors of 16: six tiles, with the cycles of each."""
    _, m = model("matmul")

    def tile(rows: int, vectors: int) -> float:
        """One tile alone: a Task of its size."""
        task = task_of("MatMul", {}, [(rows, 20), (20, 16 * vectors)], consts=(1,))
        tiled = tiled_of(task, TARGET)
        assert tiled is not None
        assert len(tiled.inside) == 1 or rows == 1
        return float(kernel_cycles(tiled, np.full((1, len(tiled.inside)), rows), np.array([vectors]))[0])

    wanted = 2 * tile(5, 2) + 2 * tile(5, 1) + tile(3, 2) + tile(3, 1)
    assert kernel_cycles(m.tiled, np.array([[5]]), np.array([2]))[0] == pytest.approx(wanted)


def test_a_long_epilogue_does_not_make_register_tiles_small() -> None:
    """Few channels are summed up quickly, and much is done with each sum: as much in tiles of any size, of which small
    ones wait for the sums of the step before."""
    task = parse_task("""\
task hardswish(x, w) -> (y) anchor s0
  in x: float32[3840, 64]
  const w: float32[64, 64]
  out y: float32[3840, 64]
  local s: float32[3840, 64]
  block s0 [m:3840 n:64 | k:64] add
    s[m, n] += x[m, k] * w[k, n]
  block s1 [m:3840 n:64] assign
    y[m, n] = s[m, n] * max(min(float32(0.125) * s[m, n] + float32(0.5), float32(1.0)), float32(0.0))""")
    tiled = tiled_of(task, TARGET)
    assert tiled is not None and tiled.epilogue_cycles >= 2
    m = model_of(tiled)
    space = every_candidate(m)
    seconds, accumulators = estimate(m, space).seconds, space.rows.prod(axis=1) * space.vectors
    chains = TARGET.fma_latency * TARGET.fma_ports  # that keep the ports busy
    few, enough = seconds[accumulators <= chains // 2].min(), seconds[accumulators >= 2 * chains].min()
    assert enough < 0.8 * few


def test_rows_a_power_of_two_apart_conflict() -> None:
    """Pixels of 1024 channels lie 4096 bytes apart: all in one set of 8 ways, where more find nothing that they left;
    1040 channels do not."""
    rows = np.array([[7], [14], [28]])
    for channels, wanted in ((1024, [0, 14, 28]), (1040, [0, 0, 0])):
        tiled = tiled_of(conv((1, channels, 14, 14), (32, channels, 1, 1)), TARGET)
        assert tiled is not None and tiled.inside == ["hw"]
        assert conflicting_lines([4 * channels], rows, TARGET.caches[0]).tolist() == wanted


def test_windows_do_not_slide_down_rows_that_alias_what_they_store() -> None:
    """Of 512 channels every other pixel lies at the same place of its page: panels of vectors are inside then, or
    channels are split. Of 480 channels they are not."""

    def last(channels: int) -> Task:
        attrs = {"pads": [1] * 4, "group": channels}
        return task_of("Conv", attrs, [(1, channels, 14, 14), (channels, 1, 3, 3)], (1,), channels_last=True)

    split = WINDOWS[0].layout(4, TARGET.lanes("float32"))
    task = last(512)
    blocked = replace(
        task, buffers=tuple(replace(b, layout=split) if b.shape[1:2] == (512,) else b for b in task.buffers)
    )
    ratios = []
    for one in (task, last(480), blocked):
        _, tiled = tiled_space(exposed(one, stages := []), TARGET, stages)
        m = model_of(tiled)
        knobs = default_knobs(tiled)
        chunk = tiled.ranges[tiled.inside[0]]
        orders = [replace(knobs, by_rows=by_rows, chunk=chunk) for by_rows in (False, True)]
        panels, rows = estimate(m, population_of(m, orders), 1).seconds
        ratios.append(panels / rows)
    assert ratios[0] > 1.3 and max(ratios[1:]) < 1.2


def test_a_cache_that_holds_the_operands_is_filled_once() -> None:
    """128 x 128 x 128: 192 KiB. Into L2 every operand crosses once, whatever the order; into L1 more does."""
    tiled = tiled_of(task_of("MatMul", {}, [(128, 128), (128, 128)], consts=(1,)), replace(TARGET, cores=1))
    assert tiled is not None
    m = model_of(tiled)
    costs = estimate(m, every_candidate(m))
    assert costs.traffic[:, 1] == pytest.approx(4 * 4 * 128 * 128, rel=0.05)  # the result is read before it is written
    assert (costs.traffic[:, 0] >= costs.traffic[:, 1] * 0.99).all()
    assert (costs.traffic[:, 2] == 0).all()  # it is warm


def test_parallel_work_is_balanced() -> None:
    """Two iterations for four cores would leave two idle: those of the loop inside are shared with them, but where a
    copy of what is padded may be between the loops."""
    for pad, balance in ((0, [1.0, 1.0]), (1, [0.5, 1.0])):
        tiled = tiled_of(conv((2, 32, 32, 32), (64, 32, 3, 3), pads=[pad] * 4), replace(TARGET, cores=4))
        assert tiled is not None
        m = model_of(tiled)
        knobs = [TiledKnobs((("h", 1), ("w", 14)), 2, 1, True, loop) for loop in loops("n0 h0")]
        assert estimate(m, population_of(m, knobs)).balance == pytest.approx(balance, rel=0.1)


def test_the_best_is_near_the_rules_choice() -> None:
    """Where the rules are known to be good (no conflicts, whole tiles) the cost does not say otherwise by much."""
    for name in ("matmul", "conv", "3d"):
        _, m = model(name)
        default = estimate(m, population_of(m, [default_knobs(m.tiled)])).seconds[0]
        best = estimate(m, population_of(m, [best_of(m, every_candidate(m))])).seconds[0]
        assert best <= default <= 2 * best


def test_points_are_the_tasks() -> None:
    _, m = model("conv")
    whole = estimate(m, every_candidate(m))
    space = every_candidate(m)
    cycles = kernel_cycles(m.tiled, space.rows, space.vectors)
    points = prod(m.tiled.ranges.values())
    assert whole.efficiency == pytest.approx(points / (16 * TARGET.fma_ports * cycles))
