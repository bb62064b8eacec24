"""The price on committed measurements (targets/cost): of every kind, what it would choose is no slower than it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measured_schedules import (
    MeasuredPoint,
    MeasuredTask,
    Measurements,
    by_kind,
    geometric_mean,
    priced,
    read_measurements,
)
from three_ways import task_of

from modelc.policy import Policy
from modelc.target import Target, load_target
from modelc.target.section import targets_folder

FILES = sorted((targets_folder() / "cost").glob("*.jsonl"))
RISE = 1.01  # times what is recorded, above which a price has become worse
MOST_STALE = 0.05  # of the points, that no Sketch has any more
LARGEST = 1 << 20  # bytes


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_the_price_would_choose_is_no_slower_than_recorded(file: Path) -> None:
    """Where a change of the price is meant, `scripts/cost.py check --record` records what it makes of these."""
    measurements = read_measurements(file)
    tasks = [priced(task, measurements.target, Policy(), check=False) for task in measurements.tasks]
    regrets = [task.regret(task.estimates(lambda sketch, points: sketch.estimate(points, 1))) for task in tasks]
    kinds = {kind: geometric_mean(own) for kind, own in by_kind(tasks, regrets).items()}
    kinds["all"] = geometric_mean(regrets)
    recorded = json.loads(file.with_suffix(".regret.json").read_text())
    assert kinds.keys() == recorded.keys() and len(tasks) >= 100
    worse = {kind: (own, recorded[kind]) for kind, own in kinds.items() if own > RISE * recorded[kind]}
    assert not worse
    points = sum(len(task.points) for task in measurements.tasks)
    assert sum(len(task.points) for task in tasks) >= (1 - MOST_STALE) * points > 2000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_candidates_are_those_that_were_measured(file: Path) -> None:
    measurements = read_measurements(file)
    checked = [priced(task, measurements.target, Policy()) for task in measurements.tasks[::20]]
    points = sum(len(task.points) for task in measurements.tasks[::20])
    assert sum(len(task.points) for task in checked) >= (1 - 2 * MOST_STALE) * points > 0
    assert file.stat().st_size <= LARGEST


def measured(target: Target) -> Measurements:
    points = tuple(MeasuredPoint(0, {}, "0" * 8, rounds) for rounds in ((2.0, 9.0, 3.0), (4.0,)))
    task = MeasuredTask("net:product", task_of("MatMul", {}, [(64, 64), (64, 64)], (1,)), 1 << 20, points)
    return Measurements("a machine", "2026-01-01", "1.0", target, (task,))


def test_measurements_are_read_as_they_were_written(tmp_path: Path) -> None:
    before = measured(load_target("cortex-a76"))
    before.write(tmp_path / "m.jsonl")
    after = read_measurements(tmp_path / "m.jsonl")
    assert after == before and after.tasks[0].microseconds.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("{}", 1), ("[", 1), ('{"machine": 1}', 1), ("HEAD\n{}", 2), ('HEAD\n{"name": "x", "points": [[1]]}', 2)],
)
def test_files_that_are_no_measurements_are_refused(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "m.jsonl"
    measured(load_target("cortex-a76")).write(path)
    path.write_text(text.replace("HEAD", path.read_text().splitlines()[0]))
    with pytest.raises(ValueError, match=f"line {line}: expected measurements"):
        read_measurements(path)
