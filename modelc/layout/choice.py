"""The layout stage, by cost: layouts of the whole graph chosen with what each Task costs in them (ALT, 4 to 6).

A variable for every class of values that are tied element by element (layout.linked: ALT's propagation, which passes
maps alone, stops at complex operators, and reaches all consumers and all producers); its values are the layouts that
the class may have. A complex operator may also read a value through a conversion: a variable for every value that some
contraction or window reads. A table for every Task: its seconds in the layouts around it, handed in as `cost`. Where
moves (reshapes, transpositions) turn from views into copies with a layout, a table says so. The least sum is found by
elimination (elimination.py), which is exact for chains and for graphs with residuals.

Candidates (ALT, section 5.1): channels-last (the rule's), row-major, and channels split by `lanes` with the inner part
last, N C/c H W c. The model's boundary, constants and operands of opaque Blocks stay row-major.

Without propagation (ALT-WP), values stay row-major, and a complex operator that wants another layout is put between
conversions of its own.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from modelc.ir.block import Block, Task
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, Layouts, channels_last
from modelc.layout.convert import Conversion, LayoutChoice, conversion_piece, converted
from modelc.layout.elimination import Factor, least
from modelc.layout.rules import layouts_by_rule, linked, seeds
from modelc.partition.draft import Drafting
from modelc.partition.pieces import Piece, moved
from modelc.partition.tasks import Draft, bound_task
from modelc.partition.views import Place, strides_of

Cost = Callable[[Task], float]


@dataclass(frozen=True)
class LayoutPolicy:
    """How layouts are chosen. `search`: not at all (all row-major) or so that `cost`, the seconds of a Task as its
    boundary is stored, is least; by rule where there is no cost. `propagate`: through maps, or at complex operators
    alone, with conversions around each. `lanes`: channels of the inner part of a blocked layout; 0: there is none.
    `doubt`: the error of `cost`, as a part of it: a Task around which a layout is not the rule's, or a value is
    converted, has to be cheaper by as much."""

    cost: Cost | None = None
    search: bool = True
    propagate: bool = True
    lanes: int = 0
    doubt: float = 0.0


def choose(graph: Graph, pieces: list[Piece], draft: Drafting, policy: LayoutPolicy) -> LayoutChoice:
    """How the values of `graph` are stored, as `policy` says."""
    if not policy.search:
        return LayoutChoice()
    if policy.cost is None or not any(seeds(b) for p in pieces for b in p.blocks if isinstance(b, Block)):
        return LayoutChoice(layouts_by_rule(graph, pieces))  # without complex operators there is nothing to weigh
    if policy.propagate:
        return _Propagated(graph, pieces, draft, policy.cost, policy.lanes, policy.doubt).chosen()
    return _Separate(graph, pieces, draft, policy.cost).chosen()


def total(draft: Draft, cost: Cost) -> float:
    """Seconds of all Tasks."""
    return sum(cost(draft.task(k).task) for k in range(len(draft.groups)))


def complex_reads(
    piece: Piece, work_values: Mapping[str, tuple[int, ...]], constants: Mapping[str, object]
) -> list[str]:
    """The data that contractions and windows of a Piece read, by name."""
    found = [n for b in piece.blocks if isinstance(b, Block) for n in seeds(b)]
    reads = set(piece.reads)
    return [n for n in dict.fromkeys(found) if n in reads and n in work_values and n not in constants]


class _Tasks:
    """The costs of Tasks of one draft with other places for some of their values; equal ones are asked for once."""

    def __init__(self, draft: Draft, cost: Cost) -> None:
        self.draft, self.cost = draft, cost
        self.bound = [draft.task(k) for k in range(len(draft.groups))]
        self.hashes = [b.task.hash for b in self.bound]
        self.known: dict[object, float] = {}

    def seconds(self, k: int, places: Mapping[str, Place], layouts: Layouts) -> float:
        """Task `k` with `places` of boundary values and `layouts` of locals."""
        work, bound = self.draft.work, self.bound[k]
        around = tuple(
            (at.layout, at.strides) if (at := places.get(name)) is not None else None for name in bound.values.values()
        )
        key = (self.hashes[k], around, tuple(layouts.values()))
        if key not in self.known:
            there = replace(work, places=ChainMap(dict(places), dict(work.places)))
            made = bound_task(there, self.draft.groups[k], self.draft.leaving[k], k, layouts)
            self.known[key] = self.cost(made.task)
        return self.known[key]

    def conversion(self, name: str, at: Place, to: Place) -> float:
        """Copying a value that is at `at` to where `to` says."""
        work = self.draft.work
        shape, dtype = work.shapes[name], work.dtypes[name]
        new = f"{name}#"
        key = ("conversion", shape, dtype, at.strides, at.layout, to.strides, to.layout)
        if key not in self.known:
            piece = conversion_piece(name, new, shape, self.draft.groups[0][0].node)
            there = replace(
                work,
                places={name: at, new: to},
                shapes={name: shape, new: shape},
                dtypes={name: dtype, new: dtype},
                constants={},
            )
            self.known[key] = self.cost(bound_task(there, (piece,), (new,), 0, {}).task)
        return self.known[key]


def _stored_by(name: str, shape: tuple[int, ...], layout: Layout) -> Place:
    """A compact root."""
    return Place(name, 0, strides_of(shape, layout))


# --- propagated ---------------------------------------------------------------------------------------------------

LAST, ROWS, BLOCKED = 0, 1, 2  # values of a class's variable


class _Propagated:
    """Variables are numbered: the classes first, then the values that may be converted (0: not, else wanted[z - 1])."""

    def __init__(
        self, graph: Graph, pieces: list[Piece], draft: Drafting, cost: Cost, lanes: int, doubt: float
    ) -> None:
        self.graph, self.pieces, self.drafting, self.cost, self.doubt = graph, pieces, draft, cost, doubt
        self.classes = linked(graph, pieces)
        self.of = {name: c for c, members in enumerate(self.classes) for name in members}
        rule = layouts_by_rule(graph, pieces)
        rows = {n: x for n, x in rule.items() if n not in self.of}
        self.layouts: list[Layouts] = [rule, rows]
        blocked = self._blocked(lanes) if lanes else {}
        if blocked:
            self.layouts.append({**rule, **blocked})
        self.drafts = [draft(graph, pieces, layouts) for layouts in self.layouts]
        self.tasks = _Tasks(self.drafts[LAST], cost)
        self.sizes = [3 if members[0] in blocked else 2 for members in self.classes]
        self.made_for = self.drafts[LAST].work.part_of
        self.converted: dict[str, int] = {}  # value -> its variable
        self.wanted: dict[str, tuple[Layout, ...]] = {}

    def _blocked(self, lanes: int) -> dict[str, Layout]:
        """Members of the classes that can be stored with their channels split: all of one shape, none moved."""
        shapes = {n: v.shape for n, v in self.graph.values.items()}
        shapes |= {n: b.shape for p in self.pieces for n, b in p.locals.items()}
        moving = {x for p in self.pieces if any(moved(b) is not None for b in p.blocks) for x in (*p.reads, *p.writes)}
        found: dict[str, Layout] = {}
        for members in self.classes:
            shape = shapes[members[0]]
            if any(shapes[n] != shape or n in moving for n in members) or shape[1] % lanes or shape[1] <= lanes:
                continue
            rank = len(shape)
            layout = Layout().then("split", 1, lanes).then("reorder", 0, 1, *range(3, rank + 1), 2)
            found |= dict.fromkeys(members, layout)
        return found

    def chosen(self) -> LayoutChoice:
        factors = [*self.moves(), *self.runs(), *self.conversions()]
        best = least(self.sizes, factors)
        layouts = dict(self.layouts[ROWS])
        for c, members in enumerate(self.classes):
            layouts |= {n: x for n in members if (x := self.layouts[best.values[c]].get(n)) is not None}
        conversions = [
            Conversion(name, self.wanted[name][best.values[z] - 1])
            for name, z in self.converted.items()
            if best.values[z]
        ]
        choice = LayoutChoice(layouts, tuple(conversions))
        seconds = total(self.drafting(*converted(self.graph, self.pieces, choice)), self.cost)
        if seconds < total(self.drafts[LAST], self.cost):
            return choice
        return LayoutChoice(self.layouts[LAST])

    def owner(self, name: str) -> int | None:
        """The class that says how a value is stored: its own, or that of what it is a view of."""
        while name not in self.of:
            made_of = self.drafts[LAST].work.made_of.get(name)
            if made_of is None:
                if name not in self.made_for:
                    return None
                name = self.made_for[name]
            else:
                name = made_of[0]
                if name in self.made_for and self.made_for[name] not in self.of:
                    return None
        return self.of[name]

    def place(self, name: str, layout: int) -> Place:
        """Where a value is if its owner has this layout."""
        found = self.drafts[layout].work.places.get(name)
        return found if found is not None else self.drafts[LAST].work.places[name]

    def variable(self, name: str) -> int:
        """The variable of a value's conversion."""
        if name not in self.converted:
            rank = len(self.drafts[LAST].work.shapes[name])
            self.wanted[name] = (channels_last(rank), Layout())
            self.converted[name] = len(self.sizes)
            self.sizes.append(1 + len(self.wanted[name]))
        return self.converted[name]

    def runs(self) -> Iterator[Factor]:
        """What every Task costs."""
        draft = self.drafts[LAST]
        for k, group in enumerate(draft.groups):
            if any(p.opaque for p in group) or all(_only_moves(p) for p in group):
                continue
            bound = self.tasks.bound[k]
            around = [n for n in bound.values.values() if n not in draft.work.constants]
            inside = [n for p in group for n in (*p.locals, *p.writes) if n in self.of]
            owners = {n: self.owner(n) for n in (*around, *inside)}
            data = {x for p in group for x in complex_reads(p, draft.work.shapes, draft.work.constants)}
            read = {n: self.variable(n) for n in around if n in data}
            scope = sorted({*(c for c in owners.values() if c is not None), *read.values()})
            table = np.zeros([self.sizes[v] for v in scope])
            for at in np.ndindex(*table.shape):
                value = dict(zip(scope, at, strict=True))
                layouts = {n: self.layouts[value[c]].get(n, Layout()) for n in inside if (c := owners[n]) is not None}
                places = {n: self.place(n, value[c]) for n in around if (c := owners[n]) is not None}
                for n, z in read.items():
                    if value[z]:
                        places[n] = _stored_by(n, draft.work.shapes[n], self.wanted[n][value[z] - 1])
                table[at] = self.tasks.seconds(k, places, layouts)
                if any(value[c] != LAST for c in owners.values() if c is not None) or any(
                    map(value.get, read.values())
                ):
                    table[at] *= 1 + self.doubt
            yield Factor(tuple(scope), table)

    def conversions(self) -> Iterator[Factor]:
        """What conversions cost, from how the value is stored."""
        shapes = self.drafts[LAST].work.shapes
        for name, z in self.converted.items():
            c = self.owner(name)
            scope = (z,) if c is None else (c, z)
            table = np.zeros([self.sizes[v] for v in scope])
            for at in np.ndindex(*table.shape):
                if at[-1]:
                    here = self.place(name, at[0] if c is not None else LAST)
                    there = _stored_by(name, shapes[name], self.wanted[name][at[-1] - 1])
                    table[at] = self.tasks.conversion(name, here, there)
            yield Factor(scope, table)

    def moves(self) -> Iterator[Factor]:
        """What is a copy in some layouts and a view in others. Between classes with different layouts, it is a copy."""
        copies: dict[str, dict[int, float]] = {}
        sources: dict[str, str] = {}
        for number, draft in enumerate(self.drafts):
            for piece in draft.work.pieces:
                if _only_moves(piece):
                    (name,), (source,) = piece.writes, piece.reads
                    made = bound_task(draft.work, (piece,), (name,), 0, draft.layouts)
                    copies.setdefault(name, {})[number] = self.cost(made.task)
                    sources[name] = source
        for name, seconds in copies.items():
            scope = sorted({c for n in (name, sources[name]) if (c := self.owner(n)) is not None})
            if not scope:
                continue
            table = np.zeros([self.sizes[v] for v in scope])
            for at in np.ndindex(*table.shape):
                table[at] = seconds.get(at[0], 0.0) if len(set(at)) == 1 else max(seconds.values())
            yield Factor(tuple(scope), table)


