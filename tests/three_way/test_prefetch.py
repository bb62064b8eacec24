"""Software prefetch: what a Nest asks for while it works on the panel before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from contractions import contractions
from hypothesis import given, settings
from hypothesis import strategies as st
from nest_texts import parse_nest
from numpy.typing import NDArray
from schedules import loops, tagged
from three_ways import check, task_of

from modelc.errors import InvalidIR
from modelc.ir.block import Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.evaluate import evaluate
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.ir.nest import For, Leaf, Nest, Prefetch, Stmt, without_hints
from modelc.ir.text import parse_task
from modelc.policy import Policy
from modelc.space.choose import accepted, chosen
from modelc.space.construct import constructed
from modelc.space.nest.build import build_nest
from modelc.space.sketches.listing import sketches
from modelc.space.sketches.products import Products
from modelc.space.sketches.winograd import Winograd
from modelc.space.sketches.winograd_roles import Shape
from modelc.target import Target, load_target

LINE = 16  # floats of a cache line


def matmul(m: int, n: int, k: int) -> Task:
    return parse_task(f"""\
task matmul(x, w) -> (y) anchor s0
  in x: float32[{m}, {k}]
  const w: float32[{k}, {n}]
  out y: float32[{m}, {n}]
  block s0 [m:{m} n:{n} | k:{k}] add
    y[m, n] += x[m, k] * w[k, n]""")


M0, N0 = Loop("m", 0), Loop("n", 0)


def candidate(n: int, rows: int, vectors: int, steps: int, panel: Loop = N0) -> Candidate:
    wide = 16 * vectors
    layout = Layout().then("split", 1, wide).then("reorder", 1, 0, 2)
    if n % wide:
        layout = Layout().then("pad", 1, 0, wide - n % wide).then("split", 1, wide).then("reorder", 1, 0, 2)
    tiles = {"n": (wide, 16), "m": (rows,), "k": (steps,)}
    order = loops("n0 m0 k0 k1 m1 n1 n2")
    tags = tagged(k1="unroll", m1="unroll", n1="unroll", n2="vector")
    schedule = BlockSchedule(ROOT, "arena", tiles, order, tags, prefetch={"w": panel})
    return Candidate({"s0": schedule}, (), {"w": layout})


def prefetches(body: Sequence[Stmt], around: tuple[For, ...] = ()) -> Iterator[tuple[Prefetch, tuple[For, ...]]]:
    """Every prefetch, and the loops around it."""
    for stmt in body:
        if isinstance(stmt, For):
            yield from prefetches(stmt.body, (*around, stmt))
        elif isinstance(stmt, Prefetch):
            yield stmt, around


def fetched(nest: Nest, write: bool = False) -> Iterator[tuple[tuple[For, ...], NDArray[np.int64]]]:
    """(the loops around a prefetch, the line of the operand's storage that each of their iterations asks for), of those
    that are to be written, or of those that are to be read."""
    for stmt, around in (one for phase in nest.phases for one in prefetches(phase) if one[0].write == write):
        (region,) = (p for p in nest.params if p.name == stmt.access.buffer)
        numbers = np.indices([loop.extent for loop in around])
        grid = {loop.var: own for loop, own in zip(around, numbers, strict=True)}
        at = [evaluate(index, grid, {}) for index in stmt.access.indices]
        element = sum(i * s for i, s in zip(at, region.stride, strict=True))
        yield around, np.broadcast_to(element, numbers.shape[1:]) // LINE


def lines_of(nest: Nest, write: bool = False) -> set[int]:
    """All that are asked for."""
    return {line for _, lines in fetched(nest, write) for line in np.unique(lines).tolist()}


def sizes(n: st.SearchStrategy[int]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A test of products of several sizes, in several register tiles."""
    drawn = given(
        m=st.integers(1, 9),
        n=n,
        k=st.integers(4, 60),
        rows=st.integers(1, 4),
        vectors=st.integers(1, 4),
        steps=st.integers(1, 4),
    )
    return lambda test: settings(deadline=None, max_examples=40)(drawn(test))


def asked(nest: Nest, write: bool = False) -> dict[int, set[int]]:
    """Iteration of n0 -> the lines of the operand that it asks for."""
    result: dict[int, set[int]] = {}
    for around, lines in fetched(nest, write):
        for axis in (k for k, loop in enumerate(around) if loop.var == "n0"):
            for outer, own in enumerate(np.moveaxis(lines, axis, 0)):
                result.setdefault(outer, set()).update(np.unique(own).tolist())
    return result


@sizes(st.integers(33, 150))
def test_each_panel_fetches_all_lines_of_the_next(m: int, n: int, k: int, rows: int, vectors: int, steps: int) -> None:
    nest = build_nest(matmul(m, n, k), candidate(n, min(rows, m), vectors, min(steps, k)))
    assert parse_nest(str(nest)) == nest
    panel = k * 16 * vectors
    for outer, lines in asked(nest).items():
        assert lines >= {e // LINE for e in range(panel * (outer + 1), panel * (outer + 2))}


def transposed(m: int, n: int, k: int) -> Task:
    """A product whose operand [k, n] is computed: it is read through a copy, made in the loop over panels."""
    return parse_task(f"""\
task matmul(x, w) -> (y) anchor s0
  in x: float32[{k}, {n}]
  const w: float32[{m}, {k}]
  out y: float32[{m}, {n}]
  block s0 [m:{m} n:{n} | k:{k}] add
    y[m, n] += w[m, k] * x[k, n]""")


def copying(n: int, rows: int, vectors: int, steps: int) -> Candidate:
    copy = BlockSchedule(Inside("s0", N0), "local", {"pb": (16,)}, loops("pa0 pb0 pb1"), tagged(pb1="vector"))
    schedule = replace(candidate(n, rows, vectors, steps).blocks["s0"], prefetch={"x": N0})
    return Candidate({"pack_x": copy, "s0": schedule}, (Stage("cache_read", {"block": "s0", "buffer": "x"}),))


@sizes(st.integers(3, 9))
def test_each_copy_fetches_all_rows_of_the_next(m: int, n: int, k: int, rows: int, vectors: int, steps: int) -> None:
    n *= LINE  # so that every row begins at a line
    nest = build_nest(transposed(m, n, k), copying(n, min(rows, m), vectors, min(steps, k)))
    assert parse_nest(str(nest)) == nest
    wide = 16 * vectors
    for outer, lines in asked(nest).items():
        assert lines == {(row * n + wide * (outer + 1)) // LINE + v for row in range(k) for v in range(vectors)}


@sizes(st.integers(3, 9))
def test_rows_that_are_read_as_they_lie_are_fetched(
    m: int, n: int, k: int, rows: int, vectors: int, steps: int
) -> None:
    n *= LINE
    plain = candidate(n, min(rows, m), vectors, min(steps, k)).blocks["s0"]
    nest = build_nest(transposed(m, n, k), Candidate({"s0": replace(plain, prefetch={"x": N0})}))
    assert parse_nest(str(nest)) == nest
    wide = 16 * vectors
    for outer, lines in asked(nest).items():
        assert lines == {(row * n + wide * (outer + 1)) // LINE + v for row in range(k) for v in range(vectors)}


def storing(rows: int, vectors: int, steps: int) -> Candidate:
    plain = candidate(LINE, rows, vectors, steps).blocks["s0"]
    tags = tagged(m0="unroll", n0="unroll", n1="vector")
    write = BlockSchedule(Inside("s0", M0), "arena", {"n": (16,)}, loops("m0 n0 n1"), tags)
    stage = Stage("cache_write", {"block": "s0"})
    return Candidate({"s0": replace(plain, scope="register", prefetch={"y": M0}), "write_y": write}, (stage,))


@sizes(st.integers(3, 9))
def test_each_register_tile_fetches_what_it_writes(m: int, n: int, k: int, rows: int, vectors: int, steps: int) -> None:
    n *= LINE
    nest = build_nest(matmul(m, n, k), storing(min(rows, m), vectors, steps))
    assert parse_nest(str(nest)) == nest
    assert all(s.write for s in nest.statements() if isinstance(s, Prefetch))
    wide = LINE * vectors
    for outer, lines in asked(nest, write=True).items():
        assert lines == {(row * n + wide * outer) // LINE + v for row in range(m) for v in range(vectors)}


def convolution(c: int, size: int, o: int) -> Task:
    attrs = {"pads": (1,) * 4, "strides": (1, 1), "dilations": (1, 1), "group": 1}
    return task_of("Conv", attrs, [(1, c, size, size), (o, c, 3, 3)], consts=(1,), channels_last=True)


@pytest.mark.parametrize("task", [matmul(64, 192, 128), convolution(32, 12, 48)], ids=["matmul", "convolution"])
@pytest.mark.sweep(1)
def test_products_that_a_rule_derived_fetch_their_whole_constant(task: Task) -> None:
    """Their register tiles lie inside loops of another Block, one iteration of which has some of the rows and of the
    columns: while these go over one part of the constant, every line of the next is asked for."""
    target, checked = load_target("x86-64-v4"), 0
    for sketch in (s for s in sketches(task, target, Policy()) if isinstance(s, Products)):
        points = sketch.random(4, np.random.default_rng(0))
        for point in points:
            found = accepted(task, sketch.candidate(point), target)
            if lines := lines_of(found.nest):
                (constant,) = {s.access.buffer for s in found.nest.statements() if isinstance(s, Prefetch)}
                (region,) = (p for p in found.nest.params if p.name == constant)
                assert lines >= set(range(min(lines), prod(region.shape) // LINE)), sketch.values(point)
                checked += 1
    assert checked >= 4


def by_rows(task: Task, target: Target) -> list[Winograd]:
    found = sketches(task, target, Policy())
    return [s for s in found if isinstance(s, Winograd) and s.shape is Shape.ROWS]


def test_filtered_convolutions_fetch_all_that_they_write() -> None:
    """While a chunk of tiles is multiplied, every line is asked for that its results go to, and no farther ones than
    whole tiles have; where they stay in the second-level cache, none is."""
    task, target, checked = convolution(16, 23, 48), load_target("x86-64-v4"), 0
    lines = set(range(task.buffer(task.outputs[0]).bytes // 64))
    row, (first, second, *others) = 23 * 48 // LINE, target.caches
    small = replace(target, caches=(first, replace(second, bytes=2 * first.bytes), *others))
    for near, far in zip(by_rows(task, target), by_rows(task, small), strict=True):
        assert not any(far.task.outputs[0] in b.prefetch for b in near.candidate(near.start()).blocks.values())
        for point in far.random(4, np.random.default_rng(0)):
            candidate = Candidate.from_json(far.candidate(point).to_json())  # what choices.json keeps
            nest = accepted(task, candidate, small).nest
            if found := lines_of(nest, write=True):
                assert found >= lines, far.values(point)
                assert max(found) < max(lines) + far.roles.m * row, far.values(point)
                checked += 1
    assert checked >= 8


def test_results_beyond_the_second_cache_are_fetched_to_be_written() -> None:
    target = load_target("x86-64-v4")
    for n, beyond in ((16384, True), (256, False)):
        task = transposed(128, n, 64)
        assert (task.buffer("y").bytes > target.second.bytes) == beyond
        found = chosen(task, target)
        assert any(isinstance(s, Prefetch) and s.write for s in found.nest.statements()) == beyond


def test_results_that_spill_the_second_cache_are_fetched_in_any_order() -> None:
    """16 channels to 96 over 112 x 112, side by side (4.8 MB): stores took 1.14 of the time without (Zen 4)."""
    target = replace(load_target("x86-64-v4"), cores=1)
    narrow, wide = (chosen(matmul(112 * 112, n, 16), target).nest for n in (32, 96))
    assert target.second.bytes < 112 * 112 * 32 * 4 < 2 * target.second.bytes < 112 * 112 * 96 * 4
    assert lines_of(wide, write=True) and not lines_of(narrow, write=True)


def test_rows_that_are_copied_from_beyond_the_second_cache_are_fetched_ahead() -> None:
    target = load_target("x86-64-v4")
    for k, beyond in ((512, True), (16, False)):
        task = transposed(64, 8192, k)
        assert (task.buffer("x").bytes > target.second.bytes) == beyond
        sketch = next(s for s in sketches(task, target, Policy()) if s.name == "avx512-f32 along m")
        candidate = sketch.candidate(constructed(sketch, target.cores, 1)[0].point)
        assert candidate.blocks["pack_x"].at is not ROOT
        assert ("x" in candidate.blocks["s0"].prefetch) == beyond


@pytest.mark.parametrize(("n", "k", "unpacked"), [(3136, 64, True), (4096, 1024, False)], ids=str)
def test_rows_far_apart_are_copied_where_they_would_crowd_in_caches(n: int, k: int, unpacked: bool) -> None:
    """Rows of 4096 floats lie in few sets of a cache: without a copy, each register tile would bring them again."""
    found = chosen(transposed(64, n, k), load_target("x86-64-v4")).candidate
    assert any(stage.rule == "cache_read" for stage in found.stages) != unpacked


@pytest.mark.parametrize("bandwidth", [5.0, 20.0])
def test_register_tiles_are_large_where_what_they_would_wait_for_is_fetched(bandwidth: float) -> None:
    target = replace(load_target("x86-64-v4"), memory_bandwidth_gbs=bandwidth)
    found = chosen(transposed(64, 6272000, 64), target).candidate
    schedule = found.blocks["s0"]
    assert {"x", "y"} <= schedule.prefetch.keys()
    assert schedule.tiles["m"][-1] * schedule.tiles["n"][0] // LINE >= 20


@pytest.mark.parametrize("n", [528, 530])
def test_what_is_read_as_it_lies_computes_the_same(n: int) -> None:
    """Vectors at lines and across them; the next panel is prefetched, the one after the last as well."""
    task, target = transposed(70, n, 9), load_target("x86-64-v4")
    (found,) = (s for s in contractions(task, target) if s.tiled.unpacked)
    candidate = found.candidate(found.start())
    assert not any(stage.rule == "cache_read" for stage in candidate.stages)
    prefetching = replace(candidate.blocks["s0"], prefetch={"x": N0})
    built = check(task, replace(candidate, blocks={**candidate.blocks, "s0": prefetching}))
    assert any(isinstance(s, Prefetch) for s in built.nest.statements())


def test_nothing_is_fetched_after_the_last_box() -> None:
    """Seven images in tiles of three: after the one that is left, the next would begin beyond the end."""
    task = parse_task("""\
task pointwise(x, w) -> (y) anchor s0
  in x: float32[7, 5, 16]
  const w: float32[16, 16]
  out y: float32[7, 5, 16]
  block s0 [n:7 p:5 o:16 | k:16] add
    y[n, p, o] += x[n, p, k] * w[k, o]""")
    tags = tagged(n1="unroll", o0="unroll", o1="vector")
    order = loops("n0 p0 k0 n1 o0 o1")
    schedule = BlockSchedule(ROOT, "arena", {"n": (3,), "o": (16,)}, order, tags, prefetch={"x": N0})
    lines = asked(check(task, Candidate({"s0": schedule})).nest)
    assert lines.keys() == {0, 1}
    assert {5 * n + p for n in range(3, 7) for p in range(5)} <= lines[0] | lines[1]


def test_hints_change_nothing_that_is_computed() -> None:
    built = check(matmul(7, 70, 13), candidate(70, 3, 2, 4))
    assert any(isinstance(s, Prefetch) for s in built.nest.statements())
    (body,) = built.nest.phases
    assert not any(isinstance(s, Prefetch) for s in Nest("n", (), (), (without_hints(body),)).statements())
    assert any(isinstance(s, Leaf) for s in built.nest.statements())


@pytest.mark.parametrize("panel", loops("m1 k0 z0"), ids=str)
def test_a_loop_that_has_no_steps_inside_is_refused(panel: Loop) -> None:
    with pytest.raises(InvalidIR, match="cannot prefetch 'w'"):
        build_nest(matmul(7, 70, 13), candidate(70, 3, 2, 4, panel))


def test_parts_that_do_not_lie_one_after_the_other_are_refused() -> None:
    plain = candidate(70, 3, 2, 4, M0)
    with pytest.raises(InvalidIR, match="do not lie one after the other"):
        build_nest(matmul(7, 70, 13), plain)
