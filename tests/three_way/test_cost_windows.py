"""The cost of windows in which each lane is on its own (pooling, depthwise), against what was measured: of each pair of
register tiles the first one was faster by at least a quarter, on one Zen 4 core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from disassembly import disassembled
from schedules import loops
from three_ways import check, task_of

from modelc.codegen.kernels import compile_nest
from modelc.ir.block import Block, Task
from modelc.ir.loop import Loop
from modelc.ir.text import parse_task
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.cost.register_tile import loads
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.winograd import winograd_sketches
from modelc.space.sketches.winograd_traffic import Traffic
from modelc.space.tiling.operations import operations
from modelc.target import Cache, CostParameters, Target, load_target

ZEN4 = replace(
    load_target("x86-64-v4"),
    cores=1,
    fma_ports=1,
    peak={"float32": 116.0},
    caches=(
        Cache("L1", 32768, 64, 8, 206.0, False),
        Cache("L2", 1048576, 64, 8, 111.0, False),
        Cache("L3", 33554432, 64, 16, 96.1, True),
    ),
    memory_bandwidth_gbs=3.78,
)

ZEN3 = replace(
    load_target("x86-64-v3"),
    cores=1,
    peak={"float32": 96.9},
    caches=(
        Cache("L1", 32768, 64, 8, 190.0, False),
        Cache("L2", 524288, 64, 8, 97.1, False),
        Cache("L3", 33554432, 64, 16, 75.2, True),
    ),
    memory_bandwidth_gbs=24.2,
)

Knobs = Mapping[str, int | str]


def pool(size: int, channels: int) -> Task:
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0]}
    return task_of("MaxPool", attrs, [(1, channels, size, size)], channels_last=True)


def depthwise(size: int, channels: int, step: int, taps: int = 3, channels_last: bool = True) -> Task:
    attrs = {"kernel_shape": [taps] * 2, "strides": [step] * 2, "pads": [taps // 2] * 4, "group": channels}
    shapes = [(1, channels, size, size), (channels, 1, taps, taps)]
    return task_of("Conv", attrs, shapes, consts=(1,), channels_last=channels_last)


@cache
def sketch_of(name: str, size: int, channels: int, step: int, taps: int = 3) -> Contraction:
    task = pool(size, channels) if name == "pool" else depthwise(size, channels, step, taps)
    return contraction(task, ZEN4)


def contraction(task: Task, target: Target) -> Contraction:
    (found,) = (s for s in sketches(task, target, Policy()) if isinstance(s, Contraction))
    return found


def tile(w: int, vectors: int, order: str, chunk: int, h: int = 1) -> Knobs:
    return {"rows.h": h, "rows.w": w, "vectors": vectors, "order": order, "chunk": chunk}


MEASURED = {  # microseconds
    "77, not 196: the copy of a whole row is stored": (
        ("pool", 112, 64, 2),
        tile(1, 4, "rows", 1),
        tile(1, 4, "panels", 56),
    ),
    "75, not 162: the copy of eight tiles is stored": (
        ("pool", 112, 64, 2),
        tile(2, 1, "rows", 1),
        tile(7, 1, "panels", 56),
    ),
    "78, not 112: a window of 57 vectors is spilled": (
        ("pool", 112, 64, 2),
        tile(2, 2, "rows", 1),
        tile(9, 1, "rows", 1),
    ),
    "3.9, not 8.2, though all of it is near": (("pool", 28, 64, 2), tile(2, 1, "rows", 1), tile(7, 1, "panels", 14)),
    "33, not 61: twelve rows beside ten results": (
        ("depthwise", 112, 16, 1),
        tile(2, 1, "panels", 1, 3),
        tile(1, 1, "panels", 10, 10),
    ),
    "108, not 163: and rows of half a page, in few sets": (
        ("depthwise", 112, 96, 2),
        tile(2, 1, "panels", 1, 2),
        tile(1, 1, "panels", 10, 10),
    ),
    "193, not 374: rows of whole pages, in one set": (
        ("depthwise", 160, 32, 1),
        tile(2, 1, "panels", 1, 2),
        tile(1, 1, "panels", 1, 6),
    ),
    "53, not 61: each window alone is loaded whole": (
        ("depthwise", 56, 96, 1),
        tile(2, 1, "rows", 1, 3),
        tile(1, 4, "rows", 1),
    ),
}


@pytest.mark.parametrize("case", MEASURED)
def test_what_was_measured_to_be_faster_is_estimated_faster(case: str) -> None:
    which, *both = MEASURED[case]
    sketch = sketch_of(*which)
    names = {k.name: k.values for k in sketch.knobs}
    points = []
    for knobs in both:
        nearest = {"chunk": min(names["chunk"], key=lambda size, k=knobs: abs(int(size) - int(k["chunk"])))}  # type: ignore[misc]
        values = {**sketch.fixed, **sketch.start_values(), **{n: v for n, v in knobs.items() if n in names}, **nearest}
        points.append(sketch.point(values))
    assert sketch.legal(np.array(points)).all()
    better, worse = sketch.estimate(np.array(points), 1)
    assert better < 0.95 * worse


def test_a_window_alone_loads_every_tap_where_registers_are_few() -> None:
    """On one Zen 3 core, tiles of 2 x 2 windows took 0.60 of the time that tiles of one window of two vectors did."""
    sketch = contraction(depthwise(160, 64, 1), ZEN3)
    points = [sketch.point({**sketch.start_values(), **t}) for t in (tile(2, 1, "rows", 1, 2), tile(1, 2, "rows", 2))]
    better, worse = sketch.estimate(np.array(points), 1)
    assert better < 0.7 * worse


@pytest.mark.parametrize(
    ("h", "w", "vectors", "few", "many"),
    [(1, 1, 1, 9, 9), (2, 2, 1, 16 + 9, 16), (3, 1, 1, 15 + 9, 15), (1, 1, 2, 2 * (9 + 9), 2 * 9)],
)
def test_what_taps_and_rows_share_is_loaded_once(h: int, w: int, vectors: int, few: int, many: int) -> None:
    """Elements of windows of 3 x 3, then weights, which 32 registers keep, and 16 those of one vector."""
    for target, expected in ((ZEN3, few), (ZEN4, many)):
        tiled = contraction(depthwise(160, 64, 1), target).tiled
        wide, narrow = loads(tiled, np.array([[h, w]]), np.array([vectors]))
        assert 9 * wide[0] == pytest.approx(expected) and narrow[0] == 0


def test_the_larger_of_two_floats_takes_more_than_a_sum() -> None:
    """Neither is known to be a number: two instructions decide which is the larger, and a third keeps a NaN."""
    cost = CostParameters(extreme_operations=2.5, slow_cycles=12.0)
    counts = {}
    for body, dtype in (
        ("max= x[m, k]", "float32"),
        ("max= x[m, k]", "int32"),
        ("+= x[m, k]", "float32"),
        ("+= x[m, k] * x[m, k]", "float32"),
        ("+= max(x[m, k], 0.0)", "float32"),
        ("+= max(x[m, k], x[m, 0])", "float32"),
        ("+= exp(x[m, k])", "float32"),
    ):
        kind = "max" if body.startswith("max") else "add"
        task = parse_task(f"""\
