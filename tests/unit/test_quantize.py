"""What is decided of bytes, by numbers alone: ranges, divisors, what is given back, drops; and a Recipe's JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modelc.cli.quantizing import share_of
from modelc.frontend.quantize.recipe import LayerChoice, Range, Recipe
from modelc.frontend.quantize.weights import as_bytes, bias_as_whole
from modelc.quantize.cut import Cut, cut, ordered
from modelc.quantize.measure import Agreement, ByMetric
from modelc.quantize.ranges import ranges_of
from modelc.quantize.smoothing import divisors_of

F = np.float32


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-1.0, 3.0), (2.0, 5.0), (-4.0, -1.0), (0.0, 0.0)])
def test_zero_is_exact_in_every_range(low: float, high: float) -> None:
    stored = Range.of(low, high, "")
    assert 0 <= stored.zero <= 255 and stored.scale > 0
    ends = [(min(low, 0) / stored.scale) + stored.zero, (max(high, 0) / stored.scale) + stored.zero]
    assert ends[0] >= -0.51 and ends[1] <= 255.51


def test_outliers_are_cut_off_by_some_ranges() -> None:
    numbers = np.random.default_rng(0).normal(size=20_000).astype(F)
    numbers[0] = 1000
    by = {stored.by: stored for stored in ranges_of(-4, 1000, numbers)}
    assert by["min-max"].scale == pytest.approx(1004 / 255, rel=1e-6)
    assert by["percentile 99.9"].scale < 0.05
    assert len(ranges_of(0, 1, np.linspace(0, 1, 7, dtype=F))) < 5  # equal ones are left out


def test_weights_have_a_scale_for_each_channel() -> None:
    weights = np.array([[1, -2, 0.5], [0, 0, 0], [100, 3, -7]], F)
    whole, scale = as_bytes(weights, 0)
    assert whole.dtype == np.int8 and np.abs(whole).max() == 127
    np.testing.assert_allclose(whole * scale[:, None], weights, atol=0.51 * scale.max())
    assert scale[1] == 1
    np.testing.assert_array_equal(as_bytes(weights.T, 1).whole, whole.T)
    assert bias_as_whole(np.array([1e9], F), np.array([1e-6], F)) is None


def test_channels_become_alike_where_that_costs_nothing() -> None:
    largest = np.array([10, 0.1, 0, 5], F)
    divisors = divisors_of(largest, None)
    np.testing.assert_allclose((largest / divisors)[[0, 1, 3]], 10, rtol=1e-5)
    assert divisors[2] == 1
    shared = divisors_of(np.array([16, 1], F), np.array([1, 1], F))
    np.testing.assert_allclose(shared, [1, 0.25])
    assert divisors_of(np.zeros(3, F), None).tolist() == [1, 1, 1]


def test_few_are_given_back() -> None:
    errors, saved = {"a": 0.1, "b": 0.4, "c": 0.2, "d": 0.0}, {"a": 1.0, "b": 1.0, "c": 0.01, "d": 1.0}
    order = ordered("abcd", errors, saved)
    assert order.order == ("c", "b", "a", "d")
    asked = list[int]()

    def holds(tried: Cut) -> bool:
        asked.append(tried.given_back)
        return "b" not in tried.narrow

    chosen = cut(order, holds)
    assert chosen.wide == ("c", "b") and chosen.narrow == {"a", "d"} and len(asked) <= 3
    assert cut(order, lambda tried: True).narrow == set("abcd")
    assert cut(order, lambda tried: not tried.narrow).narrow == frozenset()


def test_drops_without_labels() -> None:
    wanted = [{"s": np.eye(4, dtype=F)[:2], "e": np.array([3.0, 4.0], F), "n": np.array([1])}]
    made = [{"s": np.eye(4, dtype=F)[[0, 3]], "e": np.array([3.0, 4.5], F), "n": np.array([2])}]
    judge = Agreement(wanted, ["s"])
    assert judge.drop(wanted).share == 0
    drop = judge.drop(made)
    assert drop.share == 0.5 and "1 of 2 classes of 's' are the same" in drop.said and "10.00% of 'e'" in drop.said


def test_drops_by_a_metric_are_a_share_of_the_float_models() -> None:
    wanted, samples = [{"y": np.array(4.0)}, {"y": np.array(2.0)}], [{"x": np.array(1)}, {"x": np.array(2)}]
    judge = ByMetric("f.py:f", lambda outputs, sample: float(outputs["y"]) * int(sample["x"]), wanted, samples)
    assert judge.drop([{"y": np.array(2.0)}, {"y": np.array(2.0)}]).share == pytest.approx(0.25)
    assert judge.drop([{"y": np.array(5.0)}, {"y": np.array(2.0)}]).share < 0


def test_a_recipe_is_the_same_from_its_json() -> None:
    layers = (LayerChoice("a", "int8", 0.1, 0.2, 1e-6), LayerChoice("b", "float32", 0.1, 0.0, -1e-6, "no faster"))
    recipe = Recipe(layers, {"x": Range(0.1, 3, "min-max")}, {"a": np.array([1.5, -2], F)}, {}, 63, {"drop": 0.0})
    text = json.dumps(recipe.to_json())
    again = Recipe.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text and again.narrow == {"a"}
    for wrong in ({"scale": 0.0, "zero": 3, "by": ""}, {"scale": 1.0, "zero": 300, "by": ""}):
        with pytest.raises(ValueError, match="expected a scale and a byte"):
            Recipe.from_json({**recipe.to_json(), "ranges": {"x": wrong}})


def test_shares() -> None:
    assert share_of("1%") == share_of("0.01") == share_of("1 %") == 0.01
