"""What a database says of the Tasks of one compilation."""

from __future__ import annotations

from dataclasses import dataclass, field

from modelc.database.compare import fastest
from modelc.database.record import Conditions
from modelc.database.store import Database
from modelc.database.version import code_version
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.policy import Policy
from modelc.target import Target


@dataclass
class Recorded:
    """Of records for `target` on `threads` threads. By the Task's hash, `candidates` are what was found so far, and
    `others` say how many records of the same Task were made under other conditions, and left alone."""

    database: Database
    target: Target
    threads: int
    candidates: dict[str, Candidate] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)

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
