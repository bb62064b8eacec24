"""The roofline of a Task: what is computed at the peak, what is moved at the bandwidth of where it lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from three_ways import task_of

from modelc.space.cost.roofline import roofline_seconds
from modelc.target import load_target
from modelc.tune.search.population import Space

TARGET = load_target("x86-64-v4")
L1, L2 = TARGET.caches[:2]
PEAK, MEMORY = 1e9 * TARGET.peak["float32"], 1e9 * TARGET.memory_bandwidth_gbs


def of(*arguments: object, cold: int = 0, cores: int = 1) -> float:
    return roofline_seconds([task_of(*arguments)], replace(TARGET, cold_bytes=cold), cores)


def test_products_are_bound_by_arithmetic() -> None:
    product = "MatMul", {}, [(128, 256), (256, 512)], (1,)
    assert of(*product) == pytest.approx(2 * 128 * 256 * 512 / PEAK)
    assert of(*product, cores=2) == pytest.approx(128 * 256 * 512 / PEAK)


def test_constants_come_from_where_a_networks_parameters_lie() -> None:
    row = "MatMul", {}, [(1, 512), (512, 512)], (1,)
    assert of(*row, cold=1 << 40) == pytest.approx(4 * 512 * 512 / MEMORY)
    size = 4 * 512 * 512
    near = next(c.bandwidth_gbs for c in TARGET.caches if size <= c.bytes)
    assert of(*row) == pytest.approx(max(2 * 512 * 512 / PEAK, size / (1e9 * near)))
    assert of(*row) < of(*row, cold=1 << 40)


def test_maps_are_bound_by_what_they_move() -> None:
    assert of("Relu", {}, [(16, 128)]) == pytest.approx(2 * 4 * 16 * 128 / (1e9 * L1.bandwidth_gbs))
    elements = L2.bytes // 16
    assert of("Relu", {}, [(elements,)]) == pytest.approx(8 * elements / (1e9 * L2.bandwidth_gbs))


def test_what_is_not_addressed_is_not_moved() -> None:
    """A convolution of 1 x 1 with stride 2 reads a quarter of its input, a Gather the rows that it takes."""
    conv = task_of("Conv", {"strides": [2, 2]}, [(1, 8, 64, 64), (8, 8, 1, 1)], (1,))
    whole = task_of("Conv", {}, [(1, 8, 32, 32), (8, 8, 1, 1)], (1,))
    assert roofline_seconds([conv], TARGET) == pytest.approx(roofline_seconds([whole], TARGET))
    gather = task_of("Gather", {}, [(100_000, 64), (4,)], dtypes=["float32", "int64"])
    assert roofline_seconds([gather], TARGET) == pytest.approx((2 * 4 * 4 * 64 + 8 * 4) / (1e9 * L1.bandwidth_gbs))


def test_the_least_of_all_ways_counts_and_nothing_is_said_of_what_is_opaque() -> None:
    conv = task_of("Conv", {"pads": [1] * 4}, [(1, 64, 28, 28), (64, 64, 3, 3)], (1,))
    space = Space(conv, TARGET)
    tasks = {sketch.task for sketch in space.sketches}
    assert len(tasks) > 1, "there is another way to compute it"
    assert roofline_seconds(tasks, TARGET) <= roofline_seconds([conv], TARGET)
    top = task_of("TopK", {"axis": -1}, [(6, 50), (1,)], steering={1: np.array([5])}, outputs=2)
    assert roofline_seconds([top], TARGET) == 0


def test_narrow_numbers_have_a_peak_of_their_own() -> None:
    fast = replace(TARGET, peak={"float32": 100.0, "int8": 400.0, "bfloat16": 200.0})
    shapes = [(128, 256), (256, 512)]
    products = 2 * 128 * 256 * 512
    for dtypes, peak in ((["float32"] * 2, 100), (["bfloat16"] * 2, 200), (["uint8", "int8"], 400)):
        name = "MatMulInteger" if "int8" in dtypes else "MatMul"
        found = roofline_seconds([task_of(name, {}, shapes, (1,), dtypes=dtypes)], fast)
        assert found >= products / (1e9 * peak) and found == pytest.approx(products / (1e9 * peak), rel=0.05)