task t(x) -> (y) anchor s0
  in x: {dtype}[8, 64]
  out y: {dtype}[8]
  block s0 [m:8 | k:64] {kind}
    y[m] {body.replace("0.0", "float32(0.0)")}""")
        block = task.block("s0")
        assert isinstance(block, Block)
        counts[body, dtype] = operations(task, block, cost)
    assert list(counts.values()) == [2.5, 1.0, 1.0, 1.0, 1.0, 2.5, 12.0]


def test_what_is_chosen_keeps_windows_in_registers(tmp_path: Path) -> None:
    """For every vector that is stored there are the comparisons of a result, two for each tap and one for the first: no
    copy is stored."""
    path = tmp_path / "kernel.o"
    code = compile_nest(chosen(pool(112, 64), ZEN4).nest, "kernel", ZEN4).object
    assert code is not None
    path.write_bytes(code)
    texts = [text for _, text in disassembled(path, ZEN4.triple) if "zmm" in text]
    stores = sum(text.startswith("vmov") and text.endswith(")") for text in texts)
    assert 0 < 17 * stores <= sum(text.startswith("vmaxps") for text in texts)


@pytest.mark.parametrize("which", [("pool", 19, 20, 2), ("depthwise", 17, 35, 1), ("depthwise", 19, 35, 2, 5)], ids=str)
def test_what_is_chosen_computes_right(which: tuple[str, int, int, int]) -> None:
    check(pool(*which[1:3]) if which[0] == "pool" else depthwise(*which[1:]))


@pytest.mark.parametrize(("size", "step", "taps"), [(14, 2, 3), (40, 1, 3), (20, 1, 5)])
def test_windows_along_a_row_are_written_out_too(size: int, step: int, taps: int) -> None:
    """Channels first, each lane is a place in a row, and all of them have one weight: padding is known for each tap."""
    task = depthwise(size, 24, step, taps, channels_last=False)
    check(task)
    schedule = chosen(task, ZEN4).candidate.blocks[task.anchor]
    assert schedule.order[-1].iterator == "w" and schedule.tags[schedule.order[-1]] == "vector"
    assert [schedule.tags.get(loop) for loop in loops("r0 s0")] == ["unroll", "unroll"]


def test_targets_say_what_the_larger_of_two_floats_takes() -> None:
    targets: dict[str, Target] = {name: load_target(name) for name in ("x86-64-v4", "cortex-a76", "armv7-neon")}
    assert {n: t.cost.extreme_operations for n, t in targets.items()} == {
        "x86-64-v4": 2.0,
        "cortex-a76": 1.0,
        "armv7-neon": 1.0,
    }


def test_walking_down_a_map_waits_for_rows_that_walking_along_does_not() -> None:
    """Depthwise, 16 channels of 320 x 320, by tiles of few columns: each tile of the next rows begins rows anew."""
    task = task_of("Conv", {"pads": [1] * 4, "group": 16}, [(1, 16, 320, 320), (16, 1, 3, 3)], (1,), True)
    target = replace(ZEN4, cores=2)
    (sketch,) = sketches(task, target, Policy())
    (parallel,) = (k for k in sketch.knobs if k.name == "parallel")
    points = np.stack([sketch.start()] * len(parallel.values))
    points[:, sketch.knobs.index(parallel)] = range(len(points))
    seconds = dict(zip(map(str, parallel.values), sketch.estimate(points, 2), strict=True))
    assert seconds["w0"] > 1.05 * seconds["h0"]
    tags = [block.tags.items() for block in chosen(task, target).candidate.blocks.values()]
    assert [loop for found in tags for loop, tag in found if tag == "parallel"] == [Loop("h", 0)]


def test_lines_less_than_a_page_apart_are_hardly_waited_for() -> None:
    """Pixels of 240 channels lie 960 bytes apart. Measured: one vector of channels along all pixels took 49
    microseconds, all channels of some pixels 56."""
    sketch = sketch_of("depthwise", 28, 240, 1, 5)
    start = sketch.values(sketch.start())
    points = np.stack([sketch.point({**start, **tile(3, 1, order, 1, 3)}) for order in ("panels", "rows")])
    along, across = sketch.estimate(points, 1)
    assert along < 1.15 * across


def test_an_estimate_does_not_depend_on_what_is_estimated_with_it() -> None:
    """Tiles as high as the map are among the points: their loops down it run once."""
    task = task_of("Conv", {"pads": [1] * 4, "group": 16}, [(1, 16, 6, 320), (16, 1, 3, 3)], (1,), True)
    (sketch,) = sketches(task, replace(ZEN4, cores=2), Policy())
    every = sketch.random(200, np.random.default_rng(0))
    alone = [sketch.estimate(point[None, :], 2)[0] for point in every]
    assert len(set(alone)) > 20
    assert sketch.estimate(every, 2) == pytest.approx(alone)


def test_a_kernel_lies_in_the_cache_that_holds_it() -> None:
    """All constants of the network do, and what its transform adds to them, in the half that other things leave: a run
    reads them in turn."""
    last, zero = ZEN4.caches[-1], np.zeros(1)
    room = last.bytes // 2

    def nanoseconds(kernel: int, constants: int = 0, more: int = 0) -> float:
        traffic = Traffic(zero, kernel, more, zero, zero, zero, zero, zero == 0, 1)
        moving = traffic.kernel_seconds(replace(ZEN4, cold_bytes=constants), np.ones(1))
        return 1e9 * float(moving[0]) / kernel

    near, far = pytest.approx(1 / last.bandwidth_gbs), pytest.approx(1 / ZEN4.memory_bandwidth_gbs)
    assert nanoseconds(last.bytes // 2) == nanoseconds(last.bytes) == near
    assert nanoseconds(last.bytes + 1) == far
    assert nanoseconds(room, room) == nanoseconds(room, room - 64, 64) == near
    assert nanoseconds(room, room + 1) == nanoseconds(room, room, 1) == far


def test_products_wait_longer_for_constants_from_memory_and_for_those_that_are_not_prefetched() -> None:
    """By Strassen's rule and by none: a constant of 2.4 MB, of a network that stays in the last cache or does not."""
    task = task_of("MatMul", {}, [(128, 768), (768, 768)], (1,))
    target = replace(ZEN4, cores=1)
    times = {}
    for cold, far in ((4 << 20, False), (2 * target.caches[-1].bytes, True)):
        for sketch in sketches(task, replace(target, cold_bytes=cold), Policy()):
            for fetching in ("far", "none"):
                point = sketch.point({**sketch.values(sketch.start()), "prefetch": fetching})
                times[sketch.name, far, fetching] = sketch.estimate(point[None], 1)[0]
    names = {name for name, _, _ in times}
    assert {"7 products", "avx512-f32 along n"} <= names
    for name in names:
        assert times[name, True, "far"] > times[name, False, "far"]
    assert times["7 products", True, "none"] > 1.05 * times["7 products", True, "far"]


def test_tiles_of_large_maps_are_worked_on_by_rows() -> None:
    """What phases leave to each other beyond the caches is written and read line by line, each in another plane."""
    scattered = {}
    for size in (28, 160):
        task = task_of("Conv", {"pads": [1] * 4}, [(1, 96, size, size), (24, 96, 3, 3)], (1,), True)
        found = {s.name: float(s.estimate(s.start()[None], 1)[0]) for s in winograd_sketches(task, ZEN4, [])}
        scattered[size] = found["F(4, 3) by points"] / found["F(4, 3) by rows"]
    assert scattered[28] < 1.3 < 1.5 < scattered[160]
