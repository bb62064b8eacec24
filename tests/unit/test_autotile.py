"""Stripe's autotiler as a pass: the costs of figure 4, figure 5 as Blocks and Nests print, tiles of any contraction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelc.errors import ConfigError, TargetError
from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import Load, Var, op
from modelc.ir.interpret import run_block, run_nest
from modelc.ir.nest import Alloc, Branch, For, Nest, Stmt
from modelc.ir.verify_nest import verify_nest
from modelc.space.nest.build import build_nest
from modelc.space.passes.autotile import Autotile, tile_costs
from modelc.space.passes.listed import local_bytes, make_block_passes, scheduled
from modelc.space.passes.scheduling import Scheduling
from modelc.space.rules.derivation import derive
from modelc.target import Memory, Target, load_target

LINE, MOST = 8, 512  # bytes of a cache line, and of the memory
FIGURE_4 = {"memory": "near", "line": LINE, "bytes": MOST, "constants": "whole"}


def machine(size: int = 1 << 16) -> Target:
    return replace(load_target("riscv64-v"), memories=(Memory("near", size, 64),))


def figure_5() -> tuple[Task, Block]:
    """The convolution of figure 5 (a). Its condition on y + j says 12 in (a) and 16 in (b): 16 is meant."""
    x, y, i, j, c, k = (Var(n) for n in "xyijck")
    row, column = op("sub", op("add", x, i), 1), op("sub", op("add", y, j), 1)
    inside = (op("ge", row, 0), op("lt", row, 12), op("ge", column, 0), op("lt", column, 16))
    iters = (Iter("x", 12), Iter("y", 16), Iter("k", 16), Iter("i", 3, True), Iter("j", 3, True), Iter("c", 8, True))
    body = op("mul", Load("I", (row, column, c)), Load("F", (i, j, k, c)))
    block = Block("conv", iters, (Load("O", (x, y, k)),), (body,), "add", inside)
    shapes = {"I": (12, 16, 8), "F": (3, 3, 16, 8), "O": (12, 16, 16)}
    buffers = tuple(Buffer(n, "int8", s) for n, s in shapes.items())
    return Task("main", buffers, ("I", "F"), ("O",), (block,), "conv", frozenset({"F"})), block


# --- figure 4 ---------------------------------------------------------------------------------------------------------
#
# The convolution is 3 x 3 over 12 x 16 positions with 8 channels in and 16 out, one byte each, lines of 8: one line of
# input and two of output at each position, so a tile of x by y costs (x + 2)(y + 2) + 2xy lines, and at most 512 bytes
# of input and output may be in memory: 8(x + 2)(y + 2) + 16xy. The paper shows 6 x 2 (4.666), 3 x 4 (4.5), 4 x 4 (too
# large) and a tile of cost 5.625 whose size it does not print. Of the tiles that do not divide 12 x 16, those that fit
# cost 5.0625 (4 x 3: 4.5 were it not for the overflow), 5.25 (2 x 6), 5.333 (7 x 2), 5.375 (3 x 3), 6 (2 x 3, 2 x 5,
# 2 x 7, 5 x 2) and more; 5.625 is the cost of none that fits (of those that do not, 4 x 12 has it).


def costs(*tiles: tuple[int, int]) -> tuple[list[float], list[int]]:
    """Figure 4's cost of tiles of x by y, and the bytes that each takes."""
    task, block = figure_5()
    whole = np.array([(x, y, 16, 3, 3, 8) for x, y in tiles], np.int64)
    priced = tile_costs(task, block, whole, LINE, ("F",), ("k", "i", "j", "c"))
    return priced.cost.tolist(), priced.bytes.astype(int).tolist()


def tile_of(options: Mapping[str, object]) -> dict[str, int]:
    """What the pass chooses for x and y."""
    task, _ = figure_5()
    tiles = scheduled(task, [{"autotile": {**FIGURE_4, **options}}], machine()).blocks["conv"].tiles
    assert all(tiles[name] == (extent,) for name, extent in (("k", 16), ("i", 3), ("j", 3), ("c", 8)))
    return {name: tiles[name][0] for name in "xy"}


def test_figure_4() -> None:
    cost, taken = costs((6, 2), (3, 4), (4, 4))
    assert cost[0] == pytest.approx(14 / 3) and cost[1] == 4.5
    assert taken[0] <= MOST and taken[1] <= MOST < taken[2]


