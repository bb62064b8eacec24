"""Footprints by closed forms are what enumeration finds; traffic follows reuse; ALT's table 2."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Var, op
from modelc.ir.layout import Layout, reordered
from modelc.space.analysis.footprint import footprint, reach, reaches, traffic
from modelc.space.cost.conflicts import conflicting_bytes
from modelc.target import Cache

ITERS = ("i", "j", "k")


def index_of(coefficients: list[int], constant: int = 0) -> Expr:
    index: Expr = Const(constant)
    for name, c in zip(ITERS, coefficients, strict=True):
        if c:
            index = op("add", index, op("mul", Var(name), c))
    return index


def task_of(indices: list[Expr], shape: tuple[int, ...], layout: Layout | None = None) -> tuple[Task, Block]:
    buffers = (Buffer("x", "float32", shape, layout or Layout()), Buffer("y", "float32", (64, 64, 64)))
    write = Load("y", tuple(Var(n) for n in ITERS))
    block = Block("b", tuple(Iter(n, 64) for n in ITERS), (write,), (Load("x", tuple(indices)),))
    return Task("t", buffers, ("x",), ("y",), (block,), "b"), block


def touched(indices: list[list[int]], tile: tuple[int, ...]) -> set[tuple[int, ...]]:
    points = product(*map(range, tile))
    return {tuple(sum(c * x for c, x in zip(cs, p, strict=True)) for cs in indices) for p in points}


coefficients = st.lists(st.integers(0, 7), min_size=3, max_size=3)
tiles_of = st.lists(st.tuples(*[st.integers(1, 7)] * 3), min_size=1, max_size=6)


@settings(deadline=None, max_examples=75)
@given(st.lists(coefficients, min_size=1, max_size=3), tiles_of)
def test_elements_are_what_enumeration_finds(indices: list[list[int]], tiles: list[tuple[int, ...]]) -> None:
    task, block = task_of([index_of(c) for c in indices], (200,) * len(indices))
    (read,), _ = reaches(task, block)
    found = footprint(read, np.array(tiles), 64)
    assert found.elements.tolist() == [len(touched(indices, t)) for t in tiles]
    assert found.bytes.tolist() == (4 * found.elements).tolist()


@settings(deadline=None, max_examples=50)
@given(st.permutations([0, 1, 2]), tiles_of, st.booleans())
def test_lines_are_what_enumeration_finds(order: list[int], tiles: list[tuple[int, ...]], window: bool) -> None:
    """Rows of whole lines that start at a line: plain and strided windows over any storage order."""
    shape = (16, 32, 48)
    used = [[1, 0, 1 if window else 0], [0, 2 if window else 1, 0], [0, 0, 1]]
    if window:  # an iterator of its own in each dimension
        used = [[1, 0, 0], [0, 2, 1], [0, 0, 0]]
    task, block = task_of([index_of(c) for c in used], shape, reordered(*order))
    (read,), _ = reaches(task, block)
    physical = [shape[d] for d in order]
    strides = {d: prod(physical[p + 1 :]) for p, d in enumerate(order)}
    found = footprint(read, np.array(tiles), 64)
    for tile, lines, runs in zip(tiles, found.lines, found.runs, strict=True):
        flat = sorted(sum(i * strides[d] for d, i in enumerate(x)) for x in touched(used, tile))
        wanted = len({x // 16 for x in flat})
        assert runs <= lines <= len(flat)
        assert lines == pytest.approx(wanted, rel=0.35, abs=0.5)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([6, 7, 8, 16, 24, 32, 49, 64]))
def test_rows_apart_take_the_sets_that_they_fall_into(times: int, lines: int, step: int) -> None:
    """Rows of whole lines, `step` lines apart, in a cache of 8 sets."""
    rows = 8 * times
    task, block = task_of([index_of([1, 0, 0]), index_of([0, 1, 0])], (rows, 16 * step))
    (read,), _ = reaches(task, block)
    found = footprint(read, np.array([(rows, 16 * lines, 1)]), 64)
    used = len({(row * step + line) % 8 for row in range(rows) for line in range(lines)})
    wanted = rows * lines * (8 / used - 1)  # if all sets had as many lines as those have
    assert conflicting_bytes(found, Cache("L2", 2048, 64, 4, 100.0, False))[0] == pytest.approx(64 * wanted)


def test_lines_of_aligned_rows_are_exact() -> None:
    task, block = task_of([Var("i"), Var("j"), Var("k")], (8, 32, 64))
    (read,), _ = reaches(task, block)
    tiles = np.array([(1, 1, 16), (1, 1, 17), (2, 3, 5), (2, 3, 64), (2, 32, 64), (8, 32, 64)])
    found = footprint(read, tiles, 64)
    assert found.lines.tolist() == [1, 2, 6, 24, 256, 1024]
    assert found.runs.tolist() == [1, 1, 6, 2, 1, 1]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(0, 20), tiles_of)
def test_quotients_and_remainders_are_not_underestimated(by: int, start: int, tiles: list[tuple[int, ...]]) -> None:
    whole = op("add", op("mul", Var("i"), 3), op("add", Var("j"), start))
    task, block = task_of([op("floordiv", whole, by), op("mod", Var("k"), by)], (100, by))
    (read,), _ = reaches(task, block)
    found = footprint(read, np.array(tiles), 64).elements
    for tile, elements in zip(tiles, found, strict=True):
        points = {((3 * i + j + start) // by, k % by) for i, j, k in product(*map(range, tile))}
        assert len(points) <= elements <= prod(tile)


def test_what_is_read_by_data_is_read_whole() -> None:
    task, block = task_of([Load("y", (Var("i"), Const(0), Const(0)))], (100,))
    read = reach(task, next(r for r in block.reads if r.buffer == "x"), ITERS)
    assert footprint(read, np.array([(1, 1, 1)]), 64).elements.tolist() == [100]


def test_a_matrix_product_moves_what_its_loops_do_not_reuse() -> None:
    """C[i, j] += A[i, k] * B[k, j], 64^3, loops i j k from the outermost, tiles of 1: with room for one row of A and
    one column, A crosses once and B once for each i; with room for B, all crosses once; with none, all is re-read."""
    n = 64
    one = np.ones(1)
    trips = [n * one] * 3  # k, j, i
    a = [one, n * one, n * one, n * n * one]
    b = [one, n * one, n * n * one, n * n * one]
    held = [x + y for x, y in zip(a, b, strict=True)]
    row, everything, nothing = 4.0 * n, 3.0 * n * n, 0.5
    assert traffic(a, trips, held, row, 0.25) == n * n and traffic(b, trips, held, row, 0.25) == n**3
    assert traffic(a, trips, held, everything, 0.25) == n * n and traffic(b, trips, held, everything, 0.25) == n * n
    assert traffic(a, trips, held, nothing, 0.25) == n**3 and traffic(b, trips, held, nothing, 0.25) == n**3


def test_halos_are_reused_between_iterations_that_fit() -> None:
    """A window of 3 that slides over 100 elements: 102 cross, not 300."""
    inside, trips = [3 * np.ones(1), 102 * np.ones(1)], [100 * np.ones(1)]
    assert traffic(inside, trips, inside, 16.0, 0.25) == 102
    assert traffic(inside, trips, inside, 1.0, 0.25) == 300


@pytest.mark.parametrize(("columns", "predicted", "measured"), [(4, 32, 208), (16, 128, 262), (64, 512, 785)])
def test_alt_table_2(columns: int, predicted: int, measured: int) -> None:
    """512 x columns floats, lines of 16: stored as a tile, one miss for four lines (the table's prediction); as rows of
    a wider array, at least one for each row (the table's last column says more)."""
    (tile,) = reaches(*task_of([Var("i"), Var("j")], (512, columns)))[0]
    (rows,) = reaches(*task_of([Var("i"), Var("j")], (512, 1024)))[0]
    box = np.array([(512, columns, 1)])
    assert footprint(tile, box, 64).misses == predicted
    assert footprint(rows, box, 64).misses >= max(predicted, min(512, measured))
