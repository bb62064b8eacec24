"""What is decided of bytes, by numbers alone: ranges, divisors, what is given back, drops; and a Recipe's JSON."""

from __future__ import annotations

import json

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelc.compile.options import share
from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.outputs import class_scores, embeddings
from modelc.frontend.quantize.recipe import LayerChoice, Range, Recipe
from modelc.frontend.quantize.trials import sampled_places
from modelc.frontend.quantize.weights import as_bytes, bias_as_whole
from modelc.ir.graph import Node
from modelc.passes.quantized import can_be_narrowed, narrowed
from modelc.quantize.by_metric import ByMetric
from modelc.quantize.cut import Cut, Step, Way, cut, ordered
from modelc.quantize.measure import Agreement, unseen
from modelc.quantize.statistics import Statistics, divisors_of, ranges_of
from modelc.quantize.subject import judged_for
from modelc.quantize.trade_off import Row, worth

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


@pytest.mark.parametrize("largest", [6, 12, 40])
def test_least_squares_cut_off_what_costs_less_than_finer_steps(largest: float) -> None:
    numbers = np.random.default_rng(0).normal(size=20_000).astype(F)
    numbers[0] = largest

    def error(stored: Range) -> float:
        steps = np.clip(np.rint(numbers / F(stored.scale)) + stored.zero, 0, 255) - stored.zero
        return float(np.square(steps * F(stored.scale) - numbers).sum())

    by = {stored.by: stored for stored in ranges_of(-4, largest, numbers)}
    others = [Range.of(-4 * share, largest * share, "") for share in (1, 0.8, 0.6, 0.4, 0.2)]
    assert by["least squares"].scale < by["min-max"].scale
    assert error(by["least squares"]) <= min(map(error, others))


def test_weights_have_a_scale_for_each_channel() -> None:
    weights = np.array([[1, -2, 0.5], [0, 0, 0], [100, 3, -7]], F)
    whole, scale, zero, _ = as_bytes(weights, 0)
    assert whole.dtype == np.int8 and np.abs(whole).max() == 127
    np.testing.assert_allclose(whole * scale[:, None], weights, atol=0.51 * scale.max())
    assert scale[1] == 1 and not zero.any()
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


def ways(**saved_and_errors: dict[str, tuple[float, float]]) -> dict[str, list[Way]]:
    """By layer and by way, the seconds that are saved beside ten in float32, and the error."""
    real = Way("float32", 10, 0)
    return {
        name: [real, *(Way(way, 10 - saved, error) for way, (error, saved) in every.items())]
        for name, every in saved_and_errors.items()
    }


def layers_in(cut: Cut, way: str) -> set[str]:
    return {name for name, other in cut.ways.items() if other == way}


def test_few_are_given_back() -> None:
    every = {"a": (0.1, 1.0), "b": (0.4, 1.0), "c": (0.2, 0.01), "d": (0.0, 1.0)}
    order = ordered(ways(**{name: {"int8": form} for name, form in every.items()}))
    assert [step.layer for step in order.order] == ["c", "b", "a", "d"]
    asked = list[int]()

    def holds(tried: Cut) -> bool:
        asked.append(tried.taken)
        return "b" not in layers_in(tried, "int8")

    chosen = cut(order, holds)
    assert chosen.moved == {"c", "b"} and layers_in(chosen, "int8") == {"a", "d"} and len(asked) <= 3
    assert layers_in(cut(order, lambda tried: True), "int8") == set("abcd")
    assert not layers_in(cut(order, lambda tried: not layers_in(tried, "int8")), "int8")


def test_asymmetric_weights_come_before_float32_where_they_take_off_more_for_the_time() -> None:
    symmetric = {"a": (0.4, 1), "b": (0.3, 1), "c": (0.1, 1)}
    every = ordered(ways(**{name: {"int8": form} for name, form in symmetric.items()}))
    assert every.order == (Step("a", "float32"), Step("b", "float32"), Step("c", "float32"))
    asymmetric = {"a": {"asymmetric": (0.2, 0.9)}, "b": {"asymmetric": (0.25, 0.1)}}  # of b they take too long
    finer = ordered(ways(**{name: {"int8": form} | asymmetric.get(name, {}) for name, form in symmetric.items()}))
    assert finer.order == (Step("a", "asymmetric"), Step("b", "float32"), Step("a", "float32"), Step("c", "float32"))
    chosen = cut(every, lambda tried: "b" not in layers_in(tried, "int8"), lambda: finer)
    assert chosen.ways == {"a": "asymmetric", "b": "float32", "c": "int8"}
    assert finer.taking(3).ways == {"a": "float32", "b": "float32", "c": "int8"}
    assert not layers_in(cut(every, lambda tried: True, lambda: finer), "asymmetric")
    quicker = ordered(ways(a={"int8": (0.4, 1), "asymmetric": (0.3, 1.1)}))  # as an estimate may say
    assert quicker.first == {"a": "asymmetric"} and quicker.order == (Step("a", "float32"),)