def test_the_pass_takes_the_tile_of_figure_4b() -> None:
    assert tile_of({}) == {"x": 3, "y": 4}
    assert tile_of({"sizes": "all"}) == {"x": 3, "y": 4}  # those that do not divide as well
    assert tile_of({"bytes": 640}) == {"x": 4, "y": 4}  # which figure 4c excludes, at 4.25
    assert tile_of({"sizes": "powers"}) in ({"x": 2, "y": 4}, {"x": 4, "y": 2})
    assert tile_of({"line": 32}) == {"x": 6, "y": 2}  # a line has the channels of four positions


def test_overflow_costs() -> None:
    """Tiles that do not divide 12 x 16 touch lines for positions that do not exist."""
    assert costs((4, 3), (2, 6), (7, 2), (3, 3), (5, 2))[0] == pytest.approx([5.0625, 5.25, 16 / 3, 5.375, 6.0])
    every = [(x, y) for x in range(1, 13) for y in range(1, 17)]
    cost, taken = costs(*every)
    assert 5.625 not in [c for c, size in zip(cost, taken, strict=True) if size <= MOST]
    assert [tile for tile, c in zip(every, cost, strict=True) if c == 5.625] == [(4, 12)]


def test_a_budget_into_which_nothing_fits() -> None:
    with pytest.raises(
        TargetError, match=r"no tile of the block conv \[x:12 .*\] add that fits in 16 bytes of near: the "
    ):
        tile_of({"bytes": 16})
    with pytest.raises(TargetError, match=r"smallest takes 88; give it more `bytes`, or `constants: tiled`"):
        tile_of({"bytes": 16})


def test_too_many_tiles() -> None:
    task, _ = matrix(2048, 2048, 2048)
    with pytest.raises(
        TargetError, match=r"8589934592 tiles to choose from .* prices 1048576: give it `sizes: divisors`"
    ):
        scheduled(task, [{"autotile": {"memory": "near", "sizes": "all"}}], machine())


# --- figure 5 ---------------------------------------------------------------------------------------------------------

BEFORE = """\
block conv [x:12 y:16 k:16 | i:3 j:3 c:8] add
  where x + i - 1 >= 0 and x + i - 1 < 12 and y + j - 1 >= 0 and y + j - 1 < 16
  O[x, y, k] += I[x + i - 1, y + j - 1, c] * F[i, j, k, c]"""

TILED = """\
nest main(I: int8[12, 16, 8]; F: int8[3, 3, 16, 8]; O: int8[12, 16, 16]) -> (O)
  phase
    for x0:4
      for y0:4
        for x1:3
          for y1:4
            for k1:16
              init conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k1] add
                O[x0 * 3 + x1, y0 * 4 + y1, k1] = int8(0)
        for x1:3
          for y1:4
            for k1:16
              for i1:3
                for j1:3
                  for c1:8
                    update conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k1, i=i1, j=j1, c=c1] add
                      where ROW >= 0 and ROW < 12 and COLUMN >= 0 and COLUMN < 16
                      O[x0 * 3 + x1, y0 * 4 + y1, k1] += I[ROW, COLUMN, c1] * F[i1, j1, k1, c1]"""

AFTER = """\
    for x0:4
      for y0:4
        local I_padded: int8[5, 6, 8]
        local O_acc: int8[3, 4, 16]
        for x1:3
          for y1:4
            for k1:16
              init conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k1] add
                O_acc[x1, y1, k1] = int8(0)
        for x1:3
          for y1:4
            for k1:16
              for i1:3
                for j1:3
                  for c1:8
                    update conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k1, i=i1, j=j1, c=c1] add
                      O_acc[x1, y1, k1] += I_padded[x1 + i1, y1 + j1, c1] * F[i1, j1, k1, c1]
"""


def test_figure_5_before() -> None:
    assert str(figure_5()[1]) == BEFORE


def test_figure_5_after() -> None:
    """Into a cache: loops over 4 x 4 tiles, and inside them over the 3 x 4 positions, the window and the channels, with
    the conditions over both (Stripe passes xo = 3x to the inner block; here x0 is the tile and x1 the position)."""
    task, _ = figure_5()
    nest = checked(task, scheduled(task, [{"autotile": {**FIGURE_4, "memory": "L1"}}], machine()))
    text = str(nest).replace("x0 * 3 + x1 + i1 - 1", "ROW").replace("y0 * 4 + y1 + j1 - 1", "COLUMN")
    assert text == TILED


