"""What passes from one core's caches to another's: estimates against a count of elements; rows cut cyclically."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analytic_tasks import conv
from contraction_tasks import pointwise, product
from greedy import tiled_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from populations import every_candidate
from three_ways import task_of

from modelc.ir.affine import bounds
from modelc.ir.block import Task
from modelc.ir.expr import Const, Load, substitute
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.cost.analytic import estimate
from modelc.space.cost.model import model_of
from modelc.space.sketches.strassen import strassen_sketches
from modelc.space.sketches.winograd import winograd_sketches
from modelc.target import Target, load_target


def connected(cycles: float, cores: int = 2, shared: bool = True) -> Target:
    """A target where a line comes from another core's caches in so many cycles."""
    target = load_target("x86-64-v4")
    caches = (*target.caches[:-1], replace(target.caches[-1], shared=shared))
    return replace(target, cores=cores, caches=caches, cost=replace(target.cost, transfer_cycles=cycles))


def transferred(task: Task, cores: int, shared: bool = True) -> dict[str, float]:
    """Bytes that estimates say one core gets from others, by the loop that goes to threads, where it has no more than
    its part of the work: of the seconds where a line takes two cycles, what is not in those where it takes one."""
    slow, fast = connected(2.0, cores, shared), connected(1.0, cores, shared)
    bandwidth = fast.caches[-1].line * fast.hertz
    found = {}
    for number, loop in enumerate(model_of(tiled_of(task, slow)).parallel):
        seconds = []
        for target in (slow, fast):
            model = model_of(tiled_of(task, target))
            every = every_candidate(model)
            seconds.append(estimate(model, every.take(every.parallel == number)).seconds)
        found["" if loop is None else str(loop)] = float(((seconds[0] - seconds[1]) * bandwidth).min())
    return found


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(2, 4), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_a_product_transfers_what_lies_in_the_stretches_of_others(
    cores: int, m: int, k: int, n: int, shared: bool
) -> None:
    """Of a matrix product whose rows, or panels of columns, go to cores: every element that the first core touches
    and that is not in its stretch of the rows; of what all touch its part, where they share the last cache."""
    rows, deep, wide = 4 * cores * m, 16 * k, 16 * 16 * cores * n
    assume(rows * deep * wide >= 1 << 14)
    found = transferred(task_of("MatMul", {}, [(rows, deep), (deep, wide)], consts=(1,)), cores, shared)
    assert set(found) - {""} == {"m0", "n0"}  # "": on one thread
    for loop, (touched, columns) in {"m0": (rows // cores, wide), "n0": (rows, wide // cores)}.items():
        data, result = np.zeros((rows, deep), bool), np.zeros((rows, wide), bool)
        data[:touched], result[:touched, :columns] = True, True
        data[: rows // cores], result[: rows // cores] = False, False
        once = data.sum() / (cores - 1) if shared else data.sum()
        assert found[loop] == pytest.approx(4 * (once + result.sum()), rel=1e-3, abs=1.0)


def test_a_window_transfers_what_it_reads_of_others_rows() -> None:
    """Where columns of a map go to cores, half of what a core touches is in the other's rows; where channels do, half
    of the map that both read, and of what they write, which is four times as much; a row at the border, which no loop
    avoids, is left out."""
    found = transferred(conv((1, 32, 32, 32), (128, 32, 3, 3)), 2)
    half = 2 * 32 * 32 * 32
    assert found["h0"] == pytest.approx(0.0, abs=1.0)
    assert 2.4 * half < found["w0"] < 2.6 * half
    assert 2.8 * half < found["o0"] < 3.2 * half


def test_maps_stored_channels_first_are_divided_along_their_rows_too() -> None:
    """Of x[k, n] no loop over channels has a stretch of what it reads; pixels do, of what is read and written."""
    found = transferred(task_of("MatMul", {}, [(64, 32), (32, 4096)], consts=(0,)), 2)
    assert found["n0"] == pytest.approx(0.0, abs=1.0) and found["m0"] > 0


def test_one_core_and_what_no_cache_holds_transfer_nothing_or_no_more_than_a_cache() -> None:
    task = task_of("MatMul", {}, [(64, 32), (32, 512)], consts=(1,))
    assert set(transferred(task, 1).values()) == {0.0}
    large = task_of("MatMul", {}, [(1 << 20, 64), (64, 512)], consts=(1,))
    assert transferred(large, 2)["n0"] == pytest.approx(load_target("x86-64-v4").caches[-1].bytes, rel=1e-3)


@pytest.mark.parametrize("task", [product(192, 256, 256), pointwise(1, 256, (14, 12), 256)], ids=["product", "map"])
def test_some_rows_of_every_part_are_one_stretch_of_the_whole(task: Task) -> None:
    """What sums read and the owner writes for the first rows of each part, iterator by iterator, against a range."""
    checked = 0
    for sketch in strassen_sketches(task, connected(6.0), []):
        roles, count = sketch.roles, 5
        parts = range(sketch.by.parts)
        for accesses, rows, each in (
            (roles.sums.reads, roles.rows, [0]),  # all parts are read for one element
            (roles.owner.writes, roles.owned[roles.rows], parts),
        ):
            values = [{rows: number, roles.within[0]: part} for number in range(count) for part in each]
            found = {_row(access, rows, one) for access in accesses for one in values}
            assert found - {None} == set(range(count * len(parts)))
            checked += 1
    assert checked == 4


def _row(access: Load, rows: str, values: dict[str, int]) -> int | None:
    """The index of `access` that `rows` moves, where its iterators have these values."""
    (index,) = (i for i in access.indices if rows in str(i))
    limits = bounds(substitute(index, {name: Const(x) for name, x in values.items()}), {})
    return None if limits is None else limits[0]


def test_threads_go_over_rows_where_transfers_are_dear() -> None:
    """Products by Strassen's rule: with transfers at next to no cost panels go to threads, each of which reads a part
    of the constant; with dear ones rows do, in every phase."""
    task = product(256, 1024, 1024)
    loops = {}
    for cycles in (1e-3, 1e3):
        candidate = chosen(task, connected(cycles), Policy()).candidate
        assert any(stage.rule == "strassen" for stage in candidate.stages)
        loops[cycles] = [
            loop.iterator
            for block in candidate.blocks.values()
            for loop, tag in block.tags.items()
            if tag == "parallel"
        ]
    assert "n" in loops[1e-3] and set(loops[1e3]) == {"m"}


def test_phases_of_minimal_filtering_transfer_tiles() -> None:
    """Rows of tiles stay with a core from phase to phase; panels read the tiles of all, points those of every row."""
    found = {}
    for sketch in winograd_sketches(conv((1, 64, 24, 24), (64, 64, 3, 3)), connected(6.0), []):
        if sketch.roles.m == 4:
            points = np.stack([sketch.start(), *sketch.random(20, np.random.default_rng(0))])
            found[sketch.shape.value] = sketch.transferred(points, 2)
            assert not sketch.transferred(points, 1).any()
    assert not found["rows"].any() and (found["panels"] > 0).all() and (found["points"] > 0).any()