def test_layers_are_given_back_to_float16_first_where_that_is_worth_it() -> None:
    """What is quick and nearly as exact is between; what takes off little of the error for its time is passed over."""
    order = ordered(
        ways(
            between={"float16": (0.01, 8), "int8": (0.5, 9)},
            no_better={"float16": (0.39, 0.1), "int8": (0.4, 9)},
            no_bytes={"float16": (0.02, 8)},
            out_of_range={"int8": (float("inf"), 1)},
            neither={},
        )
    )
    assert order.first == {
        "between": "int8",
        "no_better": "int8",
        "no_bytes": "float16",
        "out_of_range": "int8",
        "neither": "float32",
    }
    assert order.order == (
        Step("out_of_range", "float32"),
        Step("between", "float16"),
        Step("no_better", "float32"),
        Step("no_bytes", "float32"),
        Step("between", "float32"),
    )
    assert set(order.taking(5).ways.values()) == {"float32"}


@given(st.integers(0, 10_000), st.sampled_from([63, 127]), st.sampled_from([-1, 0, 1, 2]))
@settings(max_examples=30, deadline=None)
def test_asymmetric_weights_use_every_number(seed: int, most: int, sign: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(3, 40)).astype(F) * F(10.0 ** rng.integers(-30, 30))
    weights = {-1: -np.abs(weights), 0: weights, 1: np.abs(weights), 2: np.zeros_like(weights)}[sign]
    made = as_bytes(weights, 0, most, asymmetric=True)
    assert np.abs(made.whole.astype(int)).max() <= most and np.abs(made.zero.astype(int)).max() <= most
    assert (np.abs(made.real() - weights) <= 0.51 * made.scale[:, None]).all() and (made.scale > 0).all()
    assert not as_bytes(np.zeros_like(weights), 0, most, asymmetric=True).real().any()
    symmetric = as_bytes(weights, 0, most)
    if abs(sign) == 1:
        np.testing.assert_allclose(made.scale, symmetric.scale / 2, rtol=1e-6)
        off = [np.linalg.norm((w.real() - weights) / symmetric.scale[:, None]) for w in (made, symmetric)]
        assert off[0] ** 2 < 0.5 * off[1] ** 2
    assert np.array_equal(as_bytes(weights.T, 1, most, asymmetric=True).real(), made.real().T)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_weights_moved_within_bounds_give_the_same_sums(drawn: st.DataObject) -> None:
    """sum(a * w) = sum(a * narrow) + shift * sum(a), with the largest activations and as many weights as are allowed,
    and no part of it is larger than half of int32."""
    low, high = drawn.draw(st.sampled_from([(-128, 127), (-64, 64)]))
    depth = drawn.draw(st.sampled_from([1, 7, 300, 16_000, 32_896, 40_000]))
    rng = np.random.default_rng(drawn.draw(st.integers(0, 1 << 32)))
    zeros = rng.integers(-128, 128, 4)
    whole = rng.integers(low, high + 1, (depth, 4)) if drawn.draw(st.booleans()) else np.full((depth, 4), high)
    weights = whole.astype(np.int64) - zeros
    product = Node("MatMul", "m", ("a", "w"), ("y",))
    if not can_be_narrowed(weights, 1, product, (low, high)):
        assert depth * max(128, np.abs(weights).max()) > 32_896 * 128 * 0.99
        return
    narrow, shift = narrowed(weights, 1, (low, high))
    assert narrow.dtype == np.int8 and narrow.min() >= low and narrow.max() <= high
    a = np.where(rng.random(depth) < 0.1, rng.integers(-255, 256, depth), drawn.draw(st.sampled_from([-255, 255])))
    parts = a @ narrow.astype(np.int64), shift * a.sum()
    np.testing.assert_array_equal(parts[0] + parts[1], a @ weights)
    if shift.any():
        assert abs(a.sum()) <= 1 << 24 and float(np.float32(a.sum())) == a.sum()
        assert max(np.abs(part).max() for part in parts) < 1 << 30


