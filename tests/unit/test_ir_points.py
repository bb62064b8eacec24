"""Sets of index points against brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_strategies import quasi_affine

from modelc.ir import points
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Const, Op, Var
from modelc.ir.expr_syntax import parse
from modelc.ir.points import TooLarge, boxes, common, disjoint, image, remainder

quick = settings(max_examples=40, deadline=None)
ranges_strategy = st.dictionaries(st.sampled_from(["i", "j", "k"]), st.integers(0, 5), min_size=1)


@st.composite
def images(draw, columns):
    """Expressions, ranges and conditions."""
    ranges = draw(ranges_strategy)
    exprs = [draw(quasi_affine(ranges, 2)) for _ in range(columns)]
    conditions = [Op("lt", (draw(quasi_affine(ranges, 1)), Const(3))) for _ in range(draw(st.integers(0, 2)))]
    return exprs, ranges, conditions


def reached(exprs, ranges, conditions):
    """Every value row, with repetitions."""
    found = []
    for point in product(*(range(n) for n in ranges.values())):
        env = {name: np.asarray(v) for name, v in zip(ranges, point, strict=True)}
        if all(evaluate(c, env, {}) for c in conditions):
            found.append(tuple(int(evaluate(e, env, {})) for e in exprs))
    return found


def listed(frame, box):
    """All points of a box."""
    result = set()
    for codes in product(*box):
        single = tuple(np.asarray([c]) for c in codes)
        result.add(frame.point(single))
    return result


@quick
@given(images(2))
def test_an_image_is_what_is_reached(case):
    found, wanted = image(*case), reached(*case)
    assert found.empty == (not wanted)
    assert found.injective == (len(set(wanted)) == len(wanted))
    frame, (box,) = boxes([found], 2)
    assert listed(frame, box) == set(wanted)
    if wanted:
        for k in range(2):
            assert found.limits[k] == (min(w[k] for w in wanted), max(w[k] for w in wanted))


@quick
@given(images(2), st.lists(images(2), min_size=1, max_size=3))
def test_remainders_and_intersections(first, others):
    frame, (box, *rest) = boxes([image(*case) for case in (first, *others)], 2)
    wanted = set(reached(*first))
    for other, case in zip(rest, others, strict=True):
        both = wanted & set(reached(*case))
        assert disjoint(box, other) == (not both)
        assert listed(frame, common(box, other)) == both
    left = wanted.difference(*(reached(*case) for case in others))
    pieces = [listed(frame, piece) for piece in remainder(box, rest)]
    assert set().union(*pieces) == left and sum(map(len, pieces)) == len(left)


def test_dense_sums_are_intervals_however_large():
    found = image([parse("i * 4096 + j * 4 + k")], {"i": 10**9, "j": 1024, "k": 4})
    assert found.injective and found.limits[0] == (0, 10**9 * 4096 - 1)
    overlapping = image([parse("i + k - 1")], {"i": 10**9, "k": 3})
    assert not overlapping.injective and overlapping.limits[0] == (-1, 10**9)


def test_sets_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr(points, "LIMIT", 100)
    assert len(image([parse("i // 2")], {"i": 100}).factors[0].values) == 50
    with pytest.raises(TooLarge):
        image([parse("i // 2")], {"i": 101})
    assert image([Var("i"), Var("j")], {"i": 99, "j": 99}).injective  # independent, never enumerated
