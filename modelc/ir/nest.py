"""The Nest: a Task scheduled by a Candidate; a tree of loops with Blocks as leaves (Stripe's figures).

    nest conv(X: float32[1, 56, 56, 64]; W: float32[2, 9, 64, 32]; Y: float32[1, 56, 56, 64]) -> (Y)
      phase
        parallel h0:14
          register acc: float32[14, 32]
          for w0:4
            unroll w1:14
              vector o2:16
                init conv[n=0, o=o2, h=h0, w=w0 * 14 + w1] add
                  acc[w1, o2] = float32(0.0)
          ...

Accesses are physical: indices of a Region's dimensions, flattened by its strides. A `Leaf` is one Block at its place:
its iterators are already replaced by expressions over the loops around it, kept in `binding`. Parts of a reduction:
`init` writes the identity, `update` combines one more point into what is there; `assign` is a whole map.

A loop tagged `pipeline` may run the maps that end one iteration beside the reduction of the next.

Loops tagged `intrin:NAME` lead to one Leaf and are one application of that intrinsic, in the order of its iterators:
`update` multiplies and adds, `init` makes zeros, `assign` takes accumulators to memory. They mean what loops mean.
`intrin:NAME/B` is a hint beside: nothing reads soon again what operand B is: it need not stay in the first cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from modelc.ir.block import AGGREGATIONS, compact_strides, show_call
from modelc.ir.expr import DTYPES, Expr, Load, loads, show, show_conditions
from modelc.ir.sizes import room

TAGS = ("for", "parallel", "pipeline", "unroll", "vector")
INTRINSIC = "intrin:"  # a tag of its own for every intrinsic: the name follows
SCOPES = ("register", "local", "arena")


@dataclass(frozen=True)
class Region:
    """A view of storage: physical shape and strides in elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def stride(self) -> tuple[int, ...]:
        return compact_strides(self.shape) if self.strides is None else self.strides

    @property
    def bytes(self) -> int:
        """Bytes from the first to the last element, at most."""
        return room(self.shape, self.stride) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        strides = f" strides({', '.join(map(str, self.strides))})" if self.strides is not None else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{strides}"


@dataclass(frozen=True)
class Leaf:
    """One Block, or one part of it, executed once per iteration of the loops around it."""

    block: str
    part: str  # "assign", "init" or "update"
    writes: tuple[Load, ...]
    body: tuple[Expr, ...]
    aggregation: str
    where: tuple[Expr, ...] = ()
    binding: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True)
class Alloc:
    """Storage that lives until the end of the enclosing body."""

    region: Region
    scope: str  # one of SCOPES


@dataclass(frozen=True)
class For:
    """`body` for each value of `var` from 0 on, below `extent`."""

    var: str
    extent: int
    body: tuple[Stmt, ...]
    tag: str = "for"  # one of TAGS, or INTRINSIC and a name

    @property
    def intrinsic(self) -> str | None:
        """The name of the intrinsic that the loop is a part of."""
        return self.tag.removeprefix(INTRINSIC).partition("/")[0] if self.tag.startswith(INTRINSIC) else None

    @property
    def once(self) -> tuple[str, ...]:
        """The intrinsic's operands that nothing reads soon again."""
        return tuple(self.tag.split("/")[1:]) if self.tag.startswith(INTRINSIC) else ()


@dataclass(frozen=True)
class Branch:
    """`then` where the condition on loop variables holds, else `otherwise`: interior and boundary of a loop."""

    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...]


@dataclass(frozen=True)
class Call:
    """An opaque Block at its place: a named implementation over whole Regions."""

    block: str
    meaning: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Prefetch:
    """A hint that changes no result: the line of an element is wanted soon, to be written or (only) read. Indices may
    lie outside the Region."""

    access: Load
    write: bool = False


Stmt = Leaf | Alloc | For | Branch | Call | Prefetch


