"""The layout stage, by cost: layouts of the whole graph chosen with what each Task costs in them (ALT, 4 to 6).

A variable for every class of values that are tied element by element (classes.py); its values are the Layouts that the
class may have. A complex operator may also read a value through a conversion: a variable for every value that windows
slide over or channels are contracted from. A table for every Task: the seconds of the schedule that it will get, in the
precision that is asked for and with the layouts around it. Where moves (reshapes, transpositions) turn from views into
copies with a layout, a table says so. The least sum is found by elimination (elimination.py), which is exact for chains
and for graphs with residuals, with estimates that are made in earnest where they decide (costs.py).

The model's boundary, constants and operands of opaque Blocks stay row-major.

Without propagation (ALT-WP), values stay row-major, and a complex operator that wants another layout is put between
conversions of its own.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from modelc.ir.block import Block, Task
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, Layouts, channels_last
from modelc.ir.program import BoundTask, Program
from modelc.layout.classes import layout_classes
from modelc.layout.convert import Conversion, LayoutChoice, conversion_piece, converted
from modelc.layout.costs import NEVER, At, Cost, Entry, Tables
from modelc.layout.rules import layouts_by_rule, seeds
from modelc.partition.draft import Drafting
from modelc.partition.groups import Work
from modelc.partition.pieces import Piece, moved
from modelc.partition.precision import WIDE, in_bfloat16, narrowed, to_bfloat16, writing_tasks
from modelc.partition.tasks import Draft, bound_task
from modelc.partition.views import Region, strides_of


@dataclass(frozen=True)
class LayoutPolicy:
    """How layouts are chosen. `search`: not at all (all row-major) or so that `cost`, the seconds of a Task as its
    boundary is stored, is least; by rule where there is no cost. `propagate`: through maps, or at complex operators
    alone, with conversions around each. `lanes`: of the inner part of layouts that split a dimension; 0: there are
    none. `doubt`: the error of `cost`, as a part of it: a Task around which a layout is not the rule's, or a value is
    converted, has to be cheaper by as much. `wide`: contractions are in bfloat16, but for those that write one of these
    values; None: all are in float32."""

    cost: Cost | None = None
    search: bool = True
    propagate: bool = True
    lanes: int = 0
    doubt: float = 0.0
    wide: frozenset[str] | None = None


def choose(graph: Graph, pieces: list[Piece], draft: Drafting, policy: LayoutPolicy) -> LayoutChoice:
    """How the values of `graph` are stored, as `policy` says."""
    if not policy.search:
        return LayoutChoice()
    rule = LayoutChoice(layouts_by_rule(graph, pieces))
    if policy.cost is None:
        return rule
    if not policy.propagate:
        return _Separate(graph, pieces, draft, policy.cost, policy.wide).chosen()
    propagated = _Propagated(graph, pieces, draft, policy.cost, policy)
    if not propagated.classes and not any(seeds(b) for p in pieces for b in p.blocks if isinstance(b, Block)):
        return rule  # there is nothing to weigh
    choice = propagated.chosen()

    def seconds(choice: LayoutChoice) -> float:
        assert policy.cost is not None
        changed, conversions, layouts = converted(graph, pieces, choice)
        program = in_precision(draft(changed, conversions, layouts).program(changed), policy.wide)
        computed = [bound.task for bound in program.tasks if all(isinstance(b, Block) for b in bound.task.blocks)]
        return sum(map(policy.cost.seconds, computed))

    return choice if choice != rule and seconds(choice) < seconds(rule) else rule


def in_precision(program: Program, wide: Collection[str] | None) -> Program:
    """`program` with contractions in bfloat16, but for those that write one of the values `wide`; None: as it is."""
    return program if wide is None else to_bfloat16(program, writing_tasks(program, wide))


def complex_reads(
    piece: Piece, work_values: Mapping[str, tuple[int, ...]], constants: Mapping[str, object]
) -> list[str]:
    """The data that contractions and windows of a Piece read, by name."""
    found = [n for b in piece.blocks if isinstance(b, Block) for n in seeds(b)]
    reads = set(piece.reads)
    return [n for n in dict.fromkeys(found) if n in reads and n in work_values and n not in constants]


class _Tasks:
    """The Tasks of one draft with other places for some of their values, in the precision that is asked for; what is
    alike is made once."""

    def __init__(self, draft: Draft, graph: Graph, wide: Collection[str] | None) -> None:
        self.draft = draft
        self.bound = [draft.task(k) for k in range(len(draft.groups))]
        self.narrowed, self.kept = None, frozenset[str]()
        if wide is not None:
            program = draft.program(graph)
            self.kept = frozenset(writing_tasks(program, wide))
            self.narrowed = narrowed(program, self.kept)
        self.hashes = [self.rounded(k, self.bound[k], ()).hash for k in range(len(self.bound))]
        self.known: dict[object, Task] = {}

    def rounded(self, k: int, bound: BoundTask, converted: Collection[str]) -> Task:
        if self.narrowed is None:
            return bound.task
        return self.narrowed.task(bound, self.bound[k].task.name in self.kept, converted)

    def task(self, k: int, places: Mapping[str, Region], layouts: Layouts, converted: Collection[str] = ()) -> Task:
        """Task `k` with `places` of boundary values, of which those `converted` are copies, and `layouts` of locals."""
        work, bound = self.draft.work, self.bound[k]
        around = tuple(
            (at.layout, at.strides, name in converted) if (at := places.get(name)) is not None else None
            for name in bound.values.values()
        )
        key = (self.hashes[k], around, tuple(layouts.values()))
        if key not in self.known:
            there = replace(work, places=ChainMap(dict(places), dict(work.places)))
            made = bound_task(there, self.draft.groups[k], self.draft.leaving[k], k, layouts)
            self.known[key] = self.rounded(k, made, converted)
        return self.known[key]

    def conversion(self, name: str, at: Region, to: Region, back: bool = False) -> Task:
        """Copying a value that is at `at` to where `to` says, for complex operators; `back`: they wrote it there."""
        work = self.draft.work
        shape, dtype = work.shapes[name], work.dtypes[name]
        new = f"{name}#"
        narrow: set[str] = set()
        if self.narrowed is not None and dtype == WIDE:
            narrow = {x for x, copied in (("x0", False), ("y0", not back)) if self.narrowed.stored(name, copied)}
        key = ("conversion", shape, dtype, *sorted(narrow), at.strides, at.layout, to.strides, to.layout)
        if key not in self.known:
            piece = conversion_piece(name, new, shape, self.draft.groups[0][0].node)
            there = replace(
                work,
                places={name: at, new: to},
                shapes={name: shape, new: shape},
                dtypes={name: dtype, new: dtype},
                constants={},
            )
            self.known[key] = in_bfloat16(bound_task(there, (piece,), (new,), 0, {}).task, narrow)
        return self.known[key]

    def copy(self, piece: Piece, work: Work, layouts: Layouts) -> Task:
        """The Task of a Piece that merely moves, in another draft's `work`."""
        (name,), (source,) = piece.writes, piece.reads
        task = bound_task(work, (piece,), (name,), 0, layouts).task
        narrow = self.narrowed is not None and work.dtypes[source] == WIDE and self.narrowed.stored(source, False)
        return in_bfloat16(task, {"x0", "y0"}) if narrow else task


