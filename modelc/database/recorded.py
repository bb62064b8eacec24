"""What a database says of the Tasks of one compilation, and what was asked of it, so that it can be said later whether
the answers are still the same."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from modelc.database.compare import comparable, fastest
from modelc.database.record import Conditions, constants_in
from modelc.database.store import Database
from modelc.database.version import code_version
from modelc.database.whole import Whole, network_of
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.measurement import Measurement
from modelc.policy import Policy
from modelc.target import Target


@dataclass
class Consulted:
    """Of Tasks, by their hash, the fastest record under which conditions; of networks, what they took in the end."""

    tasks: dict[str, Conditions] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)

    def answers(self, database: Database) -> str:
        """A digest of what the database says to all of it. Raises DatabaseError."""
        records = {key: fastest(list(database.records(key, asked))) for key, asked in self.tasks.items()}
        settled = {key: next(database.wholes(key), None) for key in self.networks}
        said = [
            {key: record.key for key, record in records.items() if record is not None},
            {key: [dict(whole.taken), whole.gained] for key, whole in settled.items() if whole is not None},
        ]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        tasks = {key: asdict(asked) for key, asked in self.tasks.items()}
        return {"tasks": tasks, "networks": sorted(self.networks)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Consulted:
        """Raises KeyError, TypeError where it is none."""
        return Consulted({key: Conditions(**asked) for key, asked in tree["tasks"].items()}, set(tree["networks"]))


@dataclass
class Recorded:
    """Of records for `target` on `threads` threads. By the Task's hash, `candidates` are what was found so far, and
    `others` say how many records of the same Task were made under other conditions, and left alone. `note` says what
    else was left alone; `notes`, of the whole database too."""

    database: Database
    target: Target
    threads: int
    candidates: dict[str, Candidate] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    note: str = ""
    consulted: Consulted = field(default_factory=Consulted)

    def candidate(self, task: Task, policy: Policy, cold_bytes: int) -> Candidate | None:
        """The fastest that `policy` allows for a Task in a network whose parameters take `cold_bytes`, if it is known
        to be faster than what construction gave. Raises DatabaseError."""
        conditions = self._conditions(task, policy, cold_bytes)
        self.consulted.tasks[task.hash] = conditions
        self.others[task.hash] = self.database.others(task.hash, conditions)
        records = list(self.database.records(task.hash, conditions))
        while (best := fastest(records)) is not None:
            candidate = self.database.candidate(best)
            if candidate is not None:
                self.candidates[task.hash] = candidate
                return candidate
            records.remove(best)
        self.candidates.pop(task.hash, None)
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.note, self.database.note)))

    def look(self, tasks: Mapping[str, Task], policy: Policy, cold_bytes: int) -> dict[str, Candidate]:
        """candidate() of each of the canonical `tasks` for which there is one."""
        candidates = {key: self.candidate(task, policy, cold_bytes) for key, task in tasks.items()}
        return {key: candidate for key, candidate in candidates.items() if candidate is not None}

    def measured(
        self, task: Task, untuned: Candidate, policy: Policy, cold_bytes: int
    ) -> list[tuple[Candidate, Measurement]]:
        """What is known of a Task's Candidates, as if by turns with the `untuned` one."""
        conditions = self._conditions(task, policy, cold_bytes)
        scaled = comparable(list(self.database.records(task.hash, conditions)), untuned.key)
        pairs = [(self.database.candidate(record), measurement) for record, measurement in scaled.values()]
        return [(candidate, measurement) for candidate, measurement in pairs if candidate is not None]

    def take(self, tasks: Mapping[str, Task], occurrences: Mapping[str, int], policy: Policy, cold_bytes: int) -> None:
        """Looks at the Tasks of a network. Of one that was tuned to the end, what it took then is taken; of another,
        what is fastest for each Task by itself."""
        faster = self.look(tasks, policy, cold_bytes)
        network = self.network(occurrences, policy, cold_bytes)
        self.consulted.networks.add(network)
        settled = next(self.database.wholes(network), None)
        if settled is None:
            return
        self.candidates.clear()
        if settled.gained:
            for key in settled.taken.keys() & tasks.keys():
                records = self.database.records(key, self._conditions(tasks[key], policy, cold_bytes))
                record = next((record for record in records if record.key == settled.taken[key]), None)
                if record is not None and (candidate := self.database.candidate(record)) is not None:
                    self.candidates[key] = candidate
        elif faster:
            together = "among its neighbours none of it was faster"
            if settled.taken:
                together = (
                    f"together they took {1e3 * settled.tuned_seconds:.3f} ms, and "
                    f"{1e3 * settled.untuned_seconds:.3f} ms without, by turns"
                )
            self.note = f"what was measured to be faster for {len(faster)} tasks is not taken: {together}"

    def _conditions(self, task: Task, policy: Policy, cold_bytes: int) -> Conditions:
        return Conditions.of(task, self.target, code_version(self.target), self.threads, cold_bytes, policy)

    def network(self, occurrences: Mapping[str, int], policy: Policy, cold_bytes: int) -> str:
        """By which a Whole is known."""
        where, version = constants_in(self.target, cold_bytes), code_version(self.target)
        return network_of(occurrences, self.target.key, version, self.threads, where, policy)

    def settle(
        self, network: str, taken: Mapping[str, Candidate], untuned_seconds: float, tuned_seconds: float
    ) -> None:
        """Writes down what a network took, and its time beside the one without."""
        keys, version = {key: candidate.key for key, candidate in taken.items()}, code_version(self.target)
        seconds = untuned_seconds, tuned_seconds
        self.database.settle(Whole(network, self.target.key, version, keys, *seconds, time.time()))
