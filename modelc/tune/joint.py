"""The joint search: what is measured of which Tasks, in two stages (ALT, section 5).

joint   alternatives for each network (other layouts, other places where Tasks end), each judged by the best loops that
        are found for its Tasks, within a share of the budget; what paid is combined
loops   Candidates of the Tasks of what is left, where the predicted time falls fastest, for the rest of the budget
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from modelc.space.sketch import Floats
from modelc.tune.alternatives import Alternative, Alternatives
from modelc.tune.networks import Network, Subjects
from modelc.tune.search.cross import Cross
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.objectives import Objective, Weights
from modelc.tune.search.population import Space
from modelc.tune.search.resume import Memory
from modelc.tune.search.scheduler import Scheduler
from modelc.tune.search.standing import Standing, Watch
from modelc.tune.search.tune import BATCH, Budget, Measure, Moment, Search, Subject, Tuned
from modelc.verb import Progress

CROSSED = 8  # Candidates of a round of the joint stage
PREPARED = 0.5  # of the joint stage's share of the budget, after which no more alternatives are made
FINALISTS = 3  # alternatives of a network that go on, with the one that combines what paid


@dataclass
class JointSearch:
    """Tunes `networks`, one time. `memory` is what a database knows; `watch` is told how everything stands, with
    `beside_ort`, ONNX Runtime's time over each untuned package's."""

    networks: Sequence[Network]
    explorer: str
    seed: int
    threads: int
    budget: Budget
    objective: Callable[[Weights, Floats], Objective]
    memory: Memory | None = None
    say: Progress = lambda stage, text: None
    watch: Callable[[Standing], None] | None = None
    beside_ort: Sequence[float] = ()
    earlier_records: int = 0  # records that were there before

    def __post_init__(self) -> None:
        self.learned = LearnedCost(self.seed)
        self.subjects = Subjects(self.networks, self.explorer, self.seed, self.threads, self.learned)
        self.alternatives = [Alternatives(network.run, network.base) for network in self.networks]
        self.share = self.networks[0].run.config.tune.joint
        self.search = Tuned.prepared(0.0)
        self._standing = Watch(self.budget, [network.name for network in self.networks], self.beside_ort)
        self._begun: set[str] = set()
        self._running: Search | None = None

    def prepare(self) -> None:
        """Everything before the first measurement. What it takes counts against the budget."""
        begin = time.monotonic()
        by_network = [[alternatives.base] for alternatives in self.alternatives]
        tasks = self.subjects.tasks(by_network)
        if self.share:
            until = begin + PREPARED * self.share * self.budget.seconds
            for rows, alternatives in zip(by_network, self.alternatives, strict=True):
                name = alternatives.run.model.stem
                self.say("joint", f"alternatives for {name}")
                rows += alternatives.promising(until, partial(self._making, name))
            self.say("joint", f"the tasks of {sum(map(len, by_network)) - len(by_network)} alternatives")
            tasks = self.subjects.tasks(by_network)
        if self.memory is not None:
            run = max((network.run for network in self.networks), key=lambda run: run.cold_bytes)
            self.learned.begin(
                self.memory.elsewhere(
                    tasks.subjects, lambda task: Space(task, run.estimating, run.config.policy, self.threads)
                )
            )
        self.tasks = tasks
        kind = Cross if len(tasks.alternatives) > len(self.networks) else Scheduler
        self.scheduler = tasks.scheduler(self.objective, kind, self.seed)
        self._recall()
        self.search = Tuned.prepared(time.monotonic() - begin)
        count = len(tasks.alternatives) - len(self.networks)
        more = f", {count} alternatives" if count else ""
        self.say("tune", f"{len(tasks.subjects)} tasks{more}, {self.earlier_records} records")

    def _making(self, name: str, text: str) -> None:
        self.say("joint", f"{name}: {text}")

    def run(self, measure: Measure) -> tuple[Tuned, tuple[Alternative, ...]]:
        """What was found, and the alternative of each network that is fastest with it. Ctrl-C ends it wherever it is:
        what was measured until then counts."""
        try:
            self._stages(measure)
        except KeyboardInterrupt:
            if self._running is None:
                raise
            self.search = self.search.then(self._running.tuned("interrupted"))
        return self.search, self._leading()

    def _stages(self, measure: Measure) -> None:
        if isinstance(self.scheduler, Cross):
            self._stage("joint", measure, self.budget.part(self.share), CROSSED)
            if self.search.stopped:
                return
            begin = time.monotonic()
            self._combine()
            self.search = replace(self.search, seconds=self.search.seconds + time.monotonic() - begin)
        self._stage("loops", measure, self.budget, BATCH)

    def _stage(self, stage: str, measure: Measure, budget: Budget, batch: int) -> None:
        subjects, scheduler = self.tasks.subjects, self.scheduler
        alternatives = [alternative.says for alternative in self.tasks.alternatives]
        self._standing.begin(subjects)

        def follow(moment: Moment, subject: Subject) -> None:
            predicted = f"{1e3 * moment.predicted:.3f} ms predicted"
            self.say("tune", f"{moment.seconds:.0f} s, {moment.trials} measured, {predicted}")
            if self.watch is not None:
                self.watch(self._standing.after(moment, subject, subjects, scheduler, alternatives, stage))

        self._running = Search(subjects, scheduler, measure, budget, self.memory, follow, batch, self.search)
        self.search = self.search.then(self._running.run(last=stage == "loops"))

    def _combine(self) -> None:
        """From here on, of each network: what there is without tuning, the fastest alternatives, and the one that
        combines what was measured to be faster."""
        scheduler, tasks = self.scheduler, self.tasks
        weights, seconds = scheduler.objective.weights, scheduler.seconds
        measured = {
            subject.task.hash: float(own)
            for subject, own, history in zip(tasks.subjects, seconds, scheduler.histories, strict=True)
            if history
        }
        compared, whole = scheduler.compared(), weights.each @ seconds
        kept = []
        for number, own in enumerate(self.alternatives):
            first = weights.first[number]
            faster = [k for k in compared if weights.owners[k] == number and k != first and whole[k] < whole[first]]
            faster.sort(key=lambda k: float(whole[k]))
            paid = [tasks.alternatives[k] for k in faster]
            self.say("joint", f"{len(paid)} alternatives for {own.run.model.stem} were faster")
            rows = [own.base, *paid[:FINALISTS]]
            together = own.combined(measured, paid)
            if together is not None and all(together.occurrences != alternative.occurrences for alternative in rows):
                rows.append(together)
            kept.append(rows)
        histories = dict(zip((s.key for s in tasks.subjects), scheduler.histories, strict=True))
        tasks = self.subjects.tasks(kept)
        scheduler = tasks.scheduler(self.objective, seed=self.seed)
        for number, subject in enumerate(tasks.subjects):
            scheduler.histories[number] = histories.get(subject.key, [])
        self.tasks, self.scheduler = tasks, scheduler
        self._recall()

    def _recall(self) -> None:
        """Lets what is new begin where the records of it end."""
        if self.memory is not None:
            self.earlier_records += self.memory.recall(self.tasks.subjects, self.scheduler, self._begun)
        self._begun |= {subject.key for subject in self.tasks.subjects}

    def _leading(self) -> tuple[Alternative, ...]:
        return tuple(self.tasks.alternatives[k] for k in self.scheduler.leading())