def test_drops_without_labels() -> None:
    wanted = [{"s": np.eye(4, dtype=F)[:2], "e": np.array([3.0, 4.0], F), "n": np.array([1])}]
    made = [{"s": np.eye(4, dtype=F)[[0, 3]], "e": np.array([3.0, 4.5], F), "n": np.array([2])}]
    judge = Agreement(wanted, [{}], ["s"])
    assert judge.drop(wanted).share == 0
    drop = judge.drop(made)
    assert drop.share == 0.5 and "1 of 2 classes of 's' are the same" in drop.said and "10.00% of 'e'" in drop.said


def test_drops_by_a_metric_are_a_share_of_the_float_models() -> None:
    wanted, samples = [{"y": np.array(4.0)}, {"y": np.array(2.0)}], [{"x": np.array(1)}, {"x": np.array(2)}]
    judge = ByMetric("f.py:f", lambda outputs, sample: float(outputs["y"]) * int(sample["x"]), wanted, samples)
    assert judge.drop([{"y": np.array(2.0)}, {"y": np.array(2.0)}]).share == pytest.approx(0.25)
    assert judge.drop([{"y": np.array(5.0)}, {"y": np.array(2.0)}]).share < 0


def test_what_a_measure_does_not_see_is_said() -> None:
    wanted, samples = [{"s": np.roll(np.eye(4, dtype=F), k, 1)[:2]} for k in range(25)], [{"x": np.array(1)}] * 25
    classes = Agreement(wanted, samples, ["s"])
    assert unseen(classes, 0.02) == unseen(classes, 0.0) == ()
    (sentence,) = unseen(classes, 0.01)
    assert sentence.startswith("a drop of 1.00% cannot be seen: one of the 50 rows that are held back is 2.00%; ")
    assert "calibrate on 400 of them" in sentence
    assert unseen(Agreement(wanted, samples), 1e-6) == ()  # a relative error is measured, not counted
    metric = ByMetric("f.py:f", lambda outputs, sample: float(outputs["s"][0, 0]), wanted, samples)
    assert unseen(metric, 0.04) == () and "cannot be seen" in unseen(metric, 0.001)[0]
    (sentence,) = unseen(ByMetric("f.py:f", lambda outputs, sample: 0.0, wanted, samples), 0.02)
    assert sentence.startswith("the metric f.py:f is 0 on every sample that is held back")
    recipe = Recipe((), {}, summary={"drop": 0.0, "unseen": [sentence]})
    assert recipe.notes[-1] == sentence


def test_what_does_not_hang_on_the_samples_is_said() -> None:
    wanted, samples = [{"e": np.arange(3, dtype=F) + k} for k in range(4)], [{"x": np.array(k)} for k in range(4)]
    assert unseen(Agreement(wanted, samples), 0.01) == ()
    (sentence,) = unseen(Agreement([wanted[0]] * 4, samples), 0.01)
    assert sentence.startswith("the float model gives the same 'e' for every sample that is held back")
    blind = ByMetric("f.py:f", lambda outputs, sample: 3.0, wanted, samples)
    (sentence,) = unseen(blind, 0.3)
    assert sentence.startswith("the metric f.py:f is 3 on every sample") and "outputs of another sample too" in sentence
    perfect = ByMetric("f.py:f", lambda outputs, sample: float(outputs["e"][0] == sample["x"]), wanted, samples)
    assert unseen(perfect, 0.3) == ()


def test_a_metric_of_three_arguments_is_given_the_float_models_outputs() -> None:
    wanted, samples = [{"y": np.array([1, 2], F)}, {"y": np.array([4, 3], F)}], [{"x": np.array(k)} for k in range(2)]
    judge = ByMetric(
        "f.py:f", lambda outputs, sample, right: float((outputs["y"] == right["y"]).mean()), wanted, samples
    )
    assert judge.whole == 1
    assert judge.drop([{"y": np.array([1, 3], F)}, wanted[1]]).share == pytest.approx(0.25)


def test_embeddings_are_judged_by_cosine_and_by_the_nearest_row() -> None:
    rng = np.random.default_rng(1)
    pairs = np.repeat(rng.normal(size=(5, 1, 40)), 2, axis=0)
    rows = [*(pairs + 0.3 * rng.normal(size=(10, 1, 40))).astype(F)]
    wanted, samples = [{"e": row} for row in rows], [{"x": np.array(k)} for k in range(10)]
    judge = Agreement(wanted, samples, (), ["e"])
    assert judge.what == "cosine and nearest rows of 'e'" and judge.step == pytest.approx(0.1)
    assert judge.drop([{"e": 3 * row} for row in rows]).share < 1e-6  # their lengths are nothing
    noisy = [{"e": row + F(0.05) * rng.normal(size=row.shape).astype(F)} for row in rows]
    drop = judge.drop(noisy)
    assert 1e-4 < drop.share < 0.01 and "10 of whose nearest rows are the same" in drop.said
    assert Agreement(wanted, samples).drop(noisy).share > 4 * drop.share  # the relative error
    moved = [{"e": rows[2]}, *wanted[1:]]  # its neighbour is another, and so are those of others
    assert judge.drop(moved).share >= 0.1
    assert judge.drop([{"e": np.full_like(row, np.nan)} for row in rows]).share == 1


