"""The proof that no data leads a Task outside its buffers."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.errors import InvalidIR
from modelc.ir.addresses import Guard, addressing, claims, unproved, without_claims
from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Load, Var
from modelc.ir.expr_syntax import parse


def task(index: str, extent: int = 5, dtype: str = "int64", constants: tuple[str, ...] = ()) -> Task:
    """Y[i] = X[index] over i < 7, with `index` in terms of i and of I[i]."""
    block = Block("gather", (Iter("i", 7),), (Load("Y", (Var("i"),)),), (Load("X", (parse(index),)),))
    buffers = (
        Buffer("X", "float32", (extent,)),
        Buffer("I", dtype, (7,)),
        Buffer("T", "int64", (7, 2)),
        Buffer("Y", "float32", (7,)),
    )
    return Task("t", buffers, ("X", "I", "T"), ("Y",), (block,), "gather", frozenset(constants))


@pytest.mark.parametrize(
    ("index", "low", "high"),
    [
        ("I[i]", 0, 4),
        ("select(I[i] < 0, I[i] + 5, I[i])", -5, 4),
        ("I[i] * 2 - 1", 1, 2),
        ("I[i] // 3", 0, 14),
        ("select(i < I[i], I[i] - 1 - i, min(i, 4))", -9, 5),  # only where I[i] is past i
        ("select(I[i] > i, I[i] - 1 - i, min(i, 4))", -9, 5),
        ("select(I[i] <= i, min(i, 4), I[i] - 1 - i)", -9, 5),
        ("select(I[i] >= 0, I[i], 0 - I[i])", -4, 4),
    ],
)
def test_an_index_is_inside_for_all_that_its_guard_lets_pass(index: str, low: int, high: int) -> None:
    assert unproved(task(index), (Guard("I", None, low, high),), lambda name: None) is None
    for wider in ((low - 2, high), (low, high + 1)):
        if "select(i" in index or "I[i] > i" in index or "I[i] <= i" in index:
            wider = (low, high + 1)  # below, the guard is not needed
        sentence = unproved(task(index), (Guard("I", None, *wider),), lambda name: None)
        assert sentence is not None and "the dimension has 5" in sentence


@pytest.mark.parametrize(
    "index",
    ["min(max(I[i], 0), 4)", "I[i] % 5", "min(min(I[i] % 8, 7 - I[i] % 8), 4)", "max(min(int64(X[i]), 4), 0)", "i % 5"],
)
def test_what_is_clamped_needs_no_guard(index: str) -> None:
    assert unproved(task(index), (), lambda name: None) is None


@pytest.mark.parametrize(
    "index", ["I[i]", "min(I[i], 4)", "max(I[i] + 1, 0)", "min(max(I[i], 0) + 1, 4)", "int64(X[i])"]
)
def test_what_data_decides_alone_is_refused(index: str) -> None:
    sentence = unproved(task(index), (), lambda name: None)
    assert sentence is not None and sentence.startswith("block gather: the index ")


def test_an_index_of_an_index_is_looked_at_too() -> None:
    guards = (Guard("I", None, 0, 6), Guard("T", 1, 0, 4))
    assert unproved(task("T[I[i], 1]"), guards, lambda name: None) is None
    assert "of T can be" in str(unproved(task("T[I[i], 1]"), guards[1:], lambda name: None))
    assert "of X can be" in str(unproved(task("T[I[i], 0]"), guards, lambda name: None))  # another column


def test_constants_are_looked_at_instead() -> None:
    inside, outside = np.array([0, 4, 1]), np.array([0, 5, 1])
    for data, right in ((inside, True), (outside, False)):
        found = unproved(task("I[i]", constants=("I",)), (), lambda name, d=data: d if name == "I" else None)
        assert (found is None) is right


def test_claims_become_guards_and_leave_the_block() -> None:
    (block,) = task("select(claim(I[i], -5, 4) < 0, claim(I[i], -5, 4) + 5, claim(I[i], -5, 4))").blocks
    assert isinstance(block, Block)
    assert claims(block, "Gather") == (Guard("I", None, -5, 4, "Gather"),) and addressing(block) == {"I"}
    assert str(without_claims(block)) == str(task("select(I[i] < 0, I[i] + 5, I[i])").blocks[0])
    (column,) = task("claim(T[i, 1], 0, 4)").blocks
    assert isinstance(column, Block) and str(claims(column)[0]) == "0 <= T[..., 1] <= 4"
    (computed,) = task("claim(I[i] + 1, 0, 4)").blocks
    assert isinstance(computed, Block)
    with pytest.raises(InvalidIR, match="only what is loaded can be checked"):
        claims(computed)
