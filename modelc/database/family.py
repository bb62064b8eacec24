"""The records of a database that travel: of every Task the Candidate that finals took for a network which became faster
by them, measured once more by turns with the untuned one, as records of this machine's family (target/records.py)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from modelc.database.compare import comparable
from modelc.database.record import DEEP, NO_CONSTANTS, Conditions, Record
from modelc.database.store import Database
from modelc.database.version import code_version
from modelc.ir.block import Task
from modelc.measure import Effort, Measurer, Setting
from modelc.policy import Policy
from modelc.space.carry import named, offer_of
from modelc.space.choose import Schedules
from modelc.target import Target
from modelc.target.records import MOST_BYTES, FamilyRecord, FamilyRecords, Point
from modelc.verb import Progress

LEAST_GAIN = 0.05  # of the untuned Candidate's time, in the median of ROUNDS, and more than the noise in each
WORTH = 0.5  # of that, which a Candidate has gained before, to be measured once more
ROUNDS = 3  # of a Candidate
LONG = Effort(least=20, most=100, noise=0.003, seconds=0.3, slower=1e9, near=1e9)


@dataclass(frozen=True)
class _Pair:
    """A Candidate of a Task that finals took, and the untuned one under the same conditions."""

    task: Task
    faster: Record
    untuned: Record


def best_records(
    database: Database, target: Target, threads: int, progress: Progress | None
) -> tuple[FamilyRecords, int, str]:
    """What of this version's records for `target` on so many `threads` is worth to travel; how many Candidates were
    looked at; and a sentence about what had no room. Raises MeasureError where nothing can be measured."""
    version = code_version(target)
    pairs = list(_pairs(database, target, version, threads))
    faster = list[FamilyRecord]()
    if pairs:
        with Measurer(target, Setting(threads, flush=True)) as measurer:
            for number, pair in enumerate(pairs, 1):
                if progress is not None:
                    progress("measure", f"{number} of {len(pairs)} candidates, {len(faster)} kept")
                faster += filter(None, [_measured(pair, target, threads, measurer)])
    faster.sort(key=lambda record: record.relative)
    about = f"by modelc {version}, {time.strftime('%Y-%m-%d')}"
    records, left_out = FamilyRecords("", "", target.machine, threads, about, tuple(faster)), 0
    while sum(len(line) + 1 for line in records.lines()) > MOST_BYTES:
        records, left_out = replace(records, records=records.records[:-1]), left_out + 1
    note = f"the {left_out} that gain least are left out: a file has at most {MOST_BYTES} bytes" if left_out else ""
    return records, len(pairs), note


def _pairs(database: Database, target: Target, version: str, threads: int) -> Iterator[_Pair]:
    """The Candidates that networks took, each once, but for those that gained little when they were measured."""
    wholes = [whole for whole in database.wholes(target=target.key, version=version) if whole.gained]
    for key, candidate in sorted({pair for whole in wholes for pair in whole.taken.items()}):
        task, under = database.task(key), dict[Conditions, list[Record]]()
        for record in database.records(key, target=target.key, version=version):
            if record.conditions.threads == threads and record.sketch:
                under.setdefault(record.conditions, []).append(record)
        for records in under.values():
            faster = next((record for record in records if record.key == candidate), None)
            untuned = next((record for record in reversed(records) if record.untuned), None)
            if task is not None and faster is not None and untuned is not None:
                times = {key: m.relative for key, (_, m) in comparable(records, untuned.key).items()}
                if times.get(faster.key, 1.0) <= (1 - WORTH * LEAST_GAIN) * times.get(untuned.key, 1.0):
                    yield _Pair(task, faster, untuned)


def _measured(pair: _Pair, target: Target, threads: int, measurer: Measurer) -> FamilyRecord | None:
    """The record of a pair, if it is faster by LEAST_GAIN and more than the noise, and compile would take it for its
    own Task."""
    place = pair.faster.conditions.constants
    schedules = Schedules(replace(target, cold_bytes=_bytes_in(target, place)), Policy())
    points = [Point(record.sketch, dict(record.knobs)) for record in (pair.untuned, pair.faster)]
    try:
        placed = [named(schedules.families(pair.task)[0], point) for point in points]
    except ValueError:
        return None
    candidates = [placed_point.sketch.candidate(placed_point.point) for placed_point in placed]
    if [candidate.key for candidate in candidates] != [pair.untuned.key, pair.faster.key]:
        return None
    subject = measurer.subject(pair.task, _bytes_in(target, place))
    orders = [measurer.submit(subject, candidate, LONG) for candidate in (*candidates, *candidates[1:] * (ROUNDS - 1))]
    measurements = dict(measurer.results())
    untuned, *rounds = (measurements[order] for order in orders)
    if not untuned.ok or not all(measurement.faster(untuned) for measurement in rounds):
        return None
    relative = median(measurement.relative for measurement in rounds)
    record = FamilyRecord(pair.task, place, points[0], points[1], round(relative, 4))
    if relative > 1 - LEAST_GAIN or offer_of(record, pair.task, schedules, threads) is None:
        return None
    return record


def _bytes_in(target: Target, place: str) -> int:
    """Of the parameters of a network that lie in a cache of that name, or in memory."""
    sizes = {cache.name: cache.bytes for cache in target.caches}
    return {NO_CONSTANTS: 0, DEEP: 2 * target.caches[-1].bytes, **sizes}.get(place, 0)
