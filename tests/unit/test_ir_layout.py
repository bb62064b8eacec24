"""Layouts: apply and invert, shapes, text."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import layouts

from modelc.ir.affine import simplify
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Const, Var, show
from modelc.ir.layout import Layout, Primitive, reordered

quick = settings(max_examples=40, deadline=None)
cases = (
    st.lists(st.integers(1, 8), min_size=1, max_size=3)
    .map(tuple)
    .flatmap(lambda shape: st.tuples(st.just(shape), layouts(shape)))
)


def logical_variables(rank):
    return tuple(Var(f"i{k}") for k in range(rank))


def at(indices, point):
    env = {f"i{k}": np.asarray(n) for k, n in enumerate(point)}
    return tuple(int(evaluate(i, env, {})) for i in indices)


@quick
@given(cases)
def test_apply_then_invert_is_identity_and_hits_no_element_twice(case):
    shape, layout = case
    stored = layout.shape(shape)
    applied = layout.apply(logical_variables(len(shape)), shape)
    assert len(applied) == len(stored)
    places = set()
    for point in product(*map(range, shape)):
        physical = at(applied, point)
        assert all(0 <= p < n for p, n in zip(physical, stored, strict=True))
        assert at(layout.invert([Const(p) for p in physical], shape), ()) == point
        places.add(physical)
    assert len(places) == len(list(product(*map(range, shape))))


@quick
@given(cases)
def test_apply_after_simplification_is_the_same(case):
    shape, layout = case
    applied = layout.apply(logical_variables(len(shape)), shape)
    ranges = {f"i{k}": n for k, n in enumerate(shape)}
    simple = [simplify(i, ranges) for i in applied]
    for point in product(*map(range, shape)):
        assert at(applied, point) == at(simple, point)


@quick
@given(cases)
def test_text_round_trip(case):
    assert Layout.parse(str(case[1])) == case[1]


def test_the_packed_weights_of_a_convolution():
    layout = Layout.parse("pad(0, 0, 24).split(0, 32).reorder(0, 3, 4, 2, 1)")
    assert layout.shape((40, 16, 3, 3)) == (2, 3, 3, 16, 32)
    applied = layout.apply(logical_variables(4), (40, 16, 3, 3))
    assert ", ".join(map(show, applied)) == "i0 // 32, i2, i3, i1, i0 % 32"


def test_unfold_covers_overlapping_tiles():
    layout = Layout().then("unfold", 0, 5, 3)
    assert layout.shape((11,)) == (3, 5)
    stored = layout.invert(logical_variables(2), (11,))
    assert [at(stored, p)[0] for p in product(range(3), range(5))] == [*range(5), *range(3, 8), *range(6, 11)]


def test_a_part_is_padded_to_the_tiles_of_the_whole():
    layout = Layout.parse("pad(1, 0, 16).split(1, 3, 16).split(0, 2).reorder(2, 0, 3, 4, 1)")
    assert layout.shape((128, 512)) == (11, 64, 3, 16, 2)
    assert layout.of_part((128, 512)) == layout
    assert layout.of_part((128, 48)).shape((128, 48)) == (1, 64, 3, 16, 2)
    assert layout.of_part((128, 32)).shape((128, 32)) == (1, 64, 3, 16, 2)
    with pytest.raises(ValueError, match="does not divide 5"):
        layout.of_part((5, 48))


def test_permutation():
    assert reordered(0, 2, 3, 1).permutation == (0, 2, 3, 1)
    assert Layout().permutation is None and reordered(1, 0).then("pad", 0, 1, 1).permutation is None


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("split(0, 4)", (6,), "does not divide 6; pad first"),
        ("reorder(0, 0)", (6, 6), "is no permutation of 2 dimensions"),
        ("fuse(1, 2)", (6, 6), "goes beyond the last of 2 dimensions"),
        ("pad(2, 1, 1)", (6, 6), "names dimension 2 of a tensor of 2"),
        ("unfold(0, 3, 4)", (6,), "needs 0 < stride <= tile <= 6"),
    ],
)
def test_a_primitive_that_does_not_fit(text, shape, message):
    with pytest.raises(ValueError, match=message):
        Layout.parse(text).shape(shape)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frob(1)", "unknown layout primitive 'frob'"),
        ("split(1)", "split takes at least 2 numbers"),
        ("pad(0, 1, 1, 1)", "pad takes 3 numbers"),
        ("split(0, 0)", "factors and counts 1 or more"),
        ("split(0, 4", "expected a layout such as"),
        ("", "expected a layout such as"),
        ("pad(0, -1, 1)", "expected a layout such as"),
    ],
)
def test_layout_errors(text, message):
    with pytest.raises(ValueError, match=message):
        Layout.parse(text)
    assert Primitive("reorder", ()).shape(()) == ()
