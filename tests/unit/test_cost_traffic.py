"""What lies beyond the nearer caches takes the time of where it lies, whichever estimate asks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from three_ways import task_of

from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.cost.moving import constant_seconds, moving_seconds, parted_seconds
from modelc.space.sketches.listing import sketches
from modelc.space.tiling.parallel import CHUNKS_PER_CORE, busiest_share
from modelc.target import load_target

TARGET = replace(load_target("x86-64-v4"), cores=1)


def copied(rows: int) -> Task:
    return task_of("Relu", {}, [(rows, 1024)])


def seconds(task: Task) -> float:
    (sketch,) = sketches(task, TARGET, Policy())
    return float(sketch.estimate(sketch.start()[None, :], 1)[0])


def test_a_map_over_more_than_the_last_cache_waits_for_memory() -> None:
    """Four times the elements, of which the last cache holds no more than the first quarter."""
    last = TARGET.caches[-1]
    rows = last.bytes // (2 * 2 * 4 * 1024)  # read and written, half of the cache
    near, far = seconds(copied(rows)), seconds(copied(4 * rows))
    assert far > 4 * near * 0.9 * last.bandwidth_gbs / TARGET.memory_bandwidth_gbs / 2
    assert far >= 2 * last.bytes / (1e9 * TARGET.memory_bandwidth_gbs)
    assert near < last.bytes / (1e9 * TARGET.memory_bandwidth_gbs)


@pytest.mark.parametrize("size", [1 << 20, 1 << 30])
def test_constants_and_boundaries_come_from_the_same_place(size: int) -> None:
    moved = moving_seconds(size, TARGET.caches[-1:], TARGET)
    held = size <= TARGET.caches[-1].bytes
    wanted = TARGET.caches[-1].bandwidth_gbs if held else TARGET.memory_bandwidth_gbs
    assert moved == pytest.approx(size / (1e9 * wanted))
    assert constant_seconds(size, TARGET) == pytest.approx(moved)


@pytest.mark.parametrize("held", [True, False])
def test_memory_gives_parts_of_constants_no_sooner_than_the_whole(held: bool) -> None:
    """Two cores, of which one alone gets three quarters of the bandwidth, read a half each: from a cache in half of the
    time, from memory in what it gives both."""
    alone = 0.75 * TARGET.memory_bandwidth_gbs
    target = replace(TARGET, core_memory_bandwidth_gbs=alone, cold_bytes=0 if held else 1 << 30)
    size = target.caches[-1].bytes // 4
    one, both = constant_seconds(size, target), constant_seconds(size, target, cores=2)
    rate = target.caches[-1].bandwidth_gbs
    assert [one, both] == pytest.approx([size / (1e9 * x) for x in ((rate, rate) if held else (alone, alone * 4 / 3))])
    assert parted_seconds(size, np.array([0.5]), target, cores=2) == pytest.approx([both / 2 if held else both])


def filtered(threads: int, last: int) -> np.ndarray:
    """Seconds of a 3-D convolution by Winograd, by rows, each chunk of rows of tiles in turn: on a last cache of so
    many bytes."""
    target = replace(TARGET, cores=threads)
    caches = (*target.caches[:-1], replace(target.caches[-1], bytes=last))
    task = task_of("Conv", {"pads": [1] * 6}, [(1, 64, 16, 56, 56), (64, 64, 3, 3, 3)], consts=(1,), channels_last=True)
    found = sketches(task, replace(target, caches=caches), Policy())
    sketch = next(s for s in found if s.kind == "winograd" and s.name == "F(4, 3) by rows")
    chunk = [k.name for k in sketch.knobs].index("chunk")
    points = np.stack([sketch.start()] * len(sketch.knobs[chunk].values))
    points[:, chunk] = range(len(points))
    return sketch.estimate(points, threads)


def test_what_threads_hold_in_a_shared_cache_is_added_up() -> None:
    """Transformed tiles are scratch of each thread: what the cache holds for one, it does not hold for eight."""
    one, many = filtered(1, 1 << 26), filtered(8, 1 << 26)
    roomy = filtered(8, 1 << 29)
    assert one[2] == filtered(1, 1 << 29)[2]
    assert many[2] > 1.2 * roomy[2]
    assert many[0] == roomy[0]


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 16))
def test_the_busiest_core_has_what_the_pool_gives_it(extent: int, tile: int, cores: int) -> None:
    """Chunks and shares are cut as in runtime/modelc_pool.c, which takes whole iterations."""
    trips = -(-extent // tile)
    chunks = min(trips, cores * CHUNKS_PER_CORE)
    bounds = [trips * k // chunks for k in range(chunks + 1)]
    values = [min(extent, last * tile) - first * tile for first, last in pairwise(bounds)]
    shares = [sum(values[chunks * k // cores : chunks * (k + 1) // cores]) for k in range(cores)]
    found = float(busiest_share([(extent, tile)], cores))
    if trips == chunks:
        assert found == pytest.approx(max(shares) / extent)
    assert 1 / cores <= found + 1e-9 and found <= 1