@dataclass(frozen=True)
class Nest:
    """Phases run one after the other; the outermost loop of a phase may be `parallel`, and so may loops inside it that
    are all that the one around them does: iterations of all together go to threads. `temporaries` are Regions shared by
    the phases, placed in the arena."""

    name: str
    params: tuple[Region, ...]
    outputs: tuple[str, ...]
    phases: tuple[tuple[Stmt, ...], ...]
    temporaries: tuple[Region, ...] = field(default=())

    def statements(self) -> Iterator[Stmt]:
        for phase in self.phases:
            yield from walk(phase)

    def __str__(self) -> str:
        return show_nest(self)


def parallel_inside(body: tuple[Stmt, ...]) -> For | None:
    """The parallel loop that is all that a body does, if it is one; prefetches may be in front of it."""
    last = body[-1] if body else None
    return last if isinstance(last, For) and last.tag == "parallel" else None


def walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement of a body, parents first."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, For):
            yield from walk(stmt.body)
        elif isinstance(stmt, Branch):
            yield from walk(stmt.then)
            yield from walk(stmt.otherwise)


def phase_regions(nest: Nest, phase: tuple[Stmt, ...]) -> tuple[Region, ...]:
    """The Regions from outside that a phase reads or writes, which are the arguments of its function, in order."""
    calls = [stmt for stmt in walk(phase) if isinstance(stmt, Call)]
    regions = {r.name: r for r in (*nest.params, *nest.temporaries)}
    if calls:
        return tuple(regions[name] for call in calls for name in (*call.inputs, *call.outputs))
    leaves = [stmt for stmt in walk(phase) if isinstance(stmt, Leaf)]
    used = {x.buffer for leaf in leaves for e in (*leaf.body, *leaf.where, *leaf.writes) for x in loads(e)}
    return tuple(region for name, region in regions.items() if name in used)


def without_hints(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body without its Prefetches: what it computes."""
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            stmt = replace(stmt, body=without_hints(stmt.body))
            if not stmt.body:
                continue
        elif isinstance(stmt, Branch):
            stmt = replace(stmt, then=without_hints(stmt.then), otherwise=without_hints(stmt.otherwise))
        if not isinstance(stmt, Prefetch):
            result.append(stmt)
    return tuple(result)


def show_nest(nest: Nest) -> str:
    """The text of a Nest; no two Nests have the same."""
    lines = [f"nest {nest.name}({'; '.join(map(str, nest.params))}) -> ({', '.join(nest.outputs)})"]
    lines += [f"  arena {t}" for t in nest.temporaries]
    for phase in nest.phases:
        lines.append("  phase")
        for stmt in phase:
            lines += _show(stmt, 2)
    return "\n".join(lines)


def _show(stmt: Stmt, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(stmt, Alloc):
        return [f"{pad}{stmt.scope} {stmt.region}"]
    if isinstance(stmt, For):
        return [f"{pad}{stmt.tag} {stmt.var}:{stmt.extent}", *(x for s in stmt.body for x in _show(s, depth + 1))]
    if isinstance(stmt, Branch):
        then = [x for s in stmt.then for x in _show(s, depth + 1)]
        otherwise = [x for s in stmt.otherwise for x in _show(s, depth + 1)]
        return [f"{pad}if {show(stmt.condition)}", *then, *([f"{pad}else", *otherwise] if otherwise else [])]
    if isinstance(stmt, Prefetch):
        return [f"{pad}prefetch{'w' * stmt.write} {show(stmt.access)}"]
    if isinstance(stmt, Call):
        return [f"{pad}call {show_call(stmt.block, stmt.meaning, stmt.inputs, stmt.outputs, stmt.attrs)}"]
    binding = ", ".join(f"{i}={show(e)}" for i, e in stmt.binding)
    lines = [f"{pad}{stmt.part} {stmt.block}[{binding}] {stmt.aggregation}"]
    if stmt.where:
        lines.append(f"{pad}  where {show_conditions(stmt.where)}")
    symbol = AGGREGATIONS[stmt.aggregation].symbol if stmt.part == "update" else "="
    return lines + [f"{pad}  {show(w)} {symbol} {show(b)}" for w, b in zip(stmt.writes, stmt.body, strict=True)]