def test_figure_5_refinements() -> None:
    """Into a memory that programs fill the Nest copies what the middle block of (b) refines: I of 5 x 6 x 8 from
    (3x - 1, 4y - 1), larger than the tile's steps by the halo, and O of 3 x 4 x 16."""
    task, _ = figure_5()
    nest = checked(task, scheduled(task, [{"autotile": FIGURE_4}], machine()))
    text = str(nest)
    halo, copied = "        for pa0:5\n", "        for x1:3\n"
    assert "I[x0 * 3 + pa0 - 1, y0 * 4 + pb0 - 1, pc0]" in text
    assert AFTER in text[: text.index(halo)] + text[text.index(copied) :]
    assert local_bytes(nest.phases[0]) == costs((3, 4))[1][0]


# --- any contraction --------------------------------------------------------------------------------------------------


def matrix(m: int, n: int, k: int) -> tuple[Task, Block]:
    i, j, r = Var("i"), Var("j"), Var("r")
    body = op("mul", Load("A", (i, r)), Load("B", (r, j)))
    block = Block("mm", (Iter("i", m), Iter("j", n), Iter("r", k, True)), (Load("C", (i, j)),), (body,), "add")
    buffers = (Buffer("A", "int32", (m, k)), Buffer("B", "int32", (k, n)), Buffer("C", "int32", (m, n)))
    return Task("main", buffers, ("A", "B"), ("C",), (block,), "mm", frozenset({"B"})), block


def window(rows: int, channels: int, taps: int, step: int, pad: int) -> tuple[Task, Block]:
    """A convolution along rows, padded or not."""
    h, o, r, c = (Var(n) for n in "horc")
    size = (rows - 1) * step + taps - 2 * pad
    at = op("sub", op("add", op("mul", h, step), r), pad)
    where = (op("ge", at, 0), op("lt", at, size)) if pad else ()
    iters = (Iter("h", rows), Iter("o", channels), Iter("r", taps, True), Iter("c", 3, True))
    body = op("mul", Load("X", (at, c)), Load("W", (o, r, c)))
    block = Block("conv", iters, (Load("Y", (h, o)),), (body,), "add", where)
    shapes = {"X": (size, 3), "W": (channels, taps, 3), "Y": (rows, channels)}
    buffers = tuple(Buffer(n, "int32", s) for n, s in shapes.items())
    return Task("main", buffers, ("X", "W"), ("Y",), (block,), "conv", frozenset({"W"})), block


SMALL = st.integers(1, 12)
WINDOWS = st.tuples(SMALL, SMALL, st.integers(1, 3), st.integers(1, 2), st.integers(0, 1)).filter(
    lambda drawn: (drawn[0] - 1) * drawn[3] + drawn[2] > 2 * drawn[4]
)
TASKS = st.one_of(st.tuples(SMALL, SMALL, SMALL).map(lambda s: matrix(*s)), WINDOWS.map(lambda s: window(*s)))


@settings(max_examples=60, deadline=None)
@given(
    TASKS,
    st.integers(4, 1024),
    st.sampled_from(["near", "L1"]),
    st.sampled_from(["divisors", "powers", "all"]),
    st.sampled_from(["tiled", "whole"]),
)
def test_tiles_are_the_cheapest_that_fit_and_compute_what_the_block_does(
    made: tuple[Task, Block], budget: int, memory: str, sizes: str, constants: str
) -> None:
    task, block = made
    if not any(i.extent > 1 for i in block.spatial):
        return
    spec = {"autotile": {"memory": memory, "bytes": budget, "line": 8, "sizes": sizes, "constants": constants}}
    (apply,) = make_block_passes([spec], machine())
    assert isinstance(apply, Autotile)
    whole = task.constants if constants == "whole" else frozenset[str]()
    kept = {n for read in block.reads if read.buffer in whole for i in read.indices for n in "iorcjr" if n in str(i)}
    names = [i.name for i in (*block.spatial, *block.reduction)]
    every = np.array(
        [*product(*(apply.extents(block.ranges[n], 1, n in kept) for n in names))],
        np.int64,
    )
    priced = tile_costs(task, block, every, 8, whole, kept)
    fits = priced.bytes <= budget
    if not fits.any():
        with pytest.raises(TargetError, match=f"fits in {budget} bytes of {memory}: the smallest takes"):
            scheduled(task, [spec], machine())
        return
    candidate = scheduled(task, [spec], machine())
    tile = [candidate.blocks[block.name].tiles[n][0] for n in names]
    place = every.tolist().index(tile)
    assert fits[place] and priced.cost[place] == priced.cost[fits].min()
    nest = checked(task, candidate)
    if memory == "near":
        assert local_bytes(nest.phases[0]) <= priced.bytes[place]


