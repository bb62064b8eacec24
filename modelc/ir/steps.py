"""A Nest as a list of Steps: every Leaf and Call with the loops, conditions and storage around it.

Loops, tags, allocations, names and dtypes are checked on the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from modelc.ir.block import AGGREGATIONS
from modelc.ir.check import Stored, accesses, fail, identifiers, statements, typed
from modelc.ir.expr import Expr, Load, Op, Var, show, substitute
from modelc.ir.nest import INTRINSIC, SCOPES, TAGS, Alloc, Branch, Call, For, Leaf, Nest, Prefetch, Region, Stmt


@dataclass(frozen=True)
class Place:
    """One piece of storage: a Region, and the loops outside of which it lives (0: shared by the phases)."""

    region: Region
    scope: str  # "param", "temporary", or an Alloc's
    depth: int
    number: int

    @property
    def allocated(self) -> bool:
        """Whether it lives inside a phase."""
        return self.scope not in ("param", "temporary")


@dataclass(frozen=True)
class Step:
    """One Leaf or Call where it stands. Loop variables are renamed apart: one name, one loop."""

    number: int
    what: Leaf | Call
    loops: tuple[For, ...]
    branches: tuple[Expr, ...]
    storage: Mapping[str, Place]
    where: str

    @property
    def ranges(self) -> dict[str, int]:
        return {x.var: x.extent for x in self.loops}

    @property
    def guards(self) -> tuple[Expr, ...]:
        return (*self.branches, *(self.what.where if isinstance(self.what, Leaf) else ()))

    def writes(self) -> tuple[Load, ...]:
        return self.what.writes if isinstance(self.what, Leaf) else self._whole(self.what.outputs)

    def reads(self) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
        """What is read, with the conditions under which it counts."""
        if isinstance(self.what, Call):
            yield from ((load, ()) for load in self._whole(self.what.inputs))
            return
        for e in (*self.branches, *self.what.where, *(i for w in self.what.writes for i in w.indices)):
            yield from accesses(e)
        for e in self.what.body:
            yield from accesses(e, self.what.where)
        if self.what.part == "update":
            yield from ((w, self.what.where) for w in self.what.writes)

    def _whole(self, names: Sequence[str]) -> tuple[Load, ...]:
        """Accesses to every element: indices that are variables of their own."""
        return tuple(
            Load(name, tuple(Var(f"{name}.{d}") for d in range(len(self.storage[name].region.shape)))) for name in names
        )

    def grid(self) -> dict[str, int]:
        """The loops, and the elements of what a Call takes and gives."""
        if isinstance(self.what, Leaf):
            return self.ranges
        names = (*self.what.inputs, *self.what.outputs)
        whole = {f"{name}.{d}": n for name in names for d, n in enumerate(self.storage[name].region.shape)}
        return self.ranges | whole


def steps_of(nest: Nest, where: str) -> list[Step]:
    """The Leaves and Calls of a Nest in order. Raises InvalidIR where its tree is not well-formed."""
    regions = [*nest.params, *nest.temporaries]
    identifiers([r.name for r in regions], "region", where)
    storage: dict[str, Place] = {}
    for k, region in enumerate(regions):
        _region(region, where)
        storage[region.name] = Place(region, "param" if k < len(nest.params) else "temporary", 0, k)
    walk = _Walk()
    for k, phase in enumerate(nest.phases):
        walk.body(phase, _Around(f"{where}, phase {k}", storage))
    return walk.all_steps


def _region(region: Region, where: str) -> None:
    if region.strides is not None and len(region.strides) != len(region.shape):
        fail(where, f"region {region.name} has {len(region.strides)} strides for {len(region.shape)} dimensions")


def plain(e: Expr | str) -> str:
    """The text of an expression with loops named as in the Nest."""
    return re.sub(r"@\d+", "", e if isinstance(e, str) else show(e))


# --- the tree -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Around:
    """What is around a statement: `names` are the loop variables by the names that the Nest has for them."""

    where: str
    storage: Mapping[str, Place]
    loops: tuple[For, ...] = ()
    names: Mapping[str, Expr] = field(default_factory=dict)
    branches: tuple[Expr, ...] = ()

    @property
    def stored(self) -> Stored:
        return {name: (place.region.dtype, place.region.shape) for name, place in self.storage.items()}

    def dtype(self, e: Expr) -> str:
        return typed(e, self.names, self.stored, self.where)

    def under(self, condition: Expr) -> _Around:
        return replace(self, branches=(*self.branches, condition))


class _Walk:
    """Flattens a Nest to Steps; checks loops, tags and allocations on the way."""

    def __init__(self) -> None:
        self.loops = self.allocations = 0
        self.all_steps: list[Step] = []

    def body(self, body: tuple[Stmt, ...], around: _Around) -> None:
        for stmt in body:
            if isinstance(stmt, Alloc):
                place = self.allocated(stmt, around)
                around = replace(around, storage={**around.storage, stmt.region.name: place})
            elif isinstance(stmt, For):
                self.loop(stmt, around)
            elif isinstance(stmt, Branch):
                if any(x.tag == "vector" for x in around.loops):
                    vector = plain(around.loops[-1].var)
                    fail(around.where, f"'if {show(stmt.condition)}' is inside the vector loop {vector}")
                if around.dtype(stmt.condition) != "bool":
                    fail(around.where, f"the condition {show(stmt.condition)} is no bool")
                condition = substitute(stmt.condition, around.names)
                self.body(stmt.then, around.under(condition))
                self.body(stmt.otherwise, around.under(Op("not", (condition,))))
            elif isinstance(stmt, Prefetch):
                around.dtype(stmt.access)
            else:
                self.step(stmt, around)

    def allocated(self, stmt: Alloc, around: _Around) -> Place:
        name, storage, where = stmt.region.name, around.storage, around.where
        if stmt.scope not in SCOPES:
            fail(where, f"unknown scope {stmt.scope!r} of {name}; known are {', '.join(SCOPES)}")
        if name in storage and not storage[name].allocated:
            fail(where, f"{name} is allocated where it names a {storage[name].scope}")
        identifiers([name], "region", where)
        _region(stmt.region, where)
        self.allocations += 1
        return Place(stmt.region, stmt.scope, len(around.loops), -self.allocations)

    def loop(self, stmt: For, around: _Around) -> None:
        loops, where = around.loops, around.where
        identifiers([stmt.var], "loop", where)
        if stmt.var in around.names:
            fail(where, f"loop {stmt.var} is inside a loop of the same name")
        if stmt.extent < 1:
            fail(where, f"loop {stmt.var} has {stmt.extent} iterations, expected at least 1")
        if stmt.tag not in TAGS and not stmt.intrinsic:
            tags = ", ".join((*TAGS, f"{INTRINSIC}NAME"))
            fail(where, f"unknown tag {stmt.tag!r} of loop {stmt.var}; known are {tags}")
        if stmt.tag == "parallel" and (around.branches or any(x.tag != "parallel" for x in loops)):
            fail(where, f"loop {stmt.var} is parallel, and is not the outermost of its phase")
        beside = [s for s in stmt.body if not isinstance(s, Prefetch)]
        if len(beside) > 1 and any(isinstance(s, For) and s.tag == "parallel" for s in beside):
            fail(where, f"a parallel loop is not all that the loop {stmt.var} around it does")
        vector = next((x for x in loops if x.tag == "vector"), None)
        if vector and stmt.tag != "unroll":
            fail(where, f"the {stmt.tag} loop {stmt.var} is inside the vector loop {plain(vector.var)}")
        if stmt.intrinsic or (loops and loops[-1].intrinsic):
            _one_application(stmt, loops, where)
        self.loops += 1
        var = f"{stmt.var}@{self.loops}"
        inner = (*loops, For(var, stmt.extent, (), stmt.tag))
        self.body(stmt.body, replace(around, loops=inner, names={**around.names, stmt.var: Var(var)}))

    def step(self, stmt: Leaf | Call, around: _Around) -> None:
        where = f"{around.where}, {stmt.part if isinstance(stmt, Leaf) else 'call'} {stmt.block}"
        if isinstance(stmt, Leaf):
            _leaf(stmt, around.names, around.stored, where)

            def renamed(e: Expr) -> Expr:
                return substitute(e, around.names)

            writes = tuple(Load(w.buffer, tuple(map(renamed, w.indices))) for w in stmt.writes)
            binding = tuple((name, renamed(e)) for name, e in stmt.binding)
            body, conditions = tuple(map(renamed, stmt.body)), tuple(map(renamed, stmt.where))
            stmt = replace(stmt, writes=writes, body=body, where=conditions, binding=binding)
        else:
            for name in (*stmt.inputs, *stmt.outputs):
                if name not in around.storage:
                    fail(where, f"unknown region {name!r}")
        self.all_steps.append(Step(len(self.all_steps), stmt, around.loops, around.branches, around.storage, where))


def _one_application(loop: For, loops: tuple[For, ...], where: str) -> None:
    """Loops of an intrinsic lead to one Leaf, with no other loop between or inside."""
    outer = loops[-1] if loops and loops[-1].intrinsic else None
    if outer is not None and outer.tag != loop.tag:
        fail(where, f"the {loop.tag} loop {loop.var} is inside the {outer.tag} loop {plain(outer.var)}")
    if len(loop.body) != 1 or not isinstance(loop.body[0], For | Leaf):
        fail(where, f"the {loop.tag} loop {loop.var} has more in it than one loop or leaf")
    if isinstance(loop.body[0], Leaf) and loop.body[0].where:
        fail(where, f"the {loop.tag} loop {loop.var} has a condition inside")


def _leaf(leaf: Leaf, iterators: Mapping[str, Expr], stored: Stored, where: str) -> None:
    if leaf.part not in ("assign", "init", "update"):
        fail(where, f"unknown part {leaf.part!r}; known are assign, init, update")
    statements(leaf, iterators, stored, where)
    for _, e in leaf.binding:
        if typed(e, iterators, stored, where) != "int64":
            fail(where, f"binding {show(e)} is no int64")
    if leaf.part == "init":
        identity = AGGREGATIONS[leaf.aggregation].identity(tuple(stored[write.buffer][0] for write in leaf.writes))
        if leaf.body != identity:
            fail(where, f"{', '.join(map(show, leaf.body))} is not the identity of {leaf.aggregation}")
    if leaf.part == "update" and leaf.aggregation == "assign":
        fail(where, "an assign has no update")
