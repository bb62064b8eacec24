"""Reductions in phases: by lanes and by columns, in parts for threads; three ways, and what Nests look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from operator_cases import Case, example, f
from three_ways import build, check, random_inputs, run_task

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.loop import Inside
from modelc.ir.nest import Alloc, For, Leaf
from modelc.ir.nest import walk as statements
from modelc.ir.text import parse_task
from modelc.space.analysis.access import accesses
from modelc.space.choose import chosen
from modelc.space.rules.rfactor import rfactor_rule
from modelc.space.sketches.phases import columns_candidate, columns_task, read_once
from modelc.target import load_target

TARGET = load_target("x86-64-v4")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")


def reduction(op: str, shape: tuple[int, ...], axes: tuple[int, ...], keep: int = 0) -> Task:
    return example(Case(op, (f(*shape), np.asarray(axes)), {"keepdims": keep}, (1,))).task


@pytest.mark.parametrize("op", [*REDUCTIONS, "ReduceLogSumExp"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 7, 11), (0, 1, 2)),  # all of a small tensor
        ((300, 301), (0, 1)),  # parts for threads, and elements left over
        ((90001,), (0,)),
        ((1, 300, 301), (0, 1, 2)),  # as all activations are by DynamicQuantizeLinear
        ((3, 30000), (1,)),  # few long rows
        ((3, 150, 200), (1, 2)),
        ((4, 3, 90, 80), (0, 2, 3)),  # two reductions that are not one
        ((300, 240), (0,)),  # columns, in parts with rows left over
        ((1003, 70), (0,)),
        ((2, 200, 170), (1,)),
        ((40, 5000), (0,)),  # stretches of columns
    ],
    ids=str,
)
@pytest.mark.sweep(5)
def test_reductions(op: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x = f(*shape) if op != "ReduceProd" else np.sign(f(*shape))
    check(example(Case(op, (x, np.asarray(axes)), {"keepdims": 0}, (1,))))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int8"])
@pytest.mark.parametrize("axes", [(0,), (0, 1)])
@pytest.mark.sweep(4)
def test_reductions_of_other_types(dtype: str, axes: tuple[int, ...]) -> None:
    x = np.clip(f(400, 190) * 9, -99, 99).astype(dtype)
    check(example(Case("ReduceMax", (x, np.asarray(axes)), {"keepdims": 1}, (1,))))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 70), 1), ((90001,), 0), ((24, 40, 50), 1), ((2, 30001), 1)], ids=str)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.sweep(3)
def test_first_of_equals(op: str, shape: tuple[int, ...], axis: int, last: int) -> None:
    x = np.round(f(*shape))
    check(example(Case(op, (x,), {"axis": axis, "keepdims": 0, "select_last_index": last})))


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(1, 1000), (1, 90001), (3, 40000)], ids=str)
@pytest.mark.sweep(3)
def test_few_rows(op: str, shape: tuple[int, ...]) -> None:
    check(example(Case(op, (f(*shape),), {"axis": -1})))


def nest_of(task: Task) -> Any:
    return build(task, chosen(task, TARGET).candidate, TARGET).nest


def test_a_tensor_is_reduced_in_parts_by_lanes() -> None:
    task = reduction("ReduceL2", (512, 512), (0, 1))
    assert [s.args["parts"] for s in chosen(task, TARGET).candidate.stages if s.rule == "rfactor"] == [
        "outer",
        "inner",
    ]
    first = nest_of(task).phases[0]
    (threads,) = first
    assert isinstance(threads, For) and threads.tag == "parallel" and threads.extent >= 2 * TARGET.cores
    assert any(isinstance(s, Alloc) and s.scope == "register" for s in threads.body)
    assert not any(s.where for s in statements(first) if isinstance(s, Leaf))


def test_a_sum_under_a_condition_is_one_part_where_parts_would_not_be_alike() -> None:
    text = """\