def _stored_by(name: str, shape: tuple[int, ...], layout: Layout) -> Region:
    """A compact root."""
    return Region(name, 0, strides_of(shape, layout))


# --- propagated ---------------------------------------------------------------------------------------------------


class _Propagated:
    """Variables are numbered: the classes first, then the values that may be converted (0: not, else wanted[z - 1]).
    There is a draft for every kind of layout, in which all classes have it that may, and the others the rule's; the
    first is the rule's of all."""

    def __init__(self, graph: Graph, pieces: list[Piece], draft: Drafting, cost: Cost, policy: LayoutPolicy) -> None:
        self.cost, self.doubt = cost, policy.doubt
        rule = layouts_by_rule(graph, pieces)
        self.drafts: dict[int, Draft] = {0: draft(graph, pieces, rule)}
        self.classes = layout_classes(graph, pieces, self.drafts[0].groups, policy.lanes)
        self.of = {name: c for c, one in enumerate(self.classes) for name in one.members}
        self.others = {n: x for n, x in rule.items() if n not in self.of}
        self.kinds = tuple(dict.fromkeys(["", *(kind for one in self.classes for kind in one.layouts)]))
        seen = {tuple(one.rule for one in self.classes)}
        for number in range(1, len(self.kinds)):
            kinds = tuple(self.kind(c, number) for c in range(len(self.classes)))
            if kinds not in seen:
                self.drafts[number] = draft(graph, pieces, self.layouts(kinds))
            seen.add(kinds)
        self.tasks = _Tasks(self.drafts[0], graph, policy.wide)
        self.sizes = [len(one.layouts) for one in self.classes]
        self.made_for = self.drafts[0].work.part_of
        self.converted: dict[str, int] = {}  # value -> its variable
        self.wanted: dict[str, tuple[Layout, ...]] = {}

    def kind(self, c: int, draft: int) -> str:
        """What kind of layout class `c` has in a draft."""
        one = self.classes[c]
        return self.kinds[draft] if self.kinds[draft] in one.layouts else one.rule

    def layouts(self, kinds: Sequence[str]) -> dict[str, Layout]:
        """The layouts of all values where classes have layouts of these kinds."""
        found = dict(self.others)
        for one, kind in zip(self.classes, kinds, strict=True):
            if one.layouts[kind] != Layout():
                found |= dict.fromkeys(one.members, one.layouts[kind])
        return found

    def chosen(self) -> LayoutChoice:
        tables = Tables(self.cost)
        self.add_runs(tables)
        self.add_conversions(tables)
        self.add_moves(tables)
        best = tables.least(self.sizes, [0] * len(self.sizes))
        kinds = [one.kinds[v] for one, v in zip(self.classes, best.values, strict=False)]
        conversions = [
            Conversion(name, self.wanted[name][best.values[z] - 1])
            for name, z in self.converted.items()
            if best.values[z]
        ]
        return LayoutChoice(self.layouts(kinds), tuple(conversions))

    def owner(self, name: str) -> int | None:
        """The class that says how a value is stored: its own, or that of what it is a view of."""
        while name not in self.of:
            made_of = self.drafts[0].work.made_of.get(name)
            if made_of is None:
                if name not in self.made_for:
                    return None
                name = self.made_for[name]
            else:
                name = made_of[0]
                if name in self.made_for and self.made_for[name] not in self.of:
                    return None
        return self.of[name]

    def draft_of(self, values: Mapping[int, int]) -> int | None:
        """The first draft in which classes have these of their layouts; None if there is none."""
        wanted = {c: self.classes[c].kinds[v] for c, v in values.items()}
        return next((d for d in self.drafts if all(self.kind(c, d) == kind for c, kind in wanted.items())), None)

    def place(self, name: str, c: int | None, value: int) -> Region:
        """Where a value is if its owner `c` has this of its layouts."""
        draft = None if c is None else self.draft_of({c: value})
        found = self.drafts[draft].work.places.get(name) if draft is not None else None
        return found if found is not None else self.drafts[0].work.places[name]

    def variable(self, name: str) -> int:
        """The variable of a value's conversion."""
        if name not in self.converted:
            rank = len(self.drafts[0].work.shapes[name])
            self.wanted[name] = (channels_last(rank), Layout())
            self.converted[name] = len(self.sizes)
            self.sizes.append(1 + len(self.wanted[name]))
        return self.converted[name]

    def stays(self, name: str, c: int | None, value: int, z: int) -> bool:
        """Whether converting a value by choice `z`, whose owner `c` has this of its layouts, would change nothing."""
        to = _stored_by(name, self.drafts[0].work.shapes[name], self.wanted[name][z - 1])
        at = self.place(name, c, value)
        return at.layout is None and at.strides == to.strides

    def add_runs(self, tables: Tables) -> None:
        """What every Task costs."""
        draft = self.drafts[0]
        shapes, constants = draft.work.shapes, draft.work.constants
        for k, group in enumerate(draft.groups):
            if any(p.opaque for p in group) or all(_only_moves(p) for p in group):
                continue
            around = [n for n in self.tasks.bound[k].values.values() if n not in constants]
            inside = [n for p in group for n in (*p.locals, *p.writes) if n in self.of]
            owners = {n: self.owner(n) for n in (*around, *inside)}
            data = {x for p in group for x in complex_reads(p, shapes, constants)}
            read = {n: self.variable(n) for n in around if n in data}
            scope = sorted({*(c for c in owners.values() if c is not None), *read.values()})
            self.add_run(tables, k, scope, around, inside, owners, read)

    def add_run(
        self,
        tables: Tables,
        k: int,
        scope: Sequence[int],
        around: Sequence[str],
        inside: Sequence[str],
        owners: Mapping[str, int | None],
        read: Mapping[str, int],
    ) -> None:
        """The table of Task `k` over the variables `scope`: what `owners` says of the values `around` and `inside`, and
        conversions of what it `read`s."""
        shapes = self.drafts[0].work.shapes

        def entry(at: At) -> Entry | float:
            value = dict(zip(scope, at, strict=True))
            for n, z in read.items():
                if value[z] and self.stays(n, c := owners[n], 0 if c is None else value[c], value[z]):
                    return NEVER
            kinds = {c: self.classes[c].kinds[value[c]] for c in owners.values() if c is not None}
            layouts = {n: self.classes[c].layouts[kinds[c]] for n in inside if (c := owners[n]) is not None}
            places = {n: self.place(n, c, value[c]) for n in around if (c := owners[n]) is not None}
            converted = [n for n, z in read.items() if value[z]]
            for n in converted:
                places[n] = _stored_by(n, shapes[n], self.wanted[n][value[read[n]] - 1])
            task = self.tasks.task(k, places, layouts, converted)
            return Entry((task,), 1 + self.doubt if any(at) else 1.0)

        tables.add(scope, [self.sizes[v] for v in scope], entry)

    def add_conversions(self, tables: Tables) -> None:
        """What conversions cost, from how the value is stored."""
        shapes = self.drafts[0].work.shapes
        for name, z in self.converted.items():
            c = self.owner(name)
            scope = (z,) if c is None else (c, z)

            def entry(at: At, name: str = name, c: int | None = c) -> Entry | float:
                if not at[-1]:
                    return 0.0
                if self.stays(name, c, at[0], at[-1]):
                    return NEVER
                there = _stored_by(name, shapes[name], self.wanted[name][at[-1] - 1])
                return Entry((self.tasks.conversion(name, self.place(name, c, at[0]), there),))

            tables.add(scope, [self.sizes[v] for v in scope], entry)

    def add_moves(self, tables: Tables) -> None:
        """What is a copy in some layouts and a view in others. Between classes in layouts that no draft has together,
        it is the dearest of these copies."""
        copies: dict[str, dict[int, Task]] = {}
        sources: dict[str, str] = {}
        for number, draft in self.drafts.items():
            for piece in draft.work.pieces:
                if _only_moves(piece):
                    (name,), (source,) = piece.writes, piece.reads
                    copies.setdefault(name, {})[number] = self.tasks.copy(piece, draft.work, draft.layouts)
                    sources[name] = source
        for name, tasks in copies.items():
            scope = sorted({c for n in (name, sources[name]) if (c := self.owner(n)) is not None})
            if not scope:
                continue

            def entry(at: At, tasks: Mapping[int, Task] = tasks, scope: Sequence[int] = scope) -> Entry | float:
                draft = self.draft_of(dict(zip(scope, at, strict=True)))
                if draft is None:
                    return Entry((max(tasks.values(), key=self.cost.seconds),))
                return Entry((tasks[draft],)) if draft in tasks else 0.0

            tables.add(scope, [self.sizes[v] for v in scope], entry)


