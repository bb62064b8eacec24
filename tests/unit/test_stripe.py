"""Stripe's autotiler example: the costs of figure 4, and figure 5 as Blocks and Nests print."""

from __future__ import annotations

import numpy as np
import pytest
from schedules import loops
from stripe import autotile, tile_costs

from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import Load, Var, op
from modelc.ir.interpret import run_block, run_nest
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.ir.nest import Nest
from modelc.ir.verify_nest import verify_nest
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive

LINE, MOST = 8, 512  # bytes of a cache line, elements in memory


def figure_5() -> tuple[Task, Block]:
    """The convolution of figure 5 (a). Its condition on y + j says 12 in (a) and 16 in (b): 16 is meant."""
    x, y, i, j, c, k = (Var(n) for n in "xyijck")
    row, column = op("sub", op("add", x, i), 1), op("sub", op("add", y, j), 1)
    inside = (op("ge", row, 0), op("lt", row, 12), op("ge", column, 0), op("lt", column, 16))
    iters = (Iter("x", 12), Iter("y", 16), Iter("k", 16), Iter("i", 3, True), Iter("j", 3, True), Iter("c", 8, True))
    product = op("mul", Load("I", (row, column, c)), Load("F", (i, j, k, c)))
    block = Block("conv", iters, (Load("O", (x, y, k)),), (product,), "add", inside)
    shapes = {"I": (12, 16, 8), "F": (3, 3, 16, 8), "O": (12, 16, 16)}
    buffers = tuple(Buffer(n, "int8", s) for n, s in shapes.items())
    return Task("main", buffers, ("I", "F"), ("O",), (block,), "conv"), block


def costs(*tiles: tuple[int, int]) -> tuple[list[float], list[int]]:
    task, block = figure_5()
    found = tile_costs(task, block, "xy", np.array(tiles), LINE, untiled=("F",))
    return found.cost.tolist(), found.elements.astype(int).tolist()


def test_figure_4() -> None:
    cost, elements = costs((6, 2), (3, 4), (4, 4))
    assert cost[0] == pytest.approx(14 / 3) and cost[1] == 4.5
    assert elements[0] <= MOST and elements[1] <= MOST < elements[2]


def test_the_tile_of_figure_4b_is_found() -> None:
    task, block = figure_5()
    assert autotile(task, block, "xy", LINE, MOST, ("F",)) == {"x": 3, "y": 4}
    every = {"x": range(1, 13), "y": range(1, 17)}  # those that do not divide as well
    assert autotile(task, block, "xy", LINE, MOST, ("F",), every) == {"x": 3, "y": 4}


def test_powers_of_two_alone() -> None:
    task, block = figure_5()
    powers = [1, 2, 4, 8]
    assert autotile(task, block, "xy", LINE, MOST, ("F",), {"x": powers, "y": powers}) in (
        {"x": 2, "y": 4},
        {"x": 4, "y": 2},
    )


def test_overflow_costs() -> None:
    """Tiles that do not divide 12 x 16 touch lines for positions that do not exist."""
    cost, _ = costs((4, 3), (2, 6), (7, 2), (3, 3), (5, 2))
    assert cost == pytest.approx([5.0625, 5.25, 16 / 3, 5.375, 6.0])
    task, block = figure_5()
    every = np.array([(x, y) for x in range(1, 13) for y in range(1, 17)])
    found = tile_costs(task, block, "xy", every, LINE, ("F",))
    assert 5.625 not in found.cost[found.elements <= MOST]
    assert every[found.cost == 5.625].tolist() == [[4, 12]]


