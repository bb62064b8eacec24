"""What layouts cost where they spread through maps to all that is tied element by element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from modelc.ir.block import Task
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, channels_last
from modelc.layout.classes import layout_classes
from modelc.layout.convert import Conversion, LayoutChoice
from modelc.layout.costs import NEVER, At, Cost, Entry, Tables
from modelc.layout.parameters import Restorable, offered
from modelc.layout.restored import Restored, complex_reads, stored_by
from modelc.layout.rules import layouts_by_rule, slides
from modelc.partition.draft import Drafting
from modelc.partition.pieces import Piece, moved
from modelc.partition.precision import Narrowing
from modelc.partition.tasks import Draft
from modelc.partition.views import Region


@dataclass(frozen=True)
class _Around:
    """The values around Task `number`, and those and the locals that Blocks inside it write; the class that says how
    each is stored (None: there is no choice); of those around it the data of contractions and windows. `again`: whether
    elements are read again as windows slide, or as two computed operands are multiplied."""

    number: int
    around: tuple[str, ...]
    inside: tuple[str, ...]
    owners: Mapping[str, int | None]
    data: tuple[str, ...]
    again: bool

    @property
    def classes(self) -> list[int]:
        return sorted({c for c in self.owners.values() if c is not None})


class Propagated:
    """Variables are numbered: the classes first, then the values that may be converted (0: not, else wanted[z - 1]).
    There is a draft for every kind of layout that reorders, in which all classes have it that may, and the others the
    rule's; the first is the rule's of all. `lanes`: of a vector, by which layouts split a dimension; 0: none does. A
    Task around which something is not as by rule costs a part more, `doubt`, and layouts that split a dimension are
    offered where they promise as much, or with `all_splits` to every class; contractions are as `narrowing` says."""

    def __init__(
        self,
        graph: Graph,
        pieces: list[Piece],
        draft: Drafting,
        cost: Cost,
        lanes: int,
        doubt: float,
        all_splits: bool,
        narrowing: Narrowing | None,
    ) -> None:
        self.cost, self.doubt = cost, doubt
        rule = layouts_by_rule(graph, pieces)
        self.drafts: dict[int, Draft] = {0: draft(graph, pieces, rule)}
        self.classes = layout_classes(graph, pieces, self.drafts[0].groups, lanes)
        self.of = {name: c for c, layout_class in enumerate(self.classes) for name in layout_class.members}
        self.others = {n: x for n, x in rule.items() if n not in self.of}
        reordering = (kind for stored in self.classes for kind in stored.kinds if kind not in stored.splits)
        self.kinds = tuple(dict.fromkeys(["", *reordering]))
        seen = {tuple(layout_class.rule for layout_class in self.classes)}
        for number in range(1, len(self.kinds)):
            kinds = tuple(self.kind(c, number) for c in range(len(self.classes)))
            if kinds not in seen:
                self.drafts[number] = draft(graph, pieces, self.layouts(kinds))
            seen.add(kinds)
        self.tasks = Restored(self.drafts[0], graph, narrowing)
        self.made_for = self.drafts[0].work.part_of
        self.runs = [*self.computing()]
        runs = [Restorable(run.classes, partial(self.task, run), run.again) for run in self.runs if run.classes]
        self.classes = offered(self.classes, runs, cost, None if all_splits else doubt)
        self.sizes = [len(layout_class.layouts) for layout_class in self.classes]
        self.converted: dict[str, int] = {}  # value -> its variable
        self.wanted: dict[str, tuple[Layout, ...]] = {}

    @cached_property
    def tables(self) -> Tables:
        """Made when they are asked for; `sizes` are complete then."""
        tables = Tables(self.cost)
        self.add_runs(tables)
        self.add_conversions(tables)
        self.add_moves(tables)
        return tables

    def kind(self, c: int, draft: int) -> str:
        """What kind of layout class `c` has in a draft."""
        layout_class = self.classes[c]
        return self.kinds[draft] if self.kinds[draft] in layout_class.layouts else layout_class.rule

    def layouts(self, kinds: Sequence[str]) -> dict[str, Layout]:
        """The layouts of all values where classes have layouts of these kinds."""
        layouts = dict(self.others)
        for layout_class, kind in zip(self.classes, kinds, strict=True):
            if layout_class.layouts[kind] != Layout():
                layouts |= dict.fromkeys(layout_class.members, layout_class.layouts[kind])
        return layouts

    def choice(self, values: Sequence[int]) -> LayoutChoice:
        """What an assignment says."""
        kinds = [layout_class.kinds[v] for layout_class, v in zip(self.classes, values, strict=False)]
        conversions = [
            Conversion(name, self.wanted[name][values[z] - 1]) for name, z in self.converted.items() if values[z]
        ]
        return LayoutChoice(self.layouts(kinds), tuple(conversions))

    def values(self, choice: LayoutChoice) -> tuple[int, ...]:
        """The assignment that says `choice`."""
        assignment = [
            list(layout_class.layouts.values()).index(choice.layouts.get(layout_class.members[0], Layout()))
            for layout_class in self.classes
        ]
        assignment += [0] * len(self.converted)
        for conversion in choice.conversions:
            assignment[self.converted[conversion.value]] = 1 + self.wanted[conversion.value].index(conversion.layout)
        return tuple(assignment)

    def says(self, v: int, value: int) -> str:
        """What a variable has this value for, for people."""
        if v < len(self.classes):
            layout_class = self.classes[v]
            more = f" and {len(layout_class.members) - 1} more" if len(layout_class.members) > 1 else ""
            return f"{layout_class.members[0]}{more}: {layout_class.kinds[value]}"
        name = next(n for n, z in self.converted.items() if z == v)
        return f"{name}: converted to {self.wanted[name][value - 1]}" if value else f"{name}: not converted"

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
        wanted = {c: self.reordered(c, self.classes[c].kinds[v]) for c, v in values.items()}
        return next((d for d in self.drafts if all(self.kind(c, d) == kind for c, kind in wanted.items())), None)

    def reordered(self, c: int, kind: str) -> str:
        """The kind of a class where all that it does is to reorder; for others the rule's: nothing of the class is
        moved then, so places of other values are the same."""
        return self.classes[c].rule if kind in self.classes[c].splits else kind

    def place(self, name: str, c: int | None, kind: str) -> Region:
        """Where a value is if its owner `c` has this kind of layout."""
        if c is None:
            return self.drafts[0].work.places[name]
        if kind in self.classes[c].splits and name in self.of:
            return stored_by(name, self.drafts[0].work.shapes[name], self.classes[c].layouts[kind])
        wanted = self.reordered(c, kind)
        draft = next((d for d in self.drafts if self.kind(c, d) == wanted), 0)
        region = self.drafts[draft].work.places.get(name)
        return region if region is not None else self.drafts[0].work.places[name]

    def variable(self, name: str) -> int:
        """The variable of a value's conversion."""
        if name not in self.converted:
            rank = len(self.drafts[0].work.shapes[name])
            self.wanted[name] = (channels_last(rank), Layout())
            self.converted[name] = len(self.sizes)
            self.sizes.append(1 + len(self.wanted[name]))
        return self.converted[name]

    def stays(self, name: str, c: int | None, kind: str, z: int) -> bool:
        """Whether converting a value by choice `z`, whose owner `c` has this kind of layout, would change nothing."""
        to = stored_by(name, self.drafts[0].work.shapes[name], self.wanted[name][z - 1])
        at = self.place(name, c, kind)
        return at.layout is None and at.strides == to.strides

    def computing(self) -> Iterator[_Around]:
        """The Tasks that do more than to move."""
        draft = self.drafts[0]
        shapes, constants = draft.work.shapes, draft.work.constants
        for k, group in enumerate(draft.groups):
            if any(p.opaque for p in group) or all(_only_moves(p) for p in group):
                continue
            around = tuple(n for n in self.tasks.bound[k].values.values() if n not in constants)
            inside = tuple(n for p in group for n in (*p.locals, *p.writes) if n in self.of)
            owners = {n: self.owner(n) for n in (*around, *inside)}
            read = {x for p in group for x in complex_reads(p, shapes, constants)}
            again = any(p.reduces for p in group) and (not read or any(map(slides, group)))
            yield _Around(k, around, inside, owners, tuple(n for n in around if n in read), again)

    def task(self, run: _Around, kinds: Mapping[int, str], converted: Mapping[str, Layout] | None = None) -> Task:
        """The Task where classes have layouts of these `kinds`, the rule's where none is said, and what is `converted`
        is read in these layouts."""
        shapes, stored = self.drafts[0].work.shapes, dict[str, tuple[int, str]]()
        for name, c in run.owners.items():
            if c is not None:
                stored[name] = c, kinds.get(c, self.classes[c].rule)
        layouts = {n: self.classes[c].layouts[kind] for n in run.inside if n in stored for c, kind in (stored[n],)}
        places = {n: self.place(n, *stored[n]) for n in run.around if n in stored}
        places |= {n: stored_by(n, shapes[n], layout) for n, layout in (converted or {}).items()}
        return self.tasks.task(run.number, places, layouts, converted or ())

    def add_runs(self, tables: Tables) -> None:
        """What every Task costs."""
        for run in self.runs:
            self.add_run(tables, run, {n: self.variable(n) for n in run.data})

    def add_run(self, tables: Tables, run: _Around, read: Mapping[str, int]) -> None:
        """The table of a Task over the classes around and inside it, and conversions of what it `read`s."""
        scope = sorted({*run.classes, *read.values()})

        def entry(at: At) -> Entry | float:
            value = dict(zip(scope, at, strict=True))
            kinds = {c: self.classes[c].kinds[value[c]] for c in run.classes}
            for n, z in read.items():
                c = run.owners[n]
                if value[z] and self.stays(n, c, "" if c is None else kinds[c], value[z]):
                    return NEVER
            converted = {n: self.wanted[n][value[z] - 1] for n, z in read.items() if value[z]}
            return Entry((self.task(run, kinds, converted),), 1 + self.doubt if any(at) else 1.0)

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
                kind = "" if c is None else self.classes[c].kinds[at[0]]
                if self.stays(name, c, kind, at[-1]):
                    return NEVER
                there = stored_by(name, shapes[name], self.wanted[name][at[-1] - 1])
                return Entry((self.tasks.conversion(name, self.place(name, c, kind), there),))

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
