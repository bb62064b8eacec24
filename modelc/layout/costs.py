"""Tables of costs whose entries are sums of Tasks' seconds, optimistic until they matter.

What a schedule really costs takes a while to find out, and most entries belong to layouts that nobody would take. So
tables are filled with what a Task costs at least, about; the least sum is found, the Tasks that it is made of are asked
for in earnest, and so on until the least sum is made of nothing else. Where estimates at first are never too high, no
other assignment is better; a Task is asked for once, however many entries it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from modelc.ir.block import Task
from modelc.layout.elimination import Best, Factor, cost_of, least


class Cost(Protocol):
    """What Tasks cost as they will be scheduled."""

    def seconds(self, task: Task) -> float:
        """The seconds of the schedule that `task` would get."""

    def optimistic(self, task: Task) -> float:
        """A number that seconds() is not below, as a rule, in less time."""

    def floor(self, task: Task) -> float:
        """Seconds that no schedule of `task` is faster than, unless it multiplies less; 0 where that is not known."""

    def prepare(self, tasks: Sequence[Task], earnest: bool) -> None:
        """Works out together what optimistic() of these Tasks is, or in `earnest` what seconds() is: both take no time
        then."""


@dataclass(frozen=True)
class Entry:
    """`factor` times the seconds of `tasks` together."""

    tasks: tuple[Task, ...]
    factor: float = 1.0


At = tuple[int, ...]
NEVER = np.inf  # an assignment that is ruled out


class Tables:
    """The tables, and what is known of the Tasks in them."""

    def __init__(self, cost: Cost):
        self.cost = cost
        self._factors: list[Factor] = []
        self._filled = 0  # of them
        self.entries: list[dict[At, Entry]] = []
        self.seconds: dict[str, float] = {}  # by the Task's hash, as that follows
        self.users: dict[str, list[tuple[int, At]]] = {}  # entries of Tasks that were not asked for

    def add(self, scope: Sequence[int], sizes: Sequence[int], entry: Callable[[At], Entry | float]) -> None:
        """A table over the variables `scope` (ascending), of `sizes` values each: `entry` of every assignment."""
        table, entries = np.zeros(tuple(sizes)), dict[At, Entry]()
        for at in np.ndindex(*table.shape):
            value = entry(at)
            if isinstance(value, Entry):
                entries[at] = value
                for task in value.tasks:
                    if task.hash not in self.seconds:
                        self.users.setdefault(task.hash, []).append((len(self._factors), at))
            else:
                table[at] = value
        self._factors.append(Factor(tuple(scope), table))
        self.entries.append(entries)

    @property
    def factors(self) -> list[Factor]:
        """The tables in numbers, as far as these are known."""
        new = range(self._filled, len(self._factors))
        entries = [(number, at, entry) for number in new for at, entry in self.entries[number].items()]
        self.cost.prepare(
            [task for _, _, entry in entries for task in entry.tasks if task.hash not in self.seconds], False
        )
        for number, at, entry in entries:
            self._factors[number].table[at] = self.now(entry)
        self._filled = len(self._factors)
        return self._factors

    def now(self, entry: Entry) -> float:
        """The seconds of an entry, as far as they are known."""
        parts = (self.seconds[t.hash] if t.hash in self.seconds else self.cost.optimistic(t) for t in entry.tasks)
        return entry.factor * sum(parts)

    def ask(self, values: Sequence[int]) -> bool:
        """Asks for all Tasks that the assignment `values` is made of. Returns whether there were any left."""
        places = [tuple(values[v] for v in factor.scope) for factor in self._factors]
        entries = [table[at] for table, at in zip(self.entries, places, strict=True) if at in table]
        new = {task.hash: task for entry in entries for task in entry.tasks if task.hash not in self.seconds}
        self.cost.prepare([*new.values()], True)
        self.seconds |= {key: self.cost.seconds(task) for key, task in new.items()}
        for number, at in (user for key in new for user in self.users.pop(key) if user[0] < self._filled):
            self._factors[number].table[at] = self.now(self.entries[number][at])
        return bool(new)

    def total(self, values: Sequence[int], mentioning: int | None = None) -> float:
        """The seconds of an assignment, as far as they are known; of the tables alone that mention a variable."""
        chosen = [f for f in self.factors if mentioning is None or mentioning in f.scope]
        return cost_of(values, chosen)

    def least(self, sizes: Sequence[int], first: Sequence[int], fixed: tuple[int, int] | None = None) -> Best:
        """The assignment of least seconds to variables of so many values each; of those in which a variable has a
        `fixed` value. `first` is asked for before others."""
        self.ask(first)
        more = []
        if fixed is not None:
            v, value = fixed
            more = [Factor((v,), np.where(np.arange(sizes[v]) == value, 0.0, NEVER))]
        best = least(sizes, [*self.factors, *more])
        while self.ask(best.values):
            best = least(sizes, [*self.factors, *more])
        return best

    def anew(self, cost: Cost, reference: Sequence[int], doubt: Callable[[Entry], float]) -> Tables:
        """The same tables by another cost. What is otherwise than in the assignment `reference` costs a part more,
        which `doubt` says of its entry."""
        tables = Tables(cost)
        for factor, entries in zip(self.factors, self.entries, strict=True):
            own = tuple(reference[v] for v in factor.scope)

            def entry(
                at: At, factor: Factor = factor, entries: dict[At, Entry] = entries, own: At = own
            ) -> Entry | float:
                original = entries.get(at)
                if original is None:
                    return float(factor.table[at])
                return Entry(original.tasks, 1.0 if at == own else 1.0 + doubt(original))

            tables.add(factor.scope, factor.table.shape, entry)
        return tables