def test_nothing_fits() -> None:
    task, block = figure_5()
    with pytest.raises(ValueError, match="no tile of block conv fits in 16 elements"):
        autotile(task, block, "xy", LINE, 16, ("F",))


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
            for k0:16
              init conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k0] add
                O[x0 * 3 + x1, y0 * 4 + y1, k0] = int8(0)
            for i0:3
              for j0:3
                for c0:8
                  for k0:16
                    update conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k0, i=i0, j=j0, c=c0] add
                      where ROW >= 0 and ROW < 12 and COLUMN >= 0 and COLUMN < 16
                      O[x0 * 3 + x1, y0 * 4 + y1, k0] += I[ROW, COLUMN, c0] * F[i0, j0, k0, c0]"""

AFTER = """\
    for x0:4
      for y0:4
        local I_padded: int8[5, 6, 8]
        local O_acc: int8[3, 4, 16]
        for x1:3
          for y1:4
            for k0:16
              init conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k0] add
                O_acc[x1, y1, k0] = int8(0)
            for i0:3
              for j0:3
                for c0:8
                  for k0:16
                    update conv[x=x0 * 3 + x1, y=y0 * 4 + y1, k=k0, i=i0, j=j0, c=c0] add
                      O_acc[x1, y1, k0] += I_padded[x1 + i0, y1 + j0, c0] * F[i0, j0, k0, c0]
"""

ORDER = loops("x0 y0 x1 y1 i0 j0 c0 k0")
TILES = {"x": (3,), "y": (4,)}


def test_figure_5_before() -> None:
    _, block = figure_5()
    assert str(block) == BEFORE


def test_figure_5_after() -> None:
    """Loops over 4 x 4 tiles, and inside them over the 3 x 4 positions, the window and the channels, with the
    conditions over both (Stripe passes xo = 3x to the inner block; here x0 is the tile and x1 the position in it)."""
    task, _ = figure_5()
    nest = scheduled(task, Candidate({"conv": BlockSchedule(ROOT, "arena", TILES, ORDER)}))
    text = str(nest).replace("x0 * 3 + x1 + i0 - 1", "ROW").replace("y0 * 4 + y1 + j0 - 1", "COLUMN")
    assert text == TILED


def test_figure_5_refinements() -> None:
    """With the tile's part of I and O in memory of its own, the Nest holds what the middle block of (b) refines:
    I of 5 x 6 x 8 from (3x - 1, 4y - 1), larger than the tile's steps by the halo, and O of 3 x 4 x 16."""
    task, _ = figure_5()
    stages = (Stage("pad", {"block": "conv", "buffer": "I"}), Stage("cache_write", {"block": "conv"}))
    schedules = {
        "pad_I": BlockSchedule(Inside("conv", Loop("y", 0)), "local", {}, loops("pa0 pb0 pc0")),
        "conv": BlockSchedule(ROOT, "local", TILES, ORDER),
        "write_O": BlockSchedule(Inside("conv", Loop("y", 0)), "arena", {}, loops("x0 y0 k0")),
    }
    text = str(scheduled(task, Candidate(schedules, stages)))
    halo, copied = "        for pa0:5\n", "        for x1:3\n"
    assert "I[x0 * 3 + pa0 - 1, y0 * 4 + pb0 - 1, pc0]" in text
    assert AFTER in text[: text.index(halo)] + text[text.index(copied) :]


def scheduled(task: Task, candidate: Candidate) -> Nest:
    """The Nest, which verifies and computes what the Block does."""
    nest = build_nest(task, candidate)
    verify_nest(nest, derive(task, candidate.stages))
    rng = np.random.default_rng(0)
    arrays = {n: rng.integers(-3, 4, task.buffer(n).shape).astype(np.int8) for n in task.inputs}
    wanted = {**arrays, "O": np.zeros((12, 16, 16), np.int8)}
    (block,) = (b for b in task.blocks if isinstance(b, Block))
    run_block(block, wanted)
    found = {**{n: a.reshape(-1).copy() for n, a in arrays.items()}, "O": np.full(12 * 16 * 16, 77, np.int8)}
    run_nest(nest, found)
    assert (found["O"].reshape(12, 16, 16) == wanted["O"]).all()
    return nest
