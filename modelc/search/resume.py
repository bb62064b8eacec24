"""What a database knows already: explorers go on from it, and what is measured is added to it as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from modelc.database import Conditions, Database, Record
from modelc.database.compare import apart, comparable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.measurement import Measurement
from modelc.search.learned import Example, described
from modelc.search.population import Individual, Space
from modelc.search.scheduler import Scheduler
from modelc.search.tune import BATCH, Subject

ELSEWHERE, EACH = 256, 24  # records of other Tasks that a cost is learned from at first, of one Task at most
COMPARED = 8  # records of a Task, below which they say little about which is faster
AGAIN = 2  # Candidates of a Task that are measured again, because nothing compares them with the untuned one


@dataclass(frozen=True)
class Memory:
    """A database as tuning uses it: `conditions` says which records of a Task count."""

    database: Database
    conditions: Callable[[Task], Conditions]

    def add(
        self, subject: Subject, candidate: Candidate, individual: Individual | None, measurement: Measurement
    ) -> None:
        """Writes one measurement down, before anything else is done with it."""
        task, untuned = subject.task, candidate is subject.untuned
        record = record_of(task, self.conditions(task), candidate, individual, measurement, untuned)
        self.database.add(task, record)

    def recall(self, subjects: Sequence[Subject], scheduler: Scheduler) -> int:
        """Lets everything begin where the records of `subjects` end; returns how many records that are."""
        count = 0
        for number, subject in enumerate(subjects):
            found = list(self.database.records(subject.key, self.conditions(subject.task)))
            for seconds in self._recalled(subject, found):
                scheduler.took(number, seconds)
            count += len(found)
        return count

    def elsewhere(self, subjects: Sequence[Subject], space_of: Callable[[Task], Space]) -> list[Example]:
        """What is known of other Tasks under the same conditions, as far as it can be compared."""
        own, found = {subject.key for subject in subjects}, list[Example]()
        for key in self.database.tasks():
            if key in own or len(found) >= ELSEWHERE:
                continue
            task = self.database.task(key)
            records = list(self.database.records(key, self.conditions(task)))
            if len(records) >= COMPARED:
                found += examples_of(space_of(task), records, EACH)
        return found[:ELSEWHERE]

    def _recalled(self, subject: Subject, found: Sequence[Record]) -> list[float]:
        """Tells a Subject what is known of its Task; the best seconds after each round of that."""
        space = subject.explorer.space
        individuals = {record.key: individual_of(space, record) for record in found}
        candidates = {
            record.key: self.database.candidate(record) if point is None else point.candidate
            for record in found
            for point in (individuals[record.key],)
        }
        for candidate in candidates.values():
            subject.explorer.skip(candidate)
        scaled = sorted(comparable(found, subject.untuned.key).values(), key=lambda one: one[0].measured_at)
        subject.earlier = [(candidates[record.key], measurement) for record, measurement in scaled]
        points = [(individuals[record.key], measurement) for record, measurement in scaled]
        subject.explorer.learn([(one, measurement) for one, measurement in points if one is not None])
        better = [one.key for one in apart(found, subject.untuned.key) if one.key not in {r.key for r, _ in scaled}]
        subject.again = [(candidates[key], individuals[key]) for key in better[:AGAIN]]
        seconds = [measurement.seconds for _, measurement in scaled]
        return [min(seconds[: at + BATCH]) for at in range(0, len(seconds), BATCH)]


def examples_of(space: Space, found: Sequence[Record], most: int | None = None) -> list[Example]:
    """Records of one Task under equal conditions as a cost is learned from them: the good ones that lie on points of
    Sketches and were measured by turns with the untuned Candidate; at most so many, evenly over their times; none where
    there are fewer than COMPARED."""
    anchors = [one.key for one in found if one.untuned] or [one.key for one in found if one.measurement.ok]
    scaled = list(comparable(found, anchors[-1]).values()) if anchors else []
    scaled.sort(key=lambda one: one[1].relative)
    taken = [(individual_of(space, r), m.relative) for r, m in scaled[:: -(-len(scaled) // most) if most else 1]]
    points = [(one, seconds) for one, seconds in taken if one is not None]
    known = described(space, [one for one, _ in points])
    pairs = zip(known, points, strict=True)
    result = [replace(one, seconds=seconds) for one, (_, seconds) in pairs if one is not None]
    return result if len(result) >= COMPARED else []


def record_of(
    task: Task,
    conditions: Conditions,
    candidate: Candidate,
    individual: Individual | None,
    measurement: Measurement,
    untuned: bool,
) -> Record:
    """A measurement as a database keeps it; `individual` is the Candidate's point, if it is one."""
    if individual is None:
        return Record.of(task.hash, conditions, candidate, measurement, untuned)
    values = individual.sketch.values(individual.point)
    knobs = {name: value if isinstance(value, str) else int(value) for name, value in values.items()}
    return Record.of(task.hash, conditions, candidate, measurement, untuned, individual.sketch.name, knobs)


def individual_of(space: Space, record: Record) -> Individual | None:
    """The point of `space` that a record is of; None where its Candidate is no point there."""
    for sketch in space.sketches:
        if sketch.name == record.sketch:
            try:
                point = sketch.point(record.knobs)
            except (KeyError, ValueError):
                continue
            if sketch.legal(point[None, :])[0] and (candidate := sketch.candidate(point)).key == record.key:
                return Individual(sketch, point, candidate)
    return None