task t(x0) -> (y0) anchor sum
  in x0: float32[90001]
  out y0: float32[]
  block sum [| n:90001] add
    where n % 3 < 2
    y0[()] += x0[n]"""
    built = check(parse_task(text))
    assert [s.args["count"] for s in built.candidate.stages if s.args.get("parts") == "outer"] == [1]


def test_columns_are_added_up_row_by_row() -> None:
    found = chosen(reduction("ReduceSum", (1024, 1024), (0,)), TARGET).candidate
    (parts,) = (s for name, s in found.blocks.items() if name.endswith("_parts"))
    order = [loop.iterator for loop in parts.order]
    assert parts.tags[parts.order[0]] == "parallel" and order == ["p", "n", "m", "n", "m", "n"]


def test_what_follows_columns_is_done_on_a_stretch_of_them() -> None:
    found = chosen(reduction("ReduceMean", (8, 64, 5000), (1,)), TARGET).candidate
    anchor = next(n for n, s in found.blocks.items() if s.scope == "local")
    assert any(isinstance(s.at, Inside) and s.at.block == anchor for s in found.blocks.values())


@pytest.mark.parametrize(
    ("second", "together"), [("s[b, m] * float32(0.5)", True), ("s[b, m] + s[b, 4999 - m]", False)]
)
def test_what_follows_columns_waits_for_all_of_them_where_it_reads_others(second: str, together: bool) -> None:
    text = f"""\
task t(x0) -> (y0, y1) anchor sum
  in x0: float32[8, 64, 5000]
  local s: float32[8, 5000]
  out y0: float32[8, 5000]
  out y1: float32[8, 5000]
  block sum [b:8 m:5000 | n:64] add
    s[b, m] += x0[b, n, m]
  block first [b:8 m:5000] assign
    y0[b, m] = s[b, m] * float32(2.0)
  block second [b:8 m:5000] assign
    y1[b, m] = {second}"""
    stages: list[Stage] = []
    task = columns_task(parse_task(text), stages)
    assert task is not None
    _, candidate = columns_candidate(task, TARGET, stages)
    assert any(isinstance(s.at, Inside) for s in candidate.blocks.values()) == together
    check(parse_task(text))


@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 9), st.sampled_from(["add", "max"]))
@settings(max_examples=50, deadline=None)
def test_rfactor_covers_every_element_once(extent: int, size: int, count: int, aggregation: str) -> None:
    task = parse_task(f"""\
task t(x0) -> (y0) anchor sum
  in x0: float32[3, {extent}]
  out y0: float32[3]
  block sum [m:3 | n:{extent}] {aggregation}
    y0[m] {"+" if aggregation == "add" else "max"}= x0[m, n]""")
    assume(count * size <= extent)
    after = rfactor_rule(task, "sum", "n", size, "outer" if count else "inner", count)
    inputs = random_inputs(task)
    np.testing.assert_allclose(run_task(after, inputs)["y0"], run_task(task, inputs)["y0"], 1e-5, 1e-5)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=3))
def test_read_once(dims: list[tuple[int, int]]) -> None:
    """Never said of a read that meets an element twice."""
    names = [f"i{k}" for k in range(len(dims))]
    index = " + ".join(f"{n} * {s}" for n, (_, s) in zip(names, dims, strict=True))
    size = 1 + sum((n - 1) * s for n, s in dims)
    iters = " ".join(f"{n}:{e}" for n, (e, _) in zip(names, dims, strict=True))
    block = parse_task(f"""\
task t(x0) -> (y0) anchor sum
  in x0: float32[{size}]
  out y0: float32[2]
  block sum [m:1 | {iters}] add
    y0[m] += x0[{index}]""")
    anchor = block.blocks[0]
    assert isinstance(anchor, Block)
    (read,), _ = accesses(block, anchor)
    grids = np.meshgrid(*[np.arange(n) * s for n, s in dims], indexing="ij")
    flat = sum(grids).ravel()
    if read_once(read, anchor.reduction):
        assert len(np.unique(flat)) == flat.size