def test_hidden_states_are_judged_where_their_mask_is_1() -> None:
    rng = np.random.default_rng(2)
    states = rng.normal(size=(2, 1, 5, 64)).astype(F)
    masks = [np.array([[1, 1, 1, 0, 0]]), np.array([[1, 1, 0, 0, 0]])]
    samples = [{"attention_mask": mask} for mask in masks]
    judge = Agreement([{"h": x} for x in states], samples, (), ["h"])
    assert judge.what == "cosine of 'h'" and judge.step == 0
    made = [{"h": np.where(mask[..., None], x, -x)} for x, mask in zip(states, masks, strict=True)]
    drop = judge.drop(made)
    assert drop.share < 1e-6 and "of 5 rows" in drop.said
    assert judge.drop([{"h": -x} for x in states]).share == 1
    narrow = [{"h": x[..., :8]} for x in states]
    assert Agreement(narrow, samples, (), ["h"]).what == "relative error of 'h'"


BOXES = np.array([[0, 0, 10, 10], [20, 20, 40, 30], [50, 0, 60, 10]], F)
SCORES = np.array([[0.9, 0.1], [0.2, 0.8], [0.1, 0.3]], F)


def boxes(form: str, corners: np.ndarray, scores: np.ndarray) -> dict[str, np.ndarray]:
    if form == "beside scores":
        return {"boxes": corners[None], "scores": scores[None]}
    score, kind = scores.max(-1, keepdims=True), scores.argmax(-1, keepdims=True).astype(F)
    return {"found": np.hstack([corners, score, kind] if form == "before score" else [kind, score, corners])}


@pytest.mark.parametrize("form", ["beside scores", "before score", "behind class"])
def test_detections_are_judged_by_their_boxes(form: str) -> None:
    samples = [{"x": np.array(k)} for k in range(2)]
    wanted = [boxes(form, BOXES, SCORES), boxes(form, BOXES + 3, SCORES)]
    judge = Agreement(wanted, samples)
    assert judge.what.startswith("boxes of") and judge.step == 0.25
    assert judge.drop([boxes(form, BOXES + 1, SCORES - F(0.05)), wanted[1]]).share == 0
    drop = judge.drop([boxes(form, BOXES + 9, SCORES), wanted[1]])  # neither overlaps enough
    assert drop.share == 0.5 and "4 of 8 boxes" in drop.said
    assert judge.drop([boxes(form, BOXES, SCORES[:, ::-1]), wanted[1]]).share == 0.5  # another class
    lost = judge.drop([boxes(form, BOXES, SCORES * F(0.2)), wanted[1]])
    assert lost.share == pytest.approx(1 - 4 / 6)
    reversed_ = [boxes(form, BOXES[:, ::-1].copy(), SCORES), wanted[1]]
    assert "relative error" in Agreement(reversed_, samples).what  # no corners
    assert "relative error" in Agreement([boxes(form, BOXES, 3 * SCORES)] * 2, samples).what  # no scores
    assert "relative error" in Agreement([boxes(form, BOXES, SCORES / 4)] * 2, samples).what  # nothing is found


OUTPUTS = """<ir_version: 8, opset_import: ["" : 17]>
outputs (float[2, 6, 64] x, float[2, 3, 8, 8] image) =>
    (float[2, 6, 64] hidden, float[2, 64] pooled, float[2, 64] unit, float[2, 3] average, float[2, 6, 64] tanh,
     float[2, 6, 64] magnitude, float[2, 6, 64] scores, float[2, 6, 64] real)
<float[64] gamma = {GAMMA}, float[64, 64] w = {W}, int64[1] axis = {1}, float tiny = {1e-6}>
{
    hidden = LayerNormalization <axis = -1> (x, gamma)
    masked = Mul (hidden, x)
    sum = ReduceSum <keepdims = 0> (masked, axis)
    pooled = Div (sum, tiny)
    s = ReduceSum <keepdims = 0> (x, axis)
    length = ReduceL2 <axes = [1], keepdims = 1> (s)
    bounded = Max (length, tiny)
    unit = Div (s, bounded)
    mean = GlobalAveragePool (image)
    average = Flatten (mean)
    p = MatMul (x, w)
    biased = Add (p, gamma)
    tanh = Tanh (biased)
    square = Mul (x, x)
    root = Sqrt (square)
    magnitude = Mul (root, x)
    scores = MatMul (hidden, w)
    real = Sigmoid (hidden)
}"""