@settings(max_examples=40, deadline=None)
@given(TASKS, st.integers(64, 1024))
def test_the_program_copies_as_often_as_the_cost_says(made: tuple[Task, Block], budget: int) -> None:
    """With lines of one element the cost is the elements that are copied, halo and padding included."""
    task, block = made
    if not any(i.extent > 1 for i in block.spatial):
        return
    spec = {"autotile": {"memory": "near", "bytes": budget, "line": 4}}
    try:
        candidate = scheduled(task, [spec], machine())
    except TargetError:
        return
    names = [i.name for i in (*block.spatial, *block.reduction)]
    tile = np.array([[candidate.blocks[block.name].tiles[n][0] for n in names]], np.int64)
    cost = float(tile_costs(task, block, tile, 4).cost[0]) * block.points()
    copied = sum(elements for elements in copies(checked(task, candidate).phases[0], 1))
    assert copied == pytest.approx(cost) or (block.name == "conv" and copied >= cost)  # a copy is the box of a stride


def copies(body: tuple[Stmt, ...], times: int) -> list[int]:
    """Elements of each local buffer, as often as it is made."""
    made = [times * prod(s.region.shape) for s in body if isinstance(s, Alloc)]
    for stmt in body:
        if isinstance(stmt, For):
            made += copies(stmt.body, times * stmt.extent)
        elif isinstance(stmt, Branch):
            made += copies(stmt.then, times) + copies(stmt.otherwise, times)
    return made


def test_tiles_of_a_cache_are_whole_tiles_of_the_memory_before() -> None:
    task, _ = matrix(64, 64, 64)
    passes = [{"autotile": {"memory": "near", "bytes": 2048}}, {"autotile": {"memory": "L1", "bytes": 32768}}]
    candidate = scheduled(task, passes, machine())
    tiles = candidate.blocks["mm"].tiles
    assert len(tiles["i"]) == len(tiles["j"]) == 2 and len(tiles["r"]) == 1
    assert all(outer % inner == 0 for outer, inner in (tiles["i"], tiles["j"]))
    assert prod(tiles["i"][:1] + tiles["j"][:1]) > prod(tiles["i"][1:] + tiles["j"][1:])
    assert local_bytes(checked(task, candidate).phases[0]) <= 2048


def test_lists_that_are_wrong() -> None:
    unit = {"memory": "near"}
    for specs, sentence in (
        (["autotile"], r"here\[0\]: pass autotile needs the option memory: write `autotile: {memory: ...}`"),
        (
            [{"autotile": {"memory": "far"}}],
            r"here\[0\]: pass autotile: option memory is 'far'; expected .* L2 or near",
        ),
        (
            [{"autotile": {**unit, "bytes": 1 << 17}}],
            r"option bytes is 131072; expected at most the 65536 bytes of near",
        ),
        ([{"autotile": {**unit, "bytes": -1}}], r"option bytes is -1; expected a whole number from 0"),
        ([{"autotile": {**unit, "sizes": "odd"}}], r"option sizes is 'odd'; expected one of divisors, powers, all"),
        ([{"autotile": {**unit, "size": 1}}], r"has no option size; it has memory, bytes, line, constants, sizes"),
        (
            ["autotle"],
            r"here\[0\]: unknown pass 'autotle'; the passes are tensorize, autotile; did you mean autotile\?",
        ),
        (["tensorize"], r"here\[0\]: pass tensorize: it needs an intrinsic whose operands lie in memory"),
        ([{"autotile": {"memory": "L1"}}, {"autotile": unit}], r"here\[1\]: pass autotile fills near around another"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            make_block_passes(specs, machine(), "here")


def checked(task: Task, candidate: Candidate) -> Nest:
    """The Nest, which verifies and computes what the Block does."""
    nest = build_nest(task, candidate)
    verify_nest(nest, derive(task, candidate.stages))
    rng = np.random.default_rng(0)
    dtypes = {n: np.dtype(task.buffer(n).dtype) for n in (*task.inputs, *task.outputs)}
    arrays = {n: rng.integers(-3, 4, task.buffer(n).shape).astype(dtypes[n]) for n in task.inputs}
    (output,) = task.outputs
    wanted = {**arrays, output: np.zeros(task.buffer(output).shape, dtypes[output])}
    (block,) = (b for b in task.blocks if isinstance(b, Block))
    run_block(block, wanted)
    computed = {**arrays, output: np.full(task.buffer(output).shape, 77, dtypes[output])}
    run_nest(nest, computed)
    assert (computed[output] == wanted[output]).all()
    return nest


def test_a_block_with_one_result_keeps_its_loops() -> None:
    task, block = matrix(1, 1, 64)
    assert Scheduling.of(task).reductions == ()
    assert scheduled(task, [{"autotile": {"memory": "near", "bytes": 8}}], machine()).blocks[block.name].tiles == {}
