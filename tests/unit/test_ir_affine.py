"""Quasi-affine arithmetic against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import quasi_affine

from modelc.ir.affine import bounds, linear, offset, simplify
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Const, Op, Var, show, substitute
from modelc.ir.expr_syntax import parse

quick = settings(max_examples=60, deadline=None)
ranges_strategy = st.dictionaries(st.sampled_from(["i", "j", "k"]), st.integers(1, 6), min_size=1)
cases = ranges_strategy.flatmap(lambda ranges: st.tuples(st.just(ranges), quasi_affine(ranges)))


def values(e, ranges):
    """The expression at every point, in order."""
    grid = np.meshgrid(*(np.arange(n) for n in ranges.values()), indexing="ij")
    found = evaluate(e, dict(zip(ranges, grid, strict=True)), {})
    return np.broadcast_to(found, grid[0].shape).ravel().tolist()


@quick
@given(cases)
def test_linear_and_its_expression_are_equal(case):
    ranges, e = case
    form = linear(e)
    assert form is not None
    assert values(form.expr(), ranges) == values(e, ranges)
    assert linear(form.expr()) == form


@quick
@given(cases)
def test_simplified_is_equal(case):
    ranges, e = case
    assert values(simplify(e, ranges), ranges) == values(e, ranges)


@quick
@given(cases)
def test_simplified_stays_as_it_is(case):
    ranges, e = case
    simple = simplify(e, ranges)
    assert simplify(simple, ranges) == simple


@quick
@given(
    ranges_strategy.flatmap(lambda ranges: st.tuples(st.just(ranges), *[quasi_affine(ranges, depth=2)] * 4)),
    st.sampled_from([("i", "j"), ("k",), ()]),
)
def test_offsets_are_differences(case, replaced):
    ranges, e, base, *others = case
    replacements = dict(zip(replaced, others, strict=False))
    found = offset(e, replacements, base, ranges)
    assert values(found, ranges) == values(Op("sub", (substitute(e, replacements), base)), ranges)
    assert simplify(found, ranges) == found


@quick
@given(cases)
def test_bounds_hold(case):
    ranges, e = case
    found = bounds(e, ranges)
    assert found is not None
    assert found[0] <= min(values(e, ranges)) and max(values(e, ranges)) <= found[1]


@quick
@given(ranges_strategy, st.lists(st.integers(-5, 5), min_size=3, max_size=3), st.integers(-9, 9))
def test_bounds_of_linear_forms_are_exact(ranges, coefficients, constant):
    e = Const(constant)
    for name, c in zip(ranges, coefficients, strict=False):
        e = e + Op("mul", (Var(name), Const(c)))
    assert bounds(e, ranges) == (min(values(e, ranges)), max(values(e, ranges)))


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("(4 * i + j) // 4", "i"),
        ("(4 * i + j) % 4", "j"),
        ("(8 * i + j) // 4", "i * 2"),
        ("i // 4 * 4 + i % 4", "i"),
        ("i // 4 * 12 + i % 4 * 3", "i * 3"),
        ("(i // 4) // 2", "0"),
        ("(x // 4) // 2", "x // 8"),
        ("(x % 8) % 4", "x % 4"),
        ("(x + 16) // 8", "x // 8 + 2"),
        ("(x + 16) % 8", "x % 8"),
        ("i + j - i", "j"),
        ("one + i", "i"),
        ("i * 0 + 3", "3"),
        ("neg(i) + i", "0"),
    ],
)
def test_simple_forms(text, simple):
    assert show(simplify(parse(text), {"i": 8, "j": 4, "x": 100, "one": 1})) == simple


def test_what_is_not_quasi_affine():
    for text in ("i * j", "T[i]", "i // j", "max(i, 0)", "float32(1.0)", "i % 0", "i // neg(2)"):
        assert linear(parse(text)) is None
    assert bounds(Var("unknown"), {"i": 4}) is None
