"""What a database knows already: explorers go on from it, and what is measured is added to it as it comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from modelc.database import Conditions, Database, Record
from modelc.database.compare import apart, comparable, untuned_key
from modelc.errors import MISFIT
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.measurement import Measurement
from modelc.tune.search.learned import Example, described
from modelc.tune.search.population import Individual, Space
from modelc.tune.search.scheduler import Scheduler
from modelc.tune.search.tune import BATCH, Subject

ELSEWHERE, EACH = 256, 24  # records of other Tasks that a cost is learned from at first, of one Task at most
COMPARED = 8  # records of a Task, below which they say little about which is faster
AGAIN = 2  # Candidates of a Task that are measured again, because nothing compares them with the untuned one


@dataclass
class _Known:
    """Of one Subject: by their keys the Candidates that there are records of, each with the point that it is; those
    that its explorer was told of; and how many records that were."""

    candidates: dict[str, tuple[Candidate, Individual | None]] = field(default_factory=dict)
    learnt: set[str] = field(default_factory=set)
    count: int = 0


@dataclass
class Memory:
    """A database as tuning uses it: `conditions` says which records of a Task count, among so many bytes of
    parameters."""

    database: Database
    conditions: Callable[[Task, int], Conditions]
    known: defaultdict[str, _Known] = field(default_factory=lambda: defaultdict(_Known))  # by the Subject's key

    def add(
        self, subject: Subject, candidate: Candidate, individual: Individual | None, measurement: Measurement
    ) -> None:
        """Writes one measurement down, before anything else is done with it."""
        task, untuned = subject.task, candidate is subject.untuned
        record = record_of(task, self.conditions(task, subject.cold_bytes), candidate, individual, measurement, untuned)
        known = self.known[subject.key]
        known.count += self.database.add(task, record)
        known.candidates[record.key] = candidate, individual

    def refresh(self, subject: Subject) -> None:
        """Tells a Subject what other tuners have added since."""
        conditions = self.conditions(subject.task, subject.cold_bytes)
        if self.database.count(subject.task.hash, conditions) != self.known[subject.key].count:
            self._recalled(subject, self._records(subject))

    def recall(self, subjects: Sequence[Subject], scheduler: Scheduler, done: Collection[str] = ()) -> int:
        """Lets everything begin where the records of `subjects` end, but for the keys `done`; returns how many records
        that are."""
        count = 0
        for number, subject in enumerate(subjects):
            if subject.key in done:
                continue
            records = self._records(subject)
            for seconds in self._recalled(subject, records):
                scheduler.took(number, seconds)
            count += len(records)
        return count

    def elsewhere(self, subjects: Sequence[Subject], space_of: Callable[[Task], Space]) -> list[Example]:
        """What is known of other Tasks under the same conditions, as far as it can be compared."""
        own, examples = {subject.task.hash for subject in subjects}, list[Example]()
        cold = max((subject.cold_bytes for subject in subjects), default=0)
        for key in self.database.tasks():
            if key in own or len(examples) >= ELSEWHERE:
                continue
            task = self.database.task(key)
            records = [] if task is None else list(self.database.records(key, self.conditions(task, cold)))
            if task is not None and len(records) >= COMPARED:
                examples += examples_of(space_of(task), records, EACH)
        return examples[:ELSEWHERE]

    def _records(self, subject: Subject) -> list[Record]:
        """The records of a Subject's Task whose Candidates it knows then."""
        conditions = self.conditions(subject.task, subject.cold_bytes)
        known, candidates = self.known[subject.key], self.known[subject.key].candidates
        known.count = self.database.count(subject.task.hash, conditions)  # before: others may add more
        records = list(self.database.records(subject.task.hash, conditions))
        for record in records:
            if record.key not in candidates:
                point = individual_of(subject.explorer.space, record)
                candidate = self.database.candidate(record) if point is None else point.candidate
                if candidate is not None:
                    candidates[record.key] = candidate, point
                    subject.explorer.skip(candidate)
        return [record for record in records if record.key in candidates]

    def _recalled(self, subject: Subject, records: Sequence[Record]) -> list[float]:
        """Tells a Subject what is known of its Task; the best seconds after each round of that."""
        candidates, learnt = self.known[subject.key].candidates, self.known[subject.key].learnt
        own = {candidate.key for candidate, _ in subject.measured}
        scaled = sorted(comparable(records, subject.untuned.key).values(), key=lambda pair: pair[0].measured_at)
        others = [(record.key, m) for record, m in scaled if record.untuned or record.key not in own]
        subject.earlier = [(candidates[key][0], measurement) for key, measurement in others]
        new = [(candidates[key][1], measurement) for key, measurement in others if key not in learnt | own]
        subject.explorer.learn([(point, measurement) for point, measurement in new if point is not None])
        learnt |= {key for key, _ in others}
        apart_keys = {record.key: None for record in apart(records, subject.untuned.key)}
        better = [key for key in apart_keys if key not in {record.key for record, _ in scaled}]
        subject.again = [candidates[key] for key in better[:AGAIN]]
        seconds = [measurement.seconds for _, measurement in scaled]
        return [min(seconds[: at + BATCH]) for at in range(0, len(seconds), BATCH)]


def examples_of(space: Space, records: Sequence[Record], most: int | None = None) -> list[Example]:
    """Records of one Task under equal conditions as a cost is learned from them: the good ones that lie on points of
    Sketches and were measured by turns with the untuned Candidate; at most so many, evenly over their times; none where
    there are fewer than COMPARED."""
    anchor = untuned_key(records) or next((record.key for record in reversed(records) if record.measurement.ok), "")
    scaled = list(comparable(records, anchor).values())
    scaled.sort(key=lambda pair: pair[1].relative)
    taken = [(individual_of(space, r), m) for r, m in scaled[:: -(-len(scaled) // most) if most else 1]]
    points = [(individual, m) for individual, m in taken if individual is not None]
    examples = described(space, [individual for individual, _ in points])
    pairs = zip(examples, points, strict=True)
    result = [replace(example, seconds=m.relative, noise=m.doubt) for example, (_, m) in pairs]
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
    point = ("", {}) if individual is None else (individual.sketch.name, individual.knobs)
    return Record.of(task.hash, conditions, candidate, measurement, untuned, *point)


def individual_of(space: Space, record: Record) -> Individual | None:
    """The point of `space` that a record is of; None where its Candidate is no point there."""
    for number, sketch in enumerate(space.sketches):
        if sketch.name == record.sketch:
            try:
                point = sketch.point(record.knobs)
            except MISFIT:
                continue
            if sketch.legal(point[None, :])[0]:
                individual = space.individual(space.rows(number, point[None, :])[0])
                if individual.candidate.key == record.key:
                    return individual
    return None
