"""What is in a database, Task by Task, for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from modelc.database.compare import comparable, untuned_key
from modelc.database.record import Conditions, Record
from modelc.database.store import Database


@dataclass(frozen=True)
class Line:
    """The records of one Task under equal conditions. Seconds are 0 where nothing was measured by turns with the
    untuned Candidate, or that was not reached."""

    task: str
    outputs: str
    conditions: Conditions
    records: int
    failures: int
    untuned_seconds: float
    best_seconds: float


def lines(database: Database, target: str | None = None) -> Iterator[Line]:
    """One for each Task and conditions, of a `target`."""
    for key in database.tasks():
        groups: dict[Conditions, list[Record]] = {}
        for record in database.records(key, target=target):
            groups.setdefault(record.conditions, []).append(record)
        if not groups:
            continue
        task = database.task(key)
        if task is None:
            continue
        outputs = ", ".join(str(task.buffer(name)).partition(": ")[2] for name in task.outputs)
        for conditions, records in groups.items():
            untuned = untuned_key(records)
            scaled = comparable(records, untuned)
            times = [measurement.seconds for _, measurement in scaled.values()]
            first = scaled[untuned][1].seconds if scaled else 0.0
            failures = sum(not record.measurement.ok for record in records)
            yield Line(key, outputs, conditions, len(records), failures, first, min(times, default=0.0))
