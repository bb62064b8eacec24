"""What a database says of the Tasks of one compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelc.database.compare import fastest
from modelc.database.record import Conditions, constants_in
from modelc.database.store import Database
from modelc.database.version import code_version
from modelc.database.whole import Whole, choice_of
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.policy import Policy
from modelc.target import Target


@dataclass
class Recorded:
    """Of records for `target` on `threads` threads. By the Task's hash, `candidates` are what was found so far, and
    `others` say how many records of the same Task were made under other conditions, and left alone. `note` says what
    else was left alone."""

    database: Database
    target: Target
    threads: int
    candidates: dict[str, Candidate] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    note: str = ""

    def candidate(self, task: Task, policy: Policy, cold_bytes: int) -> Candidate | None:
        """The fastest that `policy` allows for a Task in a network whose parameters take `cold_bytes`, if it is known
        to be faster than what construction gave. Raises DatabaseError."""
        conditions = Conditions.of(task, self.target, code_version(self.target), self.threads, cold_bytes, policy)
        self.others[task.hash] = self.database.others(task.hash, conditions)
        best = fastest(list(self.database.records(task.hash, conditions)))
        if best is None:
            self.candidates.pop(task.hash, None)
            return None
        self.candidates[task.hash] = found = self.database.candidate(best)
        return found

    def look(self, tasks: Mapping[str, Task], policy: Policy, cold_bytes: int) -> dict[str, Candidate]:
        """candidate() of each of the canonical `tasks` for which there is one."""
        found = {key: self.candidate(task, policy, cold_bytes) for key, task in tasks.items()}
        return {key: one for key, one in found.items() if one is not None}

    def take(self, tasks: Mapping[str, Task], occurrences: Mapping[str, int], policy: Policy, cold_bytes: int) -> None:
        """Looks at the Tasks of a network. Where all that was found for them is known to bring nothing for the whole,
        none of it is taken."""
        found = self.look(tasks, policy, cold_bytes)
        choice = self.choice(found, occurrences, policy, cold_bytes)
        known = next(self.database.wholes(choice), None) if found else None
        if known is not None and not known.gained:
            for key in found:
                del self.candidates[key]
            self.note = (
                f"what was measured to be faster for {len(found)} tasks is not taken: together they took "
                f"{1e3 * known.tuned_seconds:.3f} ms, and {1e3 * known.untuned_seconds:.3f} ms without, by turns"
            )

    def choice(
        self, found: Mapping[str, Candidate], occurrences: Mapping[str, int], policy: Policy, cold_bytes: int
    ) -> str:
        """By which a Whole is known that is made of what was `found`."""
        keys = {key: candidate.key for key, candidate in found.items()}
        where = constants_in(self.target, cold_bytes)
        version = code_version(self.target)
        return choice_of(occurrences, keys, self.target.key, version, self.threads, where, policy)

    def settle(self, choice: str, untuned_seconds: float, tuned_seconds: float) -> Whole:
        """Writes down what a whole took beside the one without."""
        version = code_version(self.target)
        whole = Whole.of(choice, self.target.key, version, untuned_seconds, tuned_seconds)
        self.database.settle(whole)
        return whole
