"""Alternatives for a model: other layouts, and other places where Tasks end, that are nearly as good by estimate. What
is measured of their Tasks decides among them, and which of them are combined (ALT, section 5)."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from modelc.compile.choices import occurrences
from modelc.compile.pipeline import Run
from modelc.compile.programs import Programs
from modelc.errors import InvalidIR, ModelError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.layout import Layout
from modelc.ir.program import kind_of
from modelc.layout.choice import Variables
from modelc.layout.convert import LayoutChoice
from modelc.layout.cuts import near_cuts
from modelc.layout.near import Measured, combined, near
from modelc.partition.draft import drafting

NEAR, NEAR_CUTS = 0.25, 0.1  # of what is around a change of layouts, or a cut, that estimates may be wrong by
WORTH = 0.002  # of a model's time, that a change has to promise then
MOST = 16  # changes of each graph
ESTIMATED = 0.5  # of the time for alternatives, after which no more changes are estimated
GAIN = 0.01  # of what is around it, by which a change has to be faster


@dataclass(frozen=True)
class Alternative:
    """One way to cut a model into Tasks; `says` what is otherwise in it than without tuning (nothing, if it is that),
    for people. By their hashes, its Tasks (canonical), and the Candidates that they have without tuning."""

    says: str
    programs: Programs
    tasks: Mapping[str, Task]
    untuned: Mapping[str, Candidate]

    @cached_property
    def occurrences(self) -> Counter[str]:
        return occurrences(self.programs.rounded)


@dataclass
class Alternatives:
    """Those of a model that `run` compiles; `base` is what it compiles. `notes` say what could not be made."""

    run: Run
    base: Alternative
    notes: list[str] = field(default_factory=list)

    def promising(self, until: float = math.inf, say: Callable[[str], None] = lambda text: None) -> list[Alternative]:
        """Each with one change, which promises something; what promises most first: as many as are made `until` then
        (of time.monotonic()). `say` is told which one is being made."""
        partitioning, layouts = self.run.partitioning, self.base.programs.layouts
        estimated = time.monotonic() + ESTIMATED * (until - time.monotonic())
        changes: list[tuple[float, int, str, LayoutChoice]] = []
        kept_values = self.base.programs.kept_values
        for number, (graph, own) in enumerate(zip(partitioning.graphs, layouts, strict=True)):
            policy = partitioning.policy(kept_values[number], all_splits=True)
            assert policy.cost is not None
            if (variables := self.variables[number]) is not None:
                changes += [
                    (change.promise(NEAR), number, change.says, change.choice)
                    for change in near(variables, own, NEAR, WORTH, MOST, estimated)
                ]
            size = partitioning.attention_bytes
            changes += [
                (cut.promise(NEAR_CUTS), number, cut.says, cut.applied(own))
                for cut in near_cuts(graph, own, size, policy.cost, policy.narrowing, NEAR_CUTS, WORTH)
            ]
        by_occurrences = {str(sorted(self.base.occurrences.items())): self.base}
        for at, (_, number, says, choice) in enumerate(sorted(changes, key=lambda change: -change[0])):
            if time.monotonic() >= until:
                left = f"{len(changes) - at} of {len(changes)} alternatives"
                self.notes.append(f"the budget leaves no time for {left}, those that promise least")
                break
            say(f"alternative {at + 1} of {len(changes)}: {says}")
            alternative = self.made(says, (*layouts[:number], choice, *layouts[number + 1 :]))
            if alternative is not None:
                by_occurrences.setdefault(str(sorted(alternative.occurrences.items())), alternative)
        return list(by_occurrences.values())[1:]

    @cached_property
    def variables(self) -> list[Variables | None]:
        """What there is to choose of each graph's layouts, those that split a dimension too; None where they are not
        searched."""
        partitioning, by_graph = self.run.partitioning, list[Variables | None]()
        for graph, kept_values in zip(partitioning.graphs, self.base.programs.kept_values, strict=True):
            policy = partitioning.policy(kept_values, all_splits=True)
            draft = drafting(partitioning.attention_bytes)
            by_graph.append(policy.variables(graph.graph, graph.pieces, draft) if policy.search else None)
        return by_graph

    def combined(self, seconds: Mapping[str, float], paid: Sequence[Alternative]) -> Alternative | None:
        """What is best by the measured `seconds` of Tasks: layouts by the tables with these in place of estimates, and
        the cuts of alternatives that `paid`. None where that is what there is without tuning."""
        schedules, kinds = self.run.schedules, dict[str, list[float]]()
        tasks = {task.hash: task for alternative in (self.base, *paid) for task in alternative.tasks.values()}
        for key, task in tasks.items():
            if key in seconds:
                kinds.setdefault(kind_of(task), []).append(seconds[key] / schedules.seconds(task))
        every = [ratio for ratios in kinds.values() for ratio in ratios]
        if not every:
            return None

        def like(task: Task) -> float:
            return median(kinds.get(kind_of(task), every))

        layouts = []
        for number, own in enumerate(self.base.programs.layouts):
            choice, variables = own, self.variables[number]
            if variables is not None:
                cost, doubt = Measured(schedules, seconds, like), self.run.target.cost.layout_doubt_share
                choice = combined(variables, own, cost, GAIN, doubt)
            cuts = (name for alternative in paid for name in alternative.programs.layouts[number].cuts)
            layouts.append(replace(choice, cuts=tuple(dict.fromkeys((*own.cuts, *cuts))), chained=own.chained))
        if tuple(layouts) == self.base.programs.layouts:
            return None
        return self.made(together(self.base.programs.layouts, layouts), tuple(layouts))

    def made(self, says: str, layouts: tuple[LayoutChoice, ...]) -> Alternative | None:
        """The model in these layouts; None, with a note, where that cannot be."""
        try:
            programs = self.run.partitioning.relaid(self.base.programs, layouts)
            if [*map(len, programs.kept)] != [*map(len, self.base.programs.kept)]:
                raise ModelError("a task that stays in float32 is cut there")
            return alternative_of(self.run, says, programs, self.base.untuned)
        except (InvalidIR, ModelError) as wrong:
            self.notes.append(f"an alternative cannot be made ({says}): {str(wrong)[:300]}")
            return None


def together(old: Sequence[LayoutChoice], new: Sequence[LayoutChoice]) -> str:
    """What several changes have come to, for people."""
    values = conversions = cuts = 0
    for a, b in zip(old, new, strict=True):
        values += sum(a.layouts.get(n, Layout()) != b.layouts.get(n, Layout()) for n in {**a.layouts, **b.layouts})
        conversions += len(set(a.conversions) ^ set(b.conversions))
        cuts += len(set(a.cuts) ^ set(b.cuts))
    counted = ((values, "values stored"), (conversions, "conversions"), (cuts, "cuts"))
    return ", ".join(f"{count} {what} otherwise" for count, what in counted if count)


def alternative_of(run: Run, says: str, programs: Programs, candidates: Mapping[str, Candidate]) -> Alternative:
    """A model as `programs`; `candidates` are those of some of its Tasks."""
    tasks: dict[str, Task] = {}
    for program in programs.rounded:
        for bound in program.kernels:
            if bound.task.hash not in tasks:
                tasks[bound.task.hash] = bound.task.canonical()
    untuned = {
        key: candidates[key] if key in candidates else run.schedules.chosen(task).candidate
        for key, task in tasks.items()
    }
    return Alternative(says, programs, tasks, untuned)
