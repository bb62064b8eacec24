"""Tuning: rounds of one Task's batch of Candidates, measured within a budget, and what they found.

The first batch of every Task begins with its untuned Candidate: the others are measured by turns with it, so that all
times are relative to it and the machine's drift falls out. It stays where nothing is faster by more than the noise.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol

from modelc.errors import ConfigError, DatabaseError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.measurement import Measurement
from modelc.tune.search.evolve import Explorer
from modelc.tune.search.population import Individual
from modelc.tune.search.scheduler import Scheduler, Work

BATCH = 16
LEAST_TAKEN = 1e-3  # seconds that a measurement takes at the least
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
MOST_SECONDS, MOST_TRIALS = 30 * 86400.0, 10_000_000
_BUDGET = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(s|m|h)?")


@dataclass(frozen=True)
class Budget:
    """What tuning may take: seconds, or measurements."""

    seconds: float = math.inf
    trials: float = math.inf

    def part(self, share: float) -> Budget:
        """A share of it; of measurements, one at least."""
        return Budget(self.seconds * share, max(1.0, self.trials * share // 1))

    @staticmethod
    def parse(text: str) -> Budget:
        """`90s`, `5m`, `1h` of time, or `2000` measurements. Raises ConfigError."""
        match = _BUDGET.fullmatch(text.strip())
        if match is not None:
            number, unit = float(match[1]), match[2]
            if unit and 0 < number * UNITS[unit] <= MOST_SECONDS:
                return Budget(seconds=number * UNITS[unit])
            if not unit and number == int(number) and 0 < number <= MOST_TRIALS:
                return Budget(trials=number)
        raise ConfigError(
            f"the budget is {text[:80]!r}; expected a time above 0 such as 90s, 5m or 1h, at most {MOST_SECONDS:.0f}s, "
            f"or a whole number of measurements from 1 to {MOST_TRIALS}, such as 2000"
        )


@dataclass
class Subject:
    """One Task under tuning: its key among others, itself, the Candidate that it has without tuning, what explores it.
    It is measured as among `cold_bytes` of parameters; `name` is for people; `work` is known of it beforehand.

    `earlier` is what other sessions measured, by turns with the untuned Candidate or on its scale; `again` what they
    found fastest beside something else, which is worth another measurement."""

    key: str
    task: Task
    untuned: Candidate
    explorer: Explorer
    cold_bytes: int = 0
    name: str = ""
    work: Work = field(default_factory=Work)
    measured: list[tuple[Candidate, Measurement]] = field(default_factory=list)
    earlier: Sequence[tuple[Candidate, Measurement]] = ()
    again: Sequence[tuple[Candidate, Individual | None]] = ()

    @property
    def baseline(self) -> Measurement | None:
        """What is known of the untuned Candidate; None before it is measured."""
        own = next((m for c, m in self.measured if c is self.untuned), None)
        before = next((m for c, m in self.earlier if c.key == self.untuned.key), None)
        return own if own is not None and (own.ok or before is None) else before

    @property
    def compared(self) -> list[tuple[Candidate, Measurement]]:
        """The Candidates that work, on the scale of what is known of the untuned one."""
        baseline = self.baseline
        if baseline is None or not baseline.ok:
            comparable = self.measured
        elif any(m is baseline for _, m in self.earlier):  # in this session it is not measured, or failed
            comparable = list(self.earlier)
        else:
            unit, reference = baseline.seconds, baseline.reference_seconds
            scaled = ((c, replace(m, seconds=m.relative * unit, reference_seconds=reference)) for c, m in self.earlier)
            comparable = [*self.measured, *scaled]
        return [pair for pair in comparable if pair[1].ok]

    @property
    def fastest(self) -> tuple[Candidate, Measurement] | None:
        """The fastest of them."""
        return min(self.compared, key=lambda pair: pair[1].relative, default=None)

    @property
    def best(self) -> Candidate:
        """The fastest Candidate, if it is known to be faster than the untuned one by more than the noise, or if that
        one fails; else that."""
        fastest, baseline = self.fastest, self.baseline
        if fastest is None or baseline is None or not fastest[1].faster(baseline):
            return self.untuned
        return fastest[0]

    @property
    def gain(self) -> float:
        """The untuned Candidate's time over the best one's; 1 where the former is not known."""
        fastest, baseline = self.fastest, self.baseline
        if fastest is None or baseline is None or not baseline.ok or self.best is self.untuned:
            return 1.0
        return baseline.relative / fastest[1].relative

    @property
    def seconds(self) -> float:
        """Seconds of the fastest Candidate, at the speed that the machine had at first; 0 where none is known."""
        first = next((m.reference_seconds for _, m in (*self.earlier, *self.measured) if m.ok), 0.0)
        return 0.0 if self.fastest is None else self.fastest[1].relative * first

    @property
    def takes(self) -> float:
        """Seconds that building and running one of its Candidates takes, on average; a second where none is known."""
        taken = [m.build_seconds + m.run_seconds for _, m in (*self.earlier, *self.measured)]
        return max(fmean(taken), LEAST_TAKEN) if taken else 1.0


class Measure(Protocol):
    """What a Measurer and a Cluster are: they measure Candidates. While at most `lead` are on their way, more are worth
    proposing."""

    @property
    def lead(self) -> int: ...

    def subject(self, task: Task, cold_bytes: int) -> Any: ...

    def submit(self, subject: Any, candidate: Candidate, *, verify: bool) -> int: ...

    def results(self) -> Iterator[tuple[int, Measurement]]: ...


class Records(Protocol):
    """What keeps measurements as they come, and knows what others have kept since."""

    def refresh(self, subject: Subject) -> None: ...

    def add(
        self, subject: Subject, candidate: Candidate, individual: Individual | None, measurement: Measurement
    ) -> None: ...


@dataclass(frozen=True)
class Moment:
    """The state after a round: seconds since the start, the first `preparing` of which measured nothing; measurements
    so far, predicted seconds of all networks, and of each."""

    seconds: float
    trials: int
    predicted: float
    networks: tuple[float, ...] = ()
    preparing: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 3), "trials": self.trials, "predicted_seconds": self.predicted}


@dataclass(frozen=True)
class Tuned:
    """What tuning found. `ended` says why it did: "budget"; "nothing left", and `left` is a sentence about it;
    "interrupted"; "database", and `trouble` is a sentence about it. In `seconds`, `searching` seconds of one processor
    went into proposing Candidates and learning from them, most of it while others were built and measured; the first
    `preparing` of them went before the first measurement."""

    subjects: tuple[Subject, ...]
    log: tuple[Moment, ...]
    trials: int
    seconds: float
    ended: str
    searching: float
    preparing: float = 0.0
    trouble: str = ""
    left: str = ""

    @property
    def stopped(self) -> bool:
        """Whether nothing is to be measured after this."""
        return self.ended in ("interrupted", "database")

    @staticmethod
    def prepared(seconds: float) -> Tuned:
        """What has taken so long, and measured nothing yet."""
        return Tuned((), (), 0, seconds, "budget", 0.0, seconds)

    @property
    def rate(self) -> float:
        """Measurements a second since the first, building included."""
        return self.trials / max(self.seconds - self.preparing, 1e-9)

    @property
    def share(self) -> float:
        """What searching takes, of the time of one processor since the first measurement."""
        return self.searching / max(self.seconds - self.preparing, 1e-9)

    def then(self, other: Tuned) -> Tuned:
        """What was found in all, where `other` went on from this."""
        subjects = tuple({subject.key: subject for subject in (*self.subjects, *other.subjects)}.values())
        return replace(other, subjects=subjects)

    def of(self, network: int) -> Tuned:
        """The same with what is predicted of one network alone."""
        return replace(self, log=tuple(replace(moment, predicted=moment.networks[network]) for moment in self.log))


@dataclass
class _Round:
    """Candidates of one Task on their way: `open` are not measured yet; `learnt` are measured, and the explorer has not
    been told."""

    number: int
    exhausted: bool
    first: bool
    open: int
    learnt: list[tuple[Individual, Measurement]] = field(default_factory=list)


@dataclass
class Search:
    """Rounds that overlap: while the last candidates of one are measured, the next is proposed. The scheduler has the
    Work of each of `subjects`, in their order. What went `before` this counts against the budget."""

    subjects: Sequence[Subject]
    scheduler: Scheduler
    measure: Measure
    budget: Budget
    records: Records | None = None
    progress: Callable[[Moment, Subject], None] | None = None
    batch: int = BATCH
    before: Tuned = field(default_factory=lambda: Tuned.prepared(0.0))

    def __post_init__(self) -> None:
        self.start = time.monotonic() - self.before.seconds
        self.deadline = self.start + self.budget.seconds
        self.searching, self.trials, self.log = self.before.searching, self.before.trials, list(self.before.log)
        self.rounds: list[_Round] = []
        self.waiting: dict[int, tuple[_Round, Candidate, Individual | None]] = {}
        self.begun: set[int] = set()

    def run(self, last: bool = True) -> Tuned:
        """Rounds until the budget is spent, no Task can pay for another round, `records` cannot be kept any more (a
        full disk), or Ctrl-C. What is measured until then counts. Where this is not the `last` of `measure`, what is on
        its way at the end is waited for."""
        ended, trouble = "budget", ""
        try:
            while time.monotonic() < self.deadline:
                while len(self.waiting) <= self.measure.lead and self._begin():
                    pass
                if not self.waiting:
                    ended = "budget" if self.trials >= self.budget.trials else "nothing left"
                    break
                self._take(*next(self.measure.results()))
            while self.waiting and not last:
                self._take(*next(self.measure.results()))
        except KeyboardInterrupt:
            ended = "interrupted"
        except DatabaseError as error:
            ended, trouble = "database", str(error)
        for begun_round in [begun_round for begun_round in self.rounds if begun_round.learnt]:
            self._close(begun_round)
        return self.tuned(ended, trouble)

    def tuned(self, ended: str, trouble: str = "") -> Tuned:
        """What is measured so far, where it ends here."""
        seconds, preparing = time.monotonic() - self.start, self.before.preparing
        measured = tuple(self.subjects), tuple(self.log), self.trials
        left = self._nothing_left() if ended == "nothing left" else ""
        return Tuned(*measured, seconds, ended, self.searching, preparing, trouble, left)

    def _nothing_left(self) -> str:
        """Why no Task gets another round."""
        exhausted = len(self.scheduler.exhausted)
        others = len(self.subjects) - exhausted
        measured = f"every schedule that the explorer proposes of {exhausted} tasks is measured" if exhausted else ""
        little = f"another round of {others} {'others' if exhausted else 'tasks'} would save too little"
        return f"measuring ended before the budget: {', and '.join(filter(None, (measured, little if others else '')))}"

    def _begin(self) -> bool:
        """Another round, if there is a Task and a budget for one."""
        before, spent = time.thread_time(), self.searching
        asked = int(min(self.batch, self.budget.trials - self.trials - len(self.waiting)))
        if asked < 1 or time.monotonic() >= self.deadline:
            return False
        takes = None if math.isinf(self.budget.seconds) else [subject.takes for subject in self.subjects]
        task = self.scheduler.next({begun_round.number for begun_round in self.rounds if begun_round.first}, takes)
        if task is None:
            return False
        subject = self.subjects[task]
        for begun_round in self.rounds:
            if begun_round.number == task:
                self._learn(begun_round)
        if self.records is not None:
            self.records.refresh(subject)
        first = task not in self.begun and not subject.measured
        self.begun.add(task)
        batch = _batch(subject, asked, first)
        new_round = _Round(task, len(batch) < asked, first, len(batch))
        self.rounds.append(new_round)
        measured = self.measure.subject(subject.task, subject.cold_bytes)
        for candidate, individual in batch:
            number = self.measure.submit(measured, candidate, verify=individual is None)
            self.waiting[number] = new_round, candidate, individual
        self.searching = spent + time.thread_time() - before
        if not batch:
            self._close(new_round)
        return True

    def _take(self, number: int, measurement: Measurement) -> None:
        """What became of one candidate."""
        its_round, candidate, individual = self.waiting.pop(number)
        subject = self.subjects[its_round.number]
        subject.measured.append((candidate, measurement))
        self.trials += 1
        if self.records is not None:
            self.records.add(subject, candidate, individual, measurement)
        if individual is not None:
            its_round.learnt.append((individual, measurement))
        its_round.open -= 1
        if not its_round.open:
            self._close(its_round)

    def _learn(self, measured_round: _Round) -> None:
        before = time.thread_time()
        learnt, measured_round.learnt = measured_round.learnt, []
        self.subjects[measured_round.number].explorer.learn(learnt)
        self.searching += time.thread_time() - before

    def _close(self, ended_round: _Round) -> None:
        """The end of a round."""
        self.rounds.remove(ended_round)
        self._learn(ended_round)
        subject, scheduler = self.subjects[ended_round.number], self.scheduler
        scheduler.took(
            ended_round.number, subject.seconds or float(scheduler.seconds[ended_round.number]), ended_round.exhausted
        )
        networks = tuple(map(float, scheduler.predicted()))
        seconds = time.monotonic() - self.start
        moment = Moment(seconds, self.trials, sum(networks), networks, self.before.preparing)
        self.log.append(moment)
        if self.progress is not None:
            self.progress(moment, subject)


def _batch(subject: Subject, count: int, first: bool) -> list[tuple[Candidate, Individual | None]]:
    """What is measured in one round: at first the untuned Candidate, which may be a point of the space or not."""
    if not first:
        return [(individual.candidate, individual) for individual in subject.explorer.propose(count)]
    own, _ = subject.explorer.space.untuned(subject.untuned)
    subject.explorer.skip(subject.untuned)
    beginning = [(subject.untuned, own), *subject.again][:count]
    more = subject.explorer.propose(count - len(beginning)) if count > len(beginning) else []
    return [*beginning, *((individual.candidate, individual) for individual in more)]
