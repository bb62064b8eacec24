"""The learned cost: it corrects the analytic one where that is wrong, and is not used where it is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up_machines import TARGET, conditions, explored, measured, seconds_of, space_of
from three_ways import task_of

from modelc.database import Database
from modelc.measure.measurement import Measurement
from modelc.space.choose import chosen
from modelc.space.cost.terms import FEATURES, features
from modelc.tune.search import learned
from modelc.tune.search.evolve import Evolve
from modelc.tune.search.learned import (
    Example,
    LearnedCost,
    analytic,
    best_pairs,
    described,
    fit,
    held_out,
    judged,
    scales,
    throughputs,
)
from modelc.tune.search.population import Space
from modelc.tune.search.resume import Memory, record_of
from modelc.tune.search.tune import Subject

PRODUCT = task_of("MatMul", {}, [(48, 40), (40, 64)], consts=(1,)).canonical()
needs_xgboost = pytest.mark.skipif(not learned.available(), reason="XGBoost is not installed (modelc-compiler[tune])")


def drawn(count: int, wrong: float, seed: int = 0) -> list[Example]:
    """Schedules of three Tasks; estimates are `wrong` by what two of the numbers, and a knob that some have, say."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(count):
        row, knobs = rng.random(12), {"order rows": 1.0} if rng.random() < 0.5 else {"order panels": 1.0, "chunk": 2.0}
        estimated = float(np.exp(rng.random()))
        off = wrong * (2 * row[0] - row[3] + ("chunk" in knobs))
        found.append(Example(f"task {k % 3}", row, knobs, 1e-3 * estimated, 5e-3 * estimated * float(np.exp(off))))
    return found


def shares(scores: np.ndarray, examples: list[Example]) -> float:
    groups, wanted = learned.groups_of(examples), throughputs(examples, scales(examples))
    faster = (wanted[:, None] * (1 - learned.ALIKE) > wanted[None, :]) & (groups[:, None] == groups[None, :])
    assert faster.sum() > 100
    return learned.in_order(scores, faster) / int(faster.sum())


@needs_xgboost
def test_what_estimates_do_not_see_is_learned() -> None:
    examples, later = drawn(180, 1.0), drawn(60, 1.0, seed=5)
    model, known = fit(examples), scales(examples)
    assert shares(model.scores(examples), examples) > 0.95 > shares(analytic(examples, known), examples) + 0.1
    assert shares(model.scores(later), later) > shares(analytic(later, known), later) + 0.1
    assert shares(held_out(examples, 3), examples) > shares(analytic(examples, known), examples) + 0.05
    used, sentence = judged(examples)
    assert used and sentence.startswith("the learned cost is used: it orders ")


@needs_xgboost
def test_what_ranks_worse_than_the_estimates_is_not_used() -> None:
    used, sentence = judged(drawn(180, 0.0))
    assert not used and "the analytic one 100.0 %" in sentence
    assert judged(drawn(12, 1.0)) == (
        False,
        "the analytic cost is used: too little is measured to compare it with the learned one",
    )


@needs_xgboost
def test_equal_seeds_and_examples_give_equal_scores() -> None:
    examples, others = drawn(100, 1.0), drawn(20, 1.0, seed=9)
    assert (fit(examples, 4).scores(others) == fit(examples, 4).scores(others)).all()
    assert judged(examples, 4) == judged(examples, 4)
    assert len(fit(examples).scores([])) == 0


@needs_xgboost
def test_evolution_measures_what_the_learned_cost_finds_best() -> None:
    space, cost = space_of(PRODUCT), LearnedCost(seed=2)
    explorer = Evolve(space, 1, cost)
    first, _ = measured(space, explorer.propose(16)), cost.says
    assert cost.scores(space, [one for one, _ in first]) is None
    explorer.learn(first)
    for _ in range(4):
        explorer.learn(measured(space, explorer.propose(16)))
    assert len(cost.examples) == 64  # 80 are measured: the others wait until it is worth learning again
    assert cost.says.split(":")[0] in ("the learned cost is used", "the analytic cost is used")
    explorer.learn(measured(space, explorer.propose(16)))
    assert len(cost.examples) == 96
    cost.fitted = fit(cost.examples)
    found = explorer.propose(16)
    assert len({one.candidate.key for one in found}) == 16
    scores = cost.scores(space, found)
    assert scores is not None and np.isfinite(scores).all()
    assert min(seconds_of(space, one) for one in found) < np.median([m.seconds for _, m in first])


