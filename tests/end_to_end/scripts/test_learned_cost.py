"""scripts/learned_cost.py: how well the learned cost ranks the Records of a database."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import learned_cost
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_machines import TARGET, conditions, explored, measured, space_of
from ranking import as_measured, pairs_of, pooled_pairs, ranked
from three_ways import task_of

from modelc.database import Database
from modelc.tune.search import learned
from modelc.tune.search.resume import record_of


@pytest.mark.skipif(not learned.available(), reason="XGBoost is not installed (modelc-compiler[tune])")
def test_the_script_ranks_the_records_of_a_database(tmp_path: Path, in_process: Callable[..., Any]) -> None:
    """The second database measured most of the same Candidates again, each a little otherwise."""
    tasks = [task_of("MatMul", {}, [(m, 24), (24, 32)], consts=(1,)).canonical() for m in (24, 36)]
    rng = np.random.default_rng(0)
    for name, count, error in (("first", 40, 0.0), ("second", 30, 0.01)):
        with Database(tmp_path / name) as database:
            for task in tasks:
                space = space_of(task)
                for k, (one, m) in enumerate(measured(space, explored(space, 40))[:count]):
                    timed = replace(m, seconds=m.seconds * (1 + error * rng.random()), noise=0.01, repeats=5)
                    database.add(task, record_of(task, conditions(task), one.candidate, one, timed, k == 0))
    rows = tmp_path / "rows.json"
    options = {"database": tmp_path / "first", "again": tmp_path / "second", "json": rows, "version": "v1"}
    options |= {"target": TARGET.name, "folds": 3}
    text = in_process(learned_cost.main, *(x for n, v in options.items() for x in (f"--{n}", v))).stdout
    found = json.loads(rows.read_text())
    records, again = found["learned cost"]["records"], found["measured again"]["records"]
    assert f"{records} records of 2 Tasks" in text and f"{again} Candidates that were measured again" in text
    assert 50 < again <= 60 < 70 < records <= 80
    assert found["analytic cost"]["compared"] == found["learned cost"]["compared"] > 400
    assert found["measured again"]["sure"] == 1.0
    assert 0.9 < found["at most"]["pairs"] < found["at most"]["sure"] <= 1.0
    assert found["measured again"]["pairs"] > found["learned cost"]["pairs"] > 0.5


def test_rankings() -> None:
    rng = np.random.default_rng(0)
    truth, groups = rng.uniform(0.1, 1.0, 200), np.arange(200) % 2
    best, worst = ranked(truth, truth, groups), ranked(-truth, truth, groups)
    assert (best.pairs, best.recall, best.r2, best.rmse) == (1.0, 1.0, 1.0, 0.0) and best.quarter == pytest.approx(1.0)
    assert (worst.pairs, worst.recall) == (0.0, 0.0) and worst.quarter == pytest.approx(-1.0)
    none = ranked(np.ones(200), truth, groups)
    assert none.pairs == none.pooled == 0.5 and none.quarter == 0.0 and none.compared > 100
    assert ranked(np.zeros(0), np.zeros(0), np.zeros(0, np.int64)).pairs == 0.0


def test_pairs_that_measurements_tell_apart() -> None:
    """Times of 1.00, 1.01, 1.04, 1.15 and 1.50: what is near is not compared, nor what is within the noise."""
    times, groups = np.array([1.0, 1.01, 1.04, 1.15, 1.5]), np.zeros(5, np.int64)
    truth, noise = 1 / times, np.array([0.01, 0.01, 0.01, 0.01, 0.3])
    wrong = truth.copy()
    wrong[[0, 2]] = wrong[[2, 0]]
    assert pairs_of(truth, truth, groups) == (9, 9) and pairs_of(wrong, truth, groups) == (7, 9)
    assert pairs_of(truth, truth, groups, noise) == (5, 5)  # none with 1.50
    assert pairs_of(truth, truth, groups, least=0.1) == (6, 6)
    one = ranked(wrong, truth, groups, noise)
    assert (one.compared, one.pairs, one.told, one.apart[-1]) == (9, 7 / 9, 5 / 9, 1.0)
    every, sure = as_measured(truth, noise, groups)
    assert 0.8 < every < sure < 1.0
    assert as_measured(truth, np.zeros(5), groups) == (1.0, 1.0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_pairs_of_all_tasks_are_those_that_are_counted_one_by_one(rows: list[tuple[int, int]]) -> None:
    scores, truth = (np.array([float(row[k]) for row in rows]) for k in (0, 1))
    pairs = [(s - t, x - y) for k, (s, x) in enumerate(rows) for t, y in rows[:k] if x != y]
    right = [1.0 if s * x > 0 else 0.5 * (s == 0) for s, x in pairs]
    assert pooled_pairs(scores, truth) == pytest.approx(sum(right) / len(right) if right else 0.0)
