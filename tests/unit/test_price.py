"""The price of schedules (cost/terms.py): every quantity of Work and every coefficient moves it, and all Sketches of a
Task, be it as it is or as a rule proposes it, are priced alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
import pytest
from three_ways import task_of

import modelc
from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.choose import ranked
from modelc.space.cost.terms import FEATURES, TERMS, features, seconds, terms
from modelc.space.cost.work import SOURCES, Work
from modelc.space.rules import derivation
from modelc.space.rules.rule import Rule
from modelc.space.sketch import Sketch, Value
from modelc.space.sketches.listing import families
from modelc.target import CostParameters, list_targets, load_target
from modelc.target.family import family_of, priced_as_another
from modelc.target.schema import parse_target

COST = CostParameters()
ONE = Work.of(
    1,
    computing=3e-3,
    copying=1e-3,
    moving=np.array([[1e-3, 2e-3, 1.5e-3]]),
    exposed=0.1,
    demanded=1e-4,
    arriving=5e-4,
    transferred=1e-4,
    phases=1,
    forks=1,
)
COEFFICIENTS = ("sharpness", "demanded_share", "streamed_wait_ratio", "phase_seconds", "fork_join_seconds")


@pytest.mark.parametrize("name", [field.name for field in fields(Work)])
def test_more_of_anything_takes_longer(name: str) -> None:
    before = seconds(ONE, COST)[0]
    after = seconds(replace(ONE, **{name: 1.5 * getattr(ONE, name)}), COST)[0]
    assert before < after <= 1.5 * before


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_every_coefficient_moves_the_price(name: str) -> None:
    other = replace(COST, **{name: 0.9 * getattr(COST, name)})
    assert seconds(ONE, other)[0] != seconds(ONE, COST)[0]


def test_terms_add_up_and_features_are_their_shares() -> None:
    parts, total = terms(ONE, COST)[0], seconds(ONE, COST)[0]
    assert len(parts) == len(TERMS) and (parts > 0).all() and parts.sum() == pytest.approx(total)
    shares = dict(zip(FEATURES, features(ONE, COST)[0], strict=True))
    assert shares["computing"] == pytest.approx(ONE.computing[0] / total)
    assert [shares[s] for s in SOURCES] == pytest.approx(list(ONE.moving[0] / total))
    assert shares["forks"] == pytest.approx(COST.fork_join_seconds / total)


def test_nothing_that_is_done_takes_no_time() -> None:
    nothing = Work.of(2)
    assert seconds(nothing, COST).tolist() == [0.0, 0.0]
    assert not features(nothing, COST).any()


TASKS = {
    "product": task_of("MatMul", {}, [(512, 512), (512, 512)], (1,)),
    "window": task_of("Conv", {"pads": (1,) * 4}, [(1, 64, 28, 28), (64, 64, 3, 3)], (1,), True),
    "map": task_of("Relu", {}, [(1, 64, 28, 28)]),
    "rows": task_of("Softmax", {}, [(64, 512)]),
}


@pytest.mark.parametrize("name", list_targets())
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.sweep(6)
def test_two_families_for_one_computation_have_one_price(
    task: Task, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derivation, "_RULES", dict(derivation._RULES))
    modelc.register_rule(Rule("as it is", lambda task: task, lambda task, target: [{}]))
    target = load_target(name)
    own, proposed = families(task, target, Policy())
    prices = [ranked([family], target)[0].seconds for family in (own, proposed)]
    assert prices[0] > 0 and prices[0] == pytest.approx(prices[1])


def test_families_of_cpus_have_coefficients_of_their_own() -> None:
    family = family_of("x86-64-v3")
    assert load_target("x86-64-v3").cost == family.cost != CostParameters() and not priced_as_another("x86-64-v3")
    assert family_of("cortex-a76").cost == CostParameters()
    (sentence,) = priced_as_another("cortex-a76")
    assert sentence.startswith("no schedules were measured on cortex-a76: ")


def test_a_target_says_what_is_not_as_in_its_family() -> None:
    target = load_target("x86-64-v3")
    assert "cost" not in target.to_yaml()
    other = replace(target, cost=replace(target.cost, load_cycles=0.3))
    assert "load_cycles: 0.3" in other.to_yaml() and parse_target(other.to_yaml(), "other").cost == other.cost


def test_winograds_kernel_is_read_again_for_what_it_does_not_move_with() -> None:
    """Products of three-dimensional windows: a loop over depths outside the points' goes through the whole kernel for
    each depth, and one order of panels and rows has all depths inside."""
    task = task_of("Conv", {"pads": [1] * 6}, [(1, 256, 4, 14, 14), (256, 256, 3, 3, 3)], consts=(1,)).canonical()
    target = replace(load_target("x86-64-v3"), cores=2, cold_bytes=1 << 28)
    (sketch,) = (s for s in families(task, target, Policy())[0] if s.name == "F(7, 3) by points")
    values = dict(sketch.values(sketch.start()))
    loops = next(knob.values for knob in sketch.all_knobs() if knob.name == "multiplying")
    prices = {str(loop): _price(sketch, {**values, "multiplying": loop, "order": "panels"}) for loop in loops}
    assert {"d0", "e0"} <= prices.keys() and prices["d0"] > 1.5 * prices["e0"]
    assert _price(sketch, {**values, "order": "rows"}) > 1.1 * _price(sketch, {**values, "order": "panels"})


def _price(sketch: Sketch, values: Mapping[str, Value]) -> float:
    return float(sketch.estimate(sketch.point(values)[None, :], 1)[0])
