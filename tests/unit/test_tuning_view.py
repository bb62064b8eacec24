"""What a terminal shows while a model is tuned."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from made_up_machines import MATMULS, Machine, subjects_of
from rich.console import Console

from modelc.cli.tuning_view import SHOWN, clock, head, viewing
from modelc.tune.search.objectives import Weights, total
from modelc.tune.search.scheduler import Scheduler, Work
from modelc.tune.search.standing import ModelStanding, Standing, TaskStanding, Watch
from modelc.tune.search.tune import Budget, Search


def test_standings_say_what_was_found() -> None:
    subjects, budget = subjects_of(MATMULS), Budget(trials=48)
    machine = Machine([s.untuned for s in subjects])
    scheduler = Scheduler([Work(1e-3), Work(2e-3)], total(Weights.of(np.array([[3.0, 1.0]]))))
    subjects = [replace(s, name=f"matmul_{k}") for k, s in enumerate(subjects)]
    watch, seen = Watch(budget, ["m"], [1.5]), list[Standing]()
    watch.begin(subjects)
    Search(
        subjects,
        scheduler,
        machine,
        budget,
        None,
        lambda m, s: seen.append(watch.after(m, s, subjects, scheduler)),
        batch=12,
    ).run()
    assert [one.trials for one in seen] == [12, 24, 36, 48] and [one.trials_left for one in seen] == [36, 24, 12, 0]
    last = seen[-1]
    assert last.untuned_seconds == pytest.approx(4e-3) and last.predicted_seconds < 3.6e-3 and last.seconds_left is None
    (whole,) = last.each
    assert whole.ort_ratio == pytest.approx(1.5 * 4e-3 / last.predicted_seconds)
    assert last.to_json()["each"][0]["ort_ratio"] == whole.ort_ratio
    assert sum(one.share for one in last.tasks) == pytest.approx(1) and last.tasks[0].name == "matmul_0"
    assert {one.task: one.gain for one in last.tasks} == {s.key: s.gain for s in subjects}
    assert sum(one.measured for one in last.tasks) == 48
    assert all(one.improved is not None and one.improved <= last.seconds + 1e-3 for one in last.tasks)
    assert (
        last.to_json()["name"] == next(one.name for one in last.tasks if one.task == last.task)
        and "tasks" not in last.to_json()
    )


def test_the_view_shows_time_rate_and_tasks() -> None:
    def one(number: int) -> TaskStanding:
        improved = 30.0 if number == 0 else None
        return TaskStanding(
            f"{number:016x}", f"conv\x1b_{number}", ("a", "b"), 0.05, 12.5e-6, 1.25, 40, improved, 0.876
        )

    every = tuple(map(one, range(SHOWN + 3)))
    each = (ModelStanding("a", 1.5e-3, 1.8e-3), ModelStanding("b\x1b", 0.5e-3, 0.7e-3, 2.8))
    now = Standing(every[0].task, 100.0, 200.0, 840, None, 8.4, 2e-3, 2.5e-3, each, every)
    rest = "840 measured, 8.4/s; 2.000 ms predicted, 1.250 times as fast as untuned"
    assert head(now) == f"1:40, 3:20 left; {rest}" and head(now, 300.0) == f"6:40, 0:00 left; {rest}"
    assert head(replace(now, each=each[1:])).endswith(f"{rest}, 2.800 times as fast as ONNX Runtime")
    assert head(replace(now, seconds_left=None, trials_left=60)) == f"1:40, 60 measurements left; {rest}"
    shown = io.StringIO()
    with viewing(Console(file=shown, force_terminal=True, width=120, highlight=False)) as view:
        view.stage = "import m.onnx"
        view.stands(now)
        view.stage = "tune 840 measured"
    text = shown.getvalue()
    for wanted in (
        rest,
        "conv\\x1b_0",
        "1:10 ago",
        "12.50",
        "3 more",
        "15.0 %",
        "tune 840 measured",
        "b\\x1b: 0.500 ms predicted, 1.400 times",
    ):
        assert wanted in text, text
    assert f"conv\\x1b_{SHOWN}" not in text


def test_nothing_is_shown_where_there_is_no_terminal() -> None:
    shown = io.StringIO()
    with viewing(Console(file=shown)) as view:
        view.stage = "import"
    assert shown.getvalue() == "" and clock(3725) == "62:05"
