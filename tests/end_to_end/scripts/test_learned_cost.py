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
from made_up_machines import TARGET, conditions, explored, measured, space_of
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
