"""Views: what is a Region of something else, what is written in place, what has to be copied."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_models import Model, tasks

from modelc.ir.block import Block, Iter, compact_strides
from modelc.ir.expr import Load, Var
from modelc.ir.layout import Layout, reordered
from modelc.ir.program import Placed, Program, region
from modelc.ops.move import reshaped
from modelc.ops.operator import names
from modelc.partition.views import Region, region_of, stored

LAST = reordered(0, 2, 3, 1)


@pytest.fixture
def m():
    return Model()


def conv(m: Model, x: str, o: int, c: int, k: int = 3, **attrs: object) -> str:
    return m.node("Conv", x, m.weight(o, c, k, k), m.weight(o), pads=[k // 2] * 4, **attrs)


def copies(program: Program) -> int:
    """Tasks that only move data."""
    return sum(
        all(isinstance(b, Block) and isinstance(b.body[0], Load) for b in bound.task.blocks) for bound in program.tasks
    )


def test_inception_writes_branches_in_place(m, tmp_path):
    x = conv(m, m.input("x", 1, 4, 6, 6), 4, 4)
    parts = [m.node("Relu", conv(m, x, o, 4, k)) for o, k in ((3, 1), (5, 3))]
    parts.append(m.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4))
    joined = m.node("Concat", *parts, axis=1, to="cat")
    program = m.program(tmp_path, conv(m, joined, 4, 12))
    assert tasks(program) == ["conv bias", "conv bias relu", "conv bias relu", "maxpool", "conv bias"]
    found = [program.values[p] for p in parts]
    assert [(v.root, v.offset, v.layout, v.strides) for v in found] == [
        ("cat", k, LAST, (432, 72, 12, 1)) for k in (0, 3, 8)
    ]


def test_dense_blocks_share_one_root(m, tmp_path):
    """Every Concat of what came before is a Region of the last."""
    features = [conv(m, m.input("x", 1, 4, 6, 6), 4, 4)]
    for k in range(3):
        joined = m.node("Concat", *features, axis=1) if k else features[0]
        features.append(m.node("Relu", conv(m, joined, 4, 4 * (k + 1))))
    program = m.program(tmp_path, conv(m, m.node("Concat", *features, axis=1, to="all"), 2, 16))
    assert copies(program) == 0 and len(program.tasks) == 5
    assert {v.root for v in program.values.values() if v.shape[1:2] in ((8,), (12,)) and len(v.shape) == 4 and
            v.name not in program.constants} == {"all"}  # fmt: skip


def test_a_part_of_two_concats_is_copied_once(m, tmp_path):
    x = conv(m, m.input("x", 1, 4, 6, 6), 4, 4)
    y = m.node("Relu", conv(m, x, 4, 4))
    z = m.node("Exp", conv(m, x, 4, 4))
    a, b = m.node("Concat", y, z, axis=1), m.node("Concat", z, y, axis=1)
    program = m.program(tmp_path, conv(m, a, 2, 8), conv(m, b, 2, 8))
    assert copies(program) == 2


def test_split_and_concat_shuffle(m, tmp_path):
    """A channel shuffle: the halves of a split are views, the shuffled channels are one copy."""
    x = conv(m, m.input("x", 1, 4, 6, 6), 8, 4)
    m.node("Split", x, m.const([4, 4], "int64"), axis=1, to=["left", "right"])
    joined = m.node("Concat", "left", m.node("Relu", conv(m, "right", 4, 4)), axis=1)
    apart = m.node("Reshape", joined, m.const([1, 2, 4, 6, 6], "int64"))
    shuffled = m.node("Transpose", apart, perm=[0, 2, 1, 3, 4])
    program = m.program(tmp_path, conv(m, m.node("Reshape", shuffled, m.const([1, 8, 6, 6], "int64")), 2, 8))
    assert copies(program) == 2  # left into the concat, and the shuffle
    assert program.values["right"].offset == 4 and program.values["right"].layout == LAST


def test_heads_of_a_detector_are_written_into_the_output(m, tmp_path):
    x = conv(m, m.input("x", 1, 4, 8, 8), 4, 4)
    heads = []
    for stride, size in ((1, 64), (2, 16)):
        head = m.node("Transpose", conv(m, x, 6, 4, strides=[stride] * 2), perm=[0, 2, 3, 1])
        heads.append(m.node("Reshape", head, m.const([1, size * 2, 3], "int64")))
    program = m.program(tmp_path, m.node("Concat", *heads, axis=1, to="boxes"))
    assert tasks(program) == ["conv bias"] * 3
    assert [program.values[b.outputs[0]].offset for b in program.tasks[1:]] == [0, 384]


def test_outputs_are_roots_of_their_own(m, tmp_path):
    x = m.node("Exp", m.input("x", 2, 6), to="e")
    program = m.program(tmp_path, x, m.node("Slice", x, *(m.const([k], "int64") for k in (1, 4, 1)), to="part"))
    assert tasks(program) == ["exp", "slice"]
    assert program.values["part"] == Placed("part", "float32", (2, 3))


def test_an_output_inside_a_concat_is_copied(m, tmp_path):
    x = m.node("Exp", m.input("x", 2, 6), to="e")
    program = m.program(tmp_path, x, m.node("Concat", x, m.node("Neg", x), axis=0, to="both"))
    assert copies(program) == 1 and program.values["e"].root == "e"


def test_slices_are_views_and_reversed_slices_are_not(m, tmp_path):
    x = m.input("x", 4, 9)

    def cut(start: int, end: int, step: int) -> str:
        return m.node("Slice", x, *(m.const([v], "int64") for v in (start, end, 1, step)))

    even, back = cut(1, 9, 2), cut(8, 0, -2)
    program = m.program(tmp_path, m.node("MatMul", even, m.weight(4, 2)), m.node("MatMul", back, m.weight(4, 2)))
    assert program.values[even] == Placed(even, "float32", (4, 4), Layout(), (9, 2), "x", 1)
    assert copies(program) == 1


def test_expanded_values_repeat_by_stride_zero(m, tmp_path):
    x = m.node("Expand", m.input("x", 1, 3, 4), m.const([2, 3, 4], "int64"))
    program = m.program(tmp_path, m.node("MatMul", x, m.input("w", 2, 4, 5)))
    assert program.values[x].strides == (0, 4, 1) and len(program.tasks) == 1


def test_moves_join_the_map_that_reads_them(m, tmp_path):
    x = m.node("Transpose", m.node("Reshape", m.input("x", 4, 6), m.const([2, 3, 4], "int64")), perm=[2, 0, 1])
    y = m.node("Reshape", x, m.const([8, 3], "int64"))  # no view: 8 is a pair of dimensions that lie apart
    assert tasks(m.program(tmp_path, m.node("Add", y, m.weight(8, 3)))) == ["reshape add"]


# --- legality -----------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def reshapes(draw):
    """A source shape, an order in which it is stored, and a target shape of as many elements."""
    source = draw(shapes)
    order = tuple(draw(st.permutations(range(len(source)))))
    size, target = prod(source), []
    while size > 1:
        n = draw(st.sampled_from([d for d in range(2, size + 1) if size % d == 0]))
        target.append(n)
        size //= n
    target.insert(draw(st.integers(0, len(target))), 1)
    return source, order, tuple(target)


@settings(max_examples=150, deadline=None)
@given(reshapes())
def test_a_reshape_is_a_view_only_where_it_is_one(case):
    source, order, target = case
    physical = compact_strides(tuple(source[d] for d in order))
    strides = tuple(physical[order.index(d)] for d in range(len(source)))
    over = tuple(Var(n) for n in names(len(target)))
    read = Load("x", reshaped(source, target, over))
    iters = tuple(Iter(v.name, n) for v, n in zip(over, target, strict=True))
    found = region_of(Block("reshape", iters, (Load("y", over),), (read,)), read, Region("x", 5, strides))
    flat = np.arange(prod(source) + 5)
    logical = region(flat, 5, source, strides)
    expected = logical.reshape(target)
    if found is not None:
        np.testing.assert_array_equal(region(flat, found.offset, target, found.strides), expected)
    else:  # NumPy cannot see it without a copy either
        assert not np.shares_memory(expected, flat)


@settings(max_examples=150, deadline=None)
@given(shapes.flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))), st.integers(1, 3))))
def test_stored_addresses_the_same_elements(case):
    shape, order, step = case
    physical = compact_strides(tuple(shape[d] for d in order))
    strides = tuple(physical[order.index(d)] * step for d in range(len(shape)))
    layout, explicit = stored(shape, strides)
    value = Placed("v", "float32", shape, layout, explicit)
    flat = np.arange(prod(shape) * step)
    found = value.logical_strides
    assert found is not None
    np.testing.assert_array_equal(region(flat, 0, shape, found), region(flat, 0, shape, strides))
    assert (explicit is None) == (step == 1 or prod(shape) == 1)
