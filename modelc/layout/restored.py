"""The Tasks of one draft as they are where values are stored otherwise."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping
from dataclasses import replace

from modelc.ir.block import Block, Task, compact_strides
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, Layouts
from modelc.ir.program import BoundTask
from modelc.layout.convert import conversion_piece
from modelc.layout.rules import seeds
from modelc.partition.groups import Work
from modelc.partition.narrow_products import WIDE
from modelc.partition.narrow_task import in_narrow
from modelc.partition.pieces import Piece
from modelc.partition.precision import Narrowing, narrowed, writing_tasks
from modelc.partition.tasks import Draft, bound_task
from modelc.partition.views import Region, strides_of


def complex_reads(
    piece: Piece, work_values: Mapping[str, tuple[int, ...]], constants: Mapping[str, object]
) -> list[str]:
    """The data that contractions and windows of a Piece read, by name."""
    names = [n for b in piece.blocks if isinstance(b, Block) for n in seeds(b)]
    reads = set(piece.reads)
    return [n for n in dict.fromkeys(names) if n in reads and n in work_values and n not in constants]


class Restored:
    """The Tasks of one draft with other places for some of their values, in the precision that is asked for; what is
    alike is made once."""

    def __init__(self, draft: Draft, graph: Graph, narrowing: Narrowing | None) -> None:
        self.draft = draft
        self.bound = [draft.task(k) for k in range(len(draft.groups))]
        self.narrowed = None
        if narrowing is not None:
            program = draft.program(graph)
            kept = writing_tasks(program, narrowing.wide, narrowing.dtype)
            self.narrowed = narrowed(program, kept, narrowing.dtype)
        self.hashes = [self.rounded(k, self.bound[k], ()).hash for k in range(len(self.bound))]
        self.tasks_by_key: dict[object, Task] = {}

    def rounded(self, k: int, bound: BoundTask, converted: Collection[str]) -> Task:
        if self.narrowed is None:
            return bound.task
        return self.narrowed.task(bound, self.bound[k].task.name in self.narrowed.contracting, converted)

    def task(self, k: int, places: Mapping[str, Region], layouts: Layouts, converted: Collection[str] = ()) -> Task:
        """Task `k` with `places` of boundary values, of which those `converted` are copies, and `layouts` of locals."""
        work, bound = self.draft.work, self.bound[k]
        around = tuple(
            (at.layout, at.strides, name in converted) if (at := places.get(name)) is not None else None
            for name in bound.values.values()
        )
        key = (self.hashes[k], around, tuple(layouts.values()))
        if key not in self.tasks_by_key:
            there = replace(work, places=ChainMap(dict(places), dict(work.places)))
            made = bound_task(there, self.draft.groups[k], self.draft.leaving[k], k, layouts)
            self.tasks_by_key[key] = self.rounded(k, made, converted)
        return self.tasks_by_key[key]

    def conversion(self, name: str, at: Region, to: Region, back: bool = False) -> Task:
        """Copying a value that is at `at` to where `to` says, for complex operators; `back`: they wrote it there."""
        work = self.draft.work
        shape, dtype = work.shapes[name], work.dtypes[name]
        new = f"{name}#"
        narrow: set[str] = set()
        if self.narrowed is not None and dtype == WIDE:
            narrow = {x for x, copied in (("x0", False), ("y0", not back)) if self.narrowed.stored(name, copied)}
        key = ("conversion", shape, dtype, *sorted(narrow), at.strides, at.layout, to.strides, to.layout)
        if key not in self.tasks_by_key:
            piece = conversion_piece(name, new, shape, self.draft.groups[0][0].node)
            there = replace(
                work,
                places={name: at, new: to},
                shapes={name: shape, new: shape},
                dtypes={name: dtype, new: dtype},
                constants={},
            )
            self.tasks_by_key[key] = self.moving(bound_task(there, (piece,), (new,), 0, {}).task, narrow)
        return self.tasks_by_key[key]

    def moving(self, task: Task, narrow: Collection[str]) -> Task:
        """A Task that moves, with its buffers `narrow` in the precision that is asked for."""
        return task if self.narrowed is None else in_narrow(task, narrow, dtype=self.narrowed.dtype)

    def copy(self, piece: Piece, work: Work, layouts: Layouts) -> Task:
        """The Task of a Piece that merely moves, in another draft's `work`."""
        (name,), (source,) = piece.writes, piece.reads
        task = bound_task(work, (piece,), (name,), 0, layouts).task
        narrow = self.narrowed is not None and work.dtypes[source] == WIDE and self.narrowed.stored(source, False)
        return self.moving(task, {"x0", "y0"} if narrow else ())


def stored_by(name: str, shape: tuple[int, ...], layout: Layout) -> Region:
    """A compact root."""
    if layout.primitives and layout.permutation is None:
        return Region(name, 0, compact_strides(shape), layout)
    return Region(name, 0, strides_of(shape, layout))
