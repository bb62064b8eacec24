"""What lies beyond the nearer caches takes the time of where it lies, whichever estimate asks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from three_ways import task_of

from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.cost.overlap import moving_seconds, overlapped
from modelc.space.sketches.listing import sketches
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
    assert overlapped(0.0, size, TARGET) == pytest.approx(moved)