def test_what_outputs_look_like() -> None:
    text = OUTPUTS.replace("GAMMA", ", ".join(["1"] * 64)).replace("W", ", ".join(["0.5"] * 64 * 64))
    floats = FloatModel(onnx.parser.parse_model(text))
    assert class_scores(floats) == ("scores",)
    assert embeddings(floats) == ("hidden", "pooled", "unit", "average", "tanh")


@given(st.integers(0, 1000), st.sampled_from([0, 4]), st.integers(1, 3), st.integers(1, 9), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_ranges_of_divided_channels_are_those_of_the_divided_value(
    seed: int, rank: int, batch: int, channels: int, side: int
) -> None:
    """Statistics are taken once, before anything is scaled."""
    rng = np.random.default_rng(seed)
    shape = (batch, channels, side, side + 1) if rank else (batch, side, channels)
    divisors = rng.uniform(0.1, 1, channels).astype(F)
    by_channel = divisors.reshape(-1, 1, 1) if rank else divisors

    def statistics(values: list[np.ndarray]) -> Statistics:
        others = tuple(k for k in range(len(shape)) if k != (1 if rank else len(shape) - 1))
        sampled = [x.reshape(-1)[sampled_places() % x.size] for x in values]
        seen = {"v/low": [x.min() for x in values], "v/high": [x.max() for x in values], "v/sampled": sampled}
        seen |= {"v/lows": [x.min(others) for x in values], "v/highs": [x.max(others) for x in values]}
        return Statistics(seen | {"v/shape": [np.array(x.shape) for x in values]}, ("v",), {"v": rank})

    values = [rng.normal(size=shape).astype(F) for _ in range(2)]
    whole = statistics(values)
    (made,), (wanted,) = (
        x.values() for x in (whole.ranges(1, {"v": divisors}), statistics([x / by_channel for x in values]).ranges(1))
    )
    assert [(r.by, r.zero) for r in made] == [(r.by, r.zero) for r in wanted]
    np.testing.assert_allclose([r.scale for r in made], [r.scale for r in wanted], rtol=1e-5)
    largest = np.abs(np.stack(values)).max(tuple(k for k in range(5 if rank else 4) if k != (2 if rank else 3)))
    np.testing.assert_array_equal(whole.largest("v"), largest)


def test_rows_of_a_trade_off_are_those_that_something_is_gained_by() -> None:
    def row(seconds: float, drop: float) -> Row:
        return Row(3, 0, 0, 0, 4, seconds, 1 / seconds, 10, drop)

    rows = [row(1, 0.5), row(2, 0.2), row(2.5, 0.3), row(1, 0.4), row(3, 0.2), row(4, 0)]
    assert worth(rows) == (row(1, 0.4), row(2, 0.2), row(4, 0))


@given(st.floats(1e-9, 1))
def test_the_drop_that_chooses_a_row_allows_it(drop: float) -> None:
    allowed = Row(1, 0, 0, 0, 1, 1, 1, 1, drop).max_drop
    assert drop * (1 - 1e-5) <= allowed <= 1.11 * drop


def test_as_many_are_held_back_as_the_drop_needs() -> None:
    assert [judged_for(drop) for drop in (0.0, 0.5, 0.01, 0.002, 1e-6)] == [64, 64, 100, 500, 1024]


def test_a_recipe_is_the_same_from_its_json() -> None:
    layers = (
        LayerChoice("a", "int8", 0.1, 0.2, 1e-6, weights="asymmetric"),
        LayerChoice("b", "float32", 0.1, 0.0, -1e-6, "no faster"),
    )
    recipe = Recipe(layers, {"x": Range(0.1, 3, "min-max")}, {"a": np.array([1.5, -2], F)}, {}, 63, {"drop": 0.0})
    text = json.dumps(recipe.to_json())
    again = Recipe.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text and again.narrow == again.asymmetric == {"a"}
    assert "with asymmetric weights" in again.notes[0]
    for wrong in ({"scale": 0.0, "zero": 3, "by": ""}, {"scale": 1.0, "zero": 300, "by": ""}):
        with pytest.raises(ValueError, match="expected a scale and a byte"):
            Recipe.from_json({**recipe.to_json(), "ranges": {"x": wrong}})


def test_shares() -> None:
    assert share("1%") == share("0.01") == share("1 %") == 0.01
