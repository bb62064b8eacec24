"""Layouts that are nearly as good as the chosen ones by estimate: measuring decides among them (ALT, section 5).

For each variable of the tables and each other value of it, the best assignment with that value (marginals.py): ALT's
layout of one complex operator, with all that follows from it propagated, and converted where that costs less. Near is
what costs at most a part more of what hangs on the variable. What was measured takes the place of estimates, and the
tables are solved again: that combines the changes that paid.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from modelc.ir.block import Task
from modelc.layout.choice import Variables
from modelc.layout.convert import LayoutChoice
from modelc.layout.costs import Cost, Entry
from modelc.layout.marginals import marginals


@dataclass(frozen=True)
class Near:
    """A change of `reference`: `says` what of it, for people. It is estimated to cost `more` seconds, and what hangs on
    it takes `seconds`."""

    says: str
    choice: LayoutChoice
    seconds: float
    more: float

    def promise(self, share: float) -> float:
        """What it saves where estimates are wrong by `share` of what hangs on it."""
        return share * self.seconds - self.more


def near(
    variables: Variables, reference: LayoutChoice, share: float, worth: float, most: int, until: float = math.inf
) -> list[Near]:
    """At most so many changes of a choice which promise a part `worth` of all where estimates are wrong by `share` of
    what hangs on them; what promises most first. Those that are known `until` then (of time.monotonic()): a change has
    to be estimated with all that follows from it."""
    tables, sizes = variables.tables, variables.sizes
    own = variables.values(reference)
    tables.ask(own)
    whole = tables.total(own)
    bounds = []
    for v, costs in enumerate(marginals(sizes, tables.factors, own)):
        seconds = tables.total(own, v)
        bounds += [(share * seconds - (cost - whole), v, u) for u, cost in enumerate(costs) if u != own[v]]
    changes: dict[str, Near] = {}
    for bound, v, value in sorted(bounds, key=lambda entry: -entry[0]):
        if bound < worth * whole or len(changes) == most or time.monotonic() >= until:
            break
        best = tables.least(sizes, own, (v, value))
        choice = variables.choice(best.values)
        candidate = Near(variables.says(v, value), choice, tables.total(own, v), tables.total(best.values) - whole)
        if candidate.promise(share) >= worth * whole and choice != reference:
            changes.setdefault(str(choice), candidate)
    return sorted(changes.values(), key=lambda change: -change.promise(share))


@dataclass(frozen=True)
class Measured:
    """A cost of measured seconds by the Task's hash, and of estimates times what those of `like` Tasks are off by."""

    estimates: Cost
    times: Mapping[str, float]
    like: Callable[[Task], float]

    def seconds(self, task: Task) -> float:
        measured = self.times.get(task.hash)
        return self.like(task) * self.estimates.seconds(task) if measured is None else measured

    def floor(self, task: Task) -> float:
        return self.estimates.floor(task)

    def prepare(self, tasks: Sequence[Task], earnest: bool) -> None:
        self.estimates.prepare([task for task in tasks if task.hash not in self.times], earnest)

    def optimistic(self, task: Task) -> float:
        measured = self.times.get(task.hash)
        return self.like(task) * self.estimates.optimistic(task) if measured is None else measured


def combined(variables: Variables, reference: LayoutChoice, cost: Measured, gain: float, doubt: float) -> LayoutChoice:
    """The best choice by what was measured: a change of `reference` has to gain a part `gain`, and one of which some
    Task is merely estimated a part `doubt`."""

    def margin(entry: Entry) -> float:
        return gain if all(task.hash in cost.times for task in entry.tasks) else doubt

    own: Sequence[int] = variables.values(reference)
    return variables.choice(variables.tables.anew(cost, own, margin).least(variables.sizes, own).values)