def test_without_xgboost_the_analytic_cost_is_used_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "available", lambda: False)
    space, cost = space_of(PRODUCT), LearnedCost()
    explorer = Evolve(space, 1, cost)
    for _ in range(5):
        explorer.learn(measured(space, explorer.propose(16)))
    assert cost.says == learned.MISSING and cost.fitted is None and "modelc-compiler[tune]" in cost.says
    assert len(explorer.propose(4)) == 4


def test_what_failed_teaches_nothing() -> None:
    space, cost = space_of(PRODUCT), LearnedCost()
    explorer = Evolve(space, 1, cost)
    explorer.learn([(one, Measurement("crashed", "it did")) for one in explorer.propose(4)])
    assert not cost.examples


@needs_xgboost
def test_it_begins_with_what_a_database_knows_of_other_tasks(tmp_path: Path) -> None:
    others = [task_of("MatMul", {}, [(m, 24), (24, 32)], consts=(1,)).canonical() for m in (24, 36, 40)]
    with Database(tmp_path / "records.sqlite") as database:
        memory = Memory(database, conditions)
        for task in (PRODUCT, *others):
            space = space_of(task)
            for k, (one, measurement) in enumerate(measured(space, explored(space, 24))):
                database.add(task, record_of(task, conditions(task), one.candidate, one, measurement, k == 0))
        subject = Subject(PRODUCT.hash, PRODUCT, chosen(PRODUCT, TARGET).candidate, Evolve(space_of(PRODUCT)))
        found = memory.elsewhere([subject], space_of)
    assert {one.task for one in found} == {task.hash for task in others}
    assert 60 < len(found) <= 72 and all(one.seconds > 0 and one.estimated > 0 for one in found)
    cost = LearnedCost()
    cost.begin(found)
    assert "% of held-out pairs with one of the best right" in cost.says
    again = LearnedCost()
    again.begin(found[:24])
    assert again.fitted is None and "little is measured" in again.says


def test_pairs_with_one_of_the_best_are_counted() -> None:
    many = 0.9 ** np.arange(20)
    assert best_pairs(many, many, np.zeros(20, np.int64)) == (85, 19 + 18 + 17 + 16 + 15)
    assert best_pairs(-many, many, np.zeros(20, np.int64))[0] == 0


def test_estimates_say_what_they_are_made_of() -> None:
    """Of every kind of products: shares of the seconds, none above all of them, and together about all of them."""
    window = task_of(
        "Conv", {"pads": (1, 1, 1, 1)}, [(1, 256, 28, 28), (256, 256, 3, 3)], consts=(1,), channels_last=True
    )
    plain = task_of("MatMul", {}, [(784, 256), (256, 256)], consts=(1,))
    kinds = set()
    for sketch in [sketch for task in (window, plain) for sketch in Space(task.canonical(), TARGET).sketches]:
        points = np.stack([sketch.start(), *sketch.random(8, np.random.default_rng(0))])
        for cores in (1, 4):
            shares = features(sketch.work(points, cores), TARGET.cost)
            assert (shares >= 0).all() and (shares <= 1 + 1e-9).all()
            assert (shares.sum(axis=1) > 0.9).all() and (shares[:, FEATURES.index("computing")] > 0).all()
        kinds.add(sketch.kind)
    assert kinds == {"contraction", "winograd", "strassen"}


def test_few_samples_leave_doubt() -> None:
    once, often = Measurement("ok", seconds=1.0, repeats=1), Measurement("ok", seconds=1.0, repeats=9, noise=0.01)
    assert once.doubt == 0.1 and often.doubt == 0.01


def test_knobs_have_names_that_tasks_share() -> None:
    space = space_of(PRODUCT)
    (one,) = explored(space, 1)
    (example,) = described(space, [one])
    values = one.sketch.recorded(one.point)
    assert example.numbers.shape == (len(FEATURES),) and example.knobs[f"kind {one.sketch.kind}"] == 1.0
    assert any(isinstance(v, str) for v in values.values()) and any(not isinstance(v, str) for v in values.values())
    for name, value in values.items():
        if isinstance(value, str):
            assert example.knobs[f"{name} {value}"] == 1.0
        else:
            assert example.knobs[name] == pytest.approx(np.log2(1 + value))


@needs_xgboost
def test_what_is_learned_orders_tasks_that_were_not_seen() -> None:
    examples, others = drawn(180, 1.0), [replace(one, task="another") for one in drawn(60, 1.0, seed=5)]
    scores = fit(examples).scores(others)
    assert scores.max() == 1.0 and shares(scores, others) > shares(analytic(others, {}), others) + 0.1