def _only_moves(piece: Piece) -> bool:
    return len(piece.blocks) == 1 and moved(piece.blocks[0]) is not None and len(piece.reads) == 1


# --- at complex operators alone -----------------------------------------------------------------------------------


def _converted(task: Task, at: At) -> Entry | float:
    return Entry((task,)) if at[0] else 0.0


class _Separate:
    """Variables: a value that is converted for all complex operators that read it; a complex operator whose result is
    converted back."""

    def __init__(
        self, graph: Graph, pieces: list[Piece], draft: Drafting, cost: Cost, wide: Collection[str] | None
    ) -> None:
        self.cost = cost
        self.draft = draft(graph, pieces, {})
        self.tasks = _Tasks(self.draft, graph, wide)

    def chosen(self) -> LayoutChoice:
        work = self.draft.work
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        sizes: list[int] = []
        tables = Tables(self.cost)
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

            def entry(at: At, k: int = k, anchor: Piece = anchor, scope: tuple[int, ...] = scope) -> Entry | float:
                converted = [n for n, z in before.items() if dict(zip(scope, at, strict=True)).get(z)]
                places = {n: self.last(n) for n in converted}
                if at[-1]:
                    return Entry(self.apart(k, anchor, places, converted))
                return Entry((self.tasks.task(k, places, {}, converted),))

            tables.add(scope, [2] * len(scope), entry)
        for name, z in before.items():
            there = self.tasks.conversion(name, work.places[name], self.last(name))
            tables.add((z,), (2,), partial(_converted, there))
        best = tables.least(sizes, [0] * len(sizes))
        conversions = [
            Conversion(name, channels_last(len(work.shapes[name])), back)
            for back, found in ((False, before), (True, after))
            for name, z in found.items()
            if best.values[z]
        ]
        return LayoutChoice({}, tuple(conversions))

    def last(self, name: str) -> Region:
        shape = self.draft.work.shapes[name]
        return _stored_by(name, shape, channels_last(len(shape)))

    def apart(
        self, k: int, anchor: Piece, places: Mapping[str, Region], converted: Collection[str]
    ) -> tuple[Task, ...]:
        """The anchor with a channels-last result, its conversion back, and the maps that were the anchor's epilogue."""
        work = self.draft.work
        (result,) = anchor.writes
        there = replace(work, places=ChainMap({**places, result: self.last(result)}, dict(work.places)))
        tasks = [self.tasks.rounded(k, bound_task(there, (anchor,), (result,), k, {}), converted)]
        row_major = _stored_by(result, work.shapes[result], Layout())
        tasks.append(self.tasks.conversion(result, self.last(result), row_major, back=True))
        rest = [p for p in self.draft.groups[k] if p is not anchor]
        if rest:
            tasks.append(self.tasks.rounded(k, bound_task(work, rest, self.draft.leaving[k], k, {}), ()))
        return tuple(tasks)
