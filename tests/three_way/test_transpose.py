"""Squares of moves are transposed in registers: Blocks, Nest and machine code agree at every boundary."""

from __future__ import annotations

import pytest
from schedules import loops
from three_ways import check, host_target

from modelc.codegen.lower import nest as lower
from modelc.codegen.lower.transpose import MOST_BITS, crossed
from modelc.ir.candidate import BlockSchedule, Candidate
from modelc.ir.expr import DTYPES
from modelc.ir.loop import ROOT
from modelc.ir.text import parse_task
from modelc.target import load_target

MOVE = """\
task move(x0) -> (y0) anchor move
  in x0: {dtype}[3, {rows}, {columns}]
  out y0: {dtype}[3, {columns}, {rows}]
  block move [b:3 c:{columns} r:{rows}] assign
    y0[b, c, r] = x0[b, r, c]"""


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(16, 16), (64, 48), (37, 21), (5, 100), (100, 7), (14, 14), (2, 3), (18, 31)])
@pytest.mark.sweep(16)
def test_transposed(shape, dtype):
    built = check(parse_task(MOVE.format(dtype=dtype, rows=shape[0], columns=shape[1])))
    squares = any("unroll" in s.tags.values() for s in built.candidate.blocks.values())
    if DTYPES[dtype].itemsize < 8:  # of few lanes in a vector it is a matter of price
        assert squares == (dtype not in ("uint8", "bool") and shape[1] != 3)


@pytest.mark.parametrize("shape", [(16, 16), (37, 21)])
def test_vectors_shorter_than_a_cache_line(shape):
    if "avx2" in host_target().features:
        check(
            parse_task(MOVE.format(dtype="float32", rows=shape[0], columns=shape[1])), target=load_target("x86-64-v3")
        )


@pytest.mark.parametrize("shape", [(16, 16), (37, 21)])
def test_what_is_cast_on_the_way_is_a_move(shape):
    text = MOVE.format(dtype="float32", rows=shape[0], columns=shape[1])
    text = text.replace("in x0: float32", "in x0: bfloat16").replace("= x0[b, r, c]", "= float32(x0[b, r, c])")
    built = check(parse_task(text))
    assert any("unroll" in s.tags.values() for s in built.candidate.blocks.values())


def test_what_is_computed_on_the_way_is_not_a_move():
    check(parse_task(MOVE.format(dtype="float32", rows=40, columns=33).replace("= x0", "= float32(2.0) * x0")))


PAIRS = """\
task pack(x0) -> (y0) anchor pack
  in x0: {dtype}[3, {steps}, {columns}] stored {source}
  out y0: {dtype}[3, {steps}, {columns}] stored {target}
  block pack [b:3 k:{steps} n:{columns}] assign
    y0[b, k, n] = x0[b, k, n]"""
ALONG = {"k": "reorder(0, 2, 1)", "n": "reorder(0, 1, 2)"}  # what is contiguous where it is read


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize(("steps", "columns"), [(32, 32), (24, 37), (8, 5)])
@pytest.mark.sweep(13)
def test_what_an_intrinsic_reads_as_one_moves_as_one(steps, columns, group, dtype, along, monkeypatch):
    """[k][n] stored as [k // group][n][k % group], as the operands of dot products are packed."""
    layout = f"split(1, {group}).reorder(0, 1, 3, 2)"
    task = parse_task(PAIRS.format(dtype=dtype, steps=steps, columns=columns, source=ALONG[along], target=layout))
    if along == "k":
        tiles, order = {"n": (16,), "k": (8 * group,)}, loops("b0 n0 k0 k1 n1")
    else:
        tiles, order = {"n": (16,), "k": (group,)}, loops("b0 k0 n0 n1 k1")
    schedule = BlockSchedule(ROOT, "arena", tiles, order, {order[-2]: "unroll", order[-1]: "vector"})
    moved = []
    monkeypatch.setattr(lower, "crossed", lambda *args: moved.append(crossed(*args)) or moved[-1])
    check(task, Candidate({"pack": schedule}))
    wide = along == "k" and 8 * DTYPES[dtype].itemsize * group > MOST_BITS
    assert any(moved) != wide
