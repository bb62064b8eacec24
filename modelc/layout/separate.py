"""What layouts cost at complex operators alone, with conversions around each (ALT-WP)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from modelc.ir.block import Task
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, channels_last
from modelc.layout.convert import Conversion, LayoutChoice
from modelc.layout.costs import At, Cost, Entry, Tables
from modelc.layout.restored import Restored, complex_reads, stored_by
from modelc.partition.draft import Drafting
from modelc.partition.pieces import Piece
from modelc.partition.precision import Narrowing
from modelc.partition.tasks import bound_task
from modelc.partition.views import Region


def _converted(task: Task, at: At) -> Entry | float:
    return Entry((task,)) if at[0] else 0.0


class Separate:
    """Variables: a value that is converted for all complex operators that read it; a complex operator whose result is
    converted back."""

    def __init__(
        self, graph: Graph, pieces: list[Piece], draft: Drafting, cost: Cost, narrowing: Narrowing | None
    ) -> None:
        self.draft = draft(graph, pieces, {})
        self.tasks = Restored(self.draft, graph, narrowing)
        self.before: dict[str, int] = {}  # value -> the variable of its conversion
        self.after: dict[str, int] = {}  # result -> that of its conversion back
        self.sizes: list[int] = []
        self.tables = Tables(cost)
        for k, group in enumerate(self.draft.groups):
            self.add_run(k, group)
        for name, z in self.before.items():
            there = self.tasks.conversion(name, self.draft.work.places[name], self.last(name))
            self.tables.add((z,), (2,), partial(_converted, there))

    def add_run(self, k: int, group: Sequence[Piece]) -> None:
        """The table of Task `k`, where it has one complex operator."""
        work = self.draft.work
        anchors = [(p, d) for p in group if (d := complex_reads(p, work.shapes, work.constants))]
        if len(anchors) != 1 or len(anchors[0][0].writes) != 1:
            return
        anchor, data = anchors[0]
        (result,) = anchor.writes
        for name in data:
            if name not in self.before:
                self.before[name] = len(self.sizes)
                self.sizes.append(2)
        self.after[result] = len(self.sizes)
        self.sizes.append(2)
        scope = (*sorted(self.before[n] for n in data), self.after[result])

        def entry(at: At) -> Entry | float:
            value = dict(zip(scope, at, strict=True))
            converted = [n for n, z in self.before.items() if value.get(z)]
            places = {n: self.last(n) for n in converted}
            if at[-1]:
                return Entry(self.apart(k, anchor, places, converted))
            return Entry((self.tasks.task(k, places, {}, converted),))

        self.tables.add(scope, [2] * len(scope), entry)

    def choice(self, values: Sequence[int]) -> LayoutChoice:
        """What an assignment says."""
        conversions = [
            Conversion(name, self.wanted(name), back)
            for back, variables in ((False, self.before), (True, self.after))
            for name, z in variables.items()
            if values[z]
        ]
        return LayoutChoice({}, tuple(conversions))

    def values(self, choice: LayoutChoice) -> tuple[int, ...]:
        """The assignment that says `choice`."""
        assignment = [0] * len(self.sizes)
        for conversion in choice.conversions:
            assignment[(self.after if conversion.back else self.before)[conversion.value]] = 1
        return tuple(assignment)

    def says(self, v: int, value: int) -> str:
        """What a variable has this value for, for people."""
        for back, variables in ((" back", self.after), ("", self.before)):
            for name, z in variables.items():
                if z == v:
                    return f"{name}: {'' if value else 'not '}converted{back}"
        raise KeyError(v)

    def wanted(self, name: str) -> Layout:
        return channels_last(len(self.draft.work.shapes[name]))

    def last(self, name: str) -> Region:
        return stored_by(name, self.draft.work.shapes[name], self.wanted(name))

    def apart(
        self, k: int, anchor: Piece, places: Mapping[str, Region], converted: Collection[str]
    ) -> tuple[Task, ...]:
        """The anchor with a channels-last result, its conversion back, and the maps that were the anchor's epilogue."""
        work = self.draft.work
        (result,) = anchor.writes
        there = replace(work, places=ChainMap({**places, result: self.last(result)}, dict(work.places)))
        tasks = [self.tasks.rounded(k, bound_task(there, (anchor,), (result,), k, {}), converted)]
        row_major = stored_by(result, work.shapes[result], Layout())
        tasks.append(self.tasks.conversion(result, self.last(result), row_major, back=True))
        epilogue = [p for p in self.draft.groups[k] if p is not anchor]
        if epilogue:
            tasks.append(self.tasks.rounded(k, bound_task(work, epilogue, self.draft.leaving[k], k, {}), ()))
        return tuple(tasks)
