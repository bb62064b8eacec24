"""modelc database best: what finals took is measured once more, and what is still faster travels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_machines import MATMULS
from records_of_families import others_of, untuned_of
from three_ways import host_target

from modelc.database import Conditions, Database, Record, best, code_version
from modelc.database.whole import Whole
from modelc.errors import DatabaseError
from modelc.ir.candidate import Candidate
from modelc.measure import Measurement
from modelc.policy import Policy
from modelc.space.carry import named
from modelc.space.choose import Schedules
from modelc.target.records import Point, read_records

TASK = MATMULS[0]
COLD = 1 << 16


def filled(path: Path, taken: bool = True, tuned_seconds: float = 1e-3, relative: float = 0.9) -> Path:
    """A database in which a network took the second best point by the price for TASK."""
    schedules = Schedules(replace(host_target(), cold_bytes=COLD))
    points = [untuned_of(TASK, schedules), next(others_of(TASK, schedules))[0]]
    conditions = Conditions.of(TASK, host_target(), code_version(), 1, COLD, Policy())
    candidates, times = [candidate_of(point, schedules) for point in points], (1e-3, 1e-3 * relative)
    good = Measurement("ok", "", 1e-3, 0.001, 9, 1e-3, 0.1, 0.1, candidates[0].key)
    measured = [
        Record.of(TASK.hash, conditions, candidate, replace(good, seconds=times[k]), k == 0, point.sketch, point.knobs)
        for k, (candidate, point) in enumerate(zip(candidates, points, strict=True))
    ]
    took = {TASK.hash: candidates[1].key} if taken else {}
    with Database(path) as database:
        database.add(TASK, *measured)
        seconds = 2e-3, tuned_seconds
        database.settle(Whole("a" * 64, conditions.target, conditions.version, took, *seconds, time.time()))
    return path


def candidate_of(point: Point, schedules: Schedules) -> Candidate:
    placed = named(schedules.families(TASK)[0], point)
    return placed.sketch.candidate(placed.point)


class Stopwatch:
    """A Measurer for which each Candidate but the first takes `times` of the time of that, in turn."""

    times: tuple[float, ...] = ()

    def __init__(self, *_: object) -> None:
        self.orders = list[int]()

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def subject(self, task: object, cold_bytes: int) -> object:
        return task

    def submit(self, subject: object, candidate: Candidate, effort: object) -> int:
        self.orders.append(len(self.orders))
        return self.orders[-1]

    def results(self) -> Iterator[tuple[int, Measurement]]:
        for order in self.orders:
            seconds = 1e-3 * (1.0, *self.times)[order]
            yield order, Measurement("ok", seconds=seconds, noise=0.001, repeats=20, reference_seconds=1e-3)


@pytest.mark.parametrize(
    ("times", "relative"),
    [((0.9, 0.7, 0.8), 0.8), ((0.9, 0.9, 0.999), None), ((0.96, 0.96, 0.96), None), ((1.2, 1.1, 1.3), None)],
)
def test_what_is_surely_faster_by_a_twentieth_is_kept(
    times: tuple[float, ...], relative: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelc.database.family.Measurer", Stopwatch)
    monkeypatch.setattr(Stopwatch, "times", times)
    target = tmp_path / "target.yaml"
    target.write_text(host_target().to_yaml())
    written = best(tmp_path / "r.jsonl", filled(tmp_path / "d"), target)
    assert (written.records, written.candidates) == (relative is not None, 1)
    records = read_records(tmp_path / "r.jsonl")
    assert records.machine == host_target().machine and records.threads == 1
    assert [record.relative for record in records.records] == [relative] * (relative is not None)
    assert all(str(record.task) == str(TASK) and record.constants == "L2" for record in records.records)


def test_candidates_are_measured_here(tmp_path: Path) -> None:
    """With a real stopwatch: kept or not, as it is here; and what no network took, or did not gain by, is not."""
    target = tmp_path / "target.yaml"
    target.write_text(host_target().to_yaml())
    written = best(tmp_path / "r.jsonl", filled(tmp_path / "d"), target)
    assert written.candidates == 1 and len(read_records(tmp_path / "r.jsonl")) == written.records
    for number, facts in enumerate(({"taken": False}, {"tuned_seconds": 1.99e-3}, {"relative": 0.98})):
        database = filled(tmp_path / f"d{number}", **facts)  # type: ignore[arg-type]
        assert best(tmp_path / "r.jsonl", database, target).candidates == 0
    assert best(tmp_path / "r.jsonl", filled(tmp_path / "e"), target, threads=2).candidates == 0
    with pytest.raises(DatabaseError, match="there is no database"):
        best(tmp_path / "r.jsonl", tmp_path / "none", target)