def _only_moves(piece: Piece) -> bool:
    return len(piece.blocks) == 1 and moved(piece.blocks[0]) is not None and len(piece.reads) == 1


# --- at complex operators alone -----------------------------------------------------------------------------------


class _Separate:
    """Variables: a value that is converted for all complex operators that read it; a complex operator whose result is
    converted back."""

    def __init__(self, graph: Graph, pieces: list[Piece], draft: Drafting, cost: Cost) -> None:
        self.cost = cost
        self.draft = draft(graph, pieces, {})
        self.tasks = _Tasks(self.draft, cost)

    def chosen(self) -> LayoutChoice:
        work = self.draft.work
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        sizes: list[int] = []
        factors = []
        for k, group in enumerate(self.draft.groups):
            anchors = [(p, d) for p in group if (d := complex_reads(p, work.shapes, work.constants))]
            if len(anchors) != 1 or len(anchors[0][0].writes) != 1:
                continue
            anchor, data = anchors[0]
            (result,) = anchor.writes
            for name in data:
                if name not in before:
                    before[name] = len(sizes)
                    sizes.append(2)
            after[result] = len(sizes)
            sizes.append(2)
            scope = (*sorted(before[n] for n in data), after[result])
            table = np.zeros([2] * len(scope))
            for at in np.ndindex(*table.shape):
                value = dict(zip(scope, at, strict=True))
                places = {n: self.last(n) for n in data if value[before[n]]}
                table[at] = self.apart(k, anchor, places) if at[-1] else self.tasks.seconds(k, places, {})
            factors.append(Factor(scope, table))
        for name, z in before.items():
            there = self.tasks.conversion(name, work.places[name], self.last(name))
            factors.append(Factor((z,), np.array([0.0, there])))
        best = least(sizes, factors)
        conversions = [
            Conversion(name, channels_last(len(work.shapes[name])), back)
            for back, found in ((False, before), (True, after))
            for name, z in found.items()
            if best.values[z]
        ]
        return LayoutChoice({}, tuple(conversions))

    def last(self, name: str) -> Place:
        shape = self.draft.work.shapes[name]
        return _stored_by(name, shape, channels_last(len(shape)))

    def apart(self, k: int, anchor: Piece, places: Mapping[str, Place]) -> float:
        """The anchor with a channels-last result, its conversion back, and the maps that were the anchor's epilogue."""
        work = self.draft.work
        (result,) = anchor.writes
        there = replace(work, places=ChainMap({**places, result: self.last(result)}, dict(work.places)))
        seconds = self.cost(bound_task(there, (anchor,), (result,), k, {}).task)
        seconds += self.tasks.conversion(result, self.last(result), _stored_by(result, work.shapes[result], Layout()))
        rest = [p for p in self.draft.groups[k] if p is not anchor]
        return seconds + (self.cost(bound_task(work, rest, self.draft.leaving[k], k, {}).task) if rest else 0.0)
