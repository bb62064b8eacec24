"""Features of the innermost statements of a Nest, in closed form (Ansor, appendix B).

A statement is a Leaf with the loops around it; nothing is lowered. A Nest is described by all features of the statement
that makes most float operations, and by totals over all statements. All numbers but shares are log2(1 + x).

    operations   of each kind that all executions make, on floats and in addresses
    loops        vector, unrolled, parallel, and of an intrinsic: the innermost extent, their product, their number
    intensity    operations for each byte that is touched, inside more and more of the loops (TEN points)
    buffers      of the ACCESSES that touch most: how it is accessed, where it lies, bytes and lines, all and distinct;
                 which loop uses them again, how often, and after how many iterations and bytes; stride
    storage      what is allocated around it
    others       loops around it and how often they run, executions, conditions
    totals       operations and executions of all statements
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2, prod

import numpy as np

from modelc.ir.affine import linear
from modelc.ir.block import AGGREGATIONS
from modelc.ir.expr import DTYPES, FLOATS, Const, Expr, Load, Op, Var, dtype_of, loads, walk
from modelc.ir.nest import Alloc, Branch, For, Leaf, Nest, Region, Stmt
from modelc.space.analysis.footprint import Dim, Footprint, Reach, footprint
from modelc.space.sketch import Floats

ACCESSES, TEN = 5, 10
KINDS = ("add", "multiply", "divide", "compare", "function", "cast", "other")
KIND_OF = {
    **dict.fromkeys(("add", "sub", "neg", "abs"), "add"),
    "mul": "multiply",
    **dict.fromkeys(("div", "mod", "floordiv"), "divide"),
    **dict.fromkeys(("min", "max", "lt", "le", "gt", "ge", "eq", "ne", "select", "and", "or", "not"), "compare"),
    **dict.fromkeys(("exp", "log", "erf", "tanh", "sigmoid", "pow", "sin", "cos", "sqrt", "floor"), "function"),
    "cast": "cast",
}
WAYS = ("vector", "unroll", "parallel", "intrin")
SCOPES = ("register", "local", "memory", "constant")
REUSES = ("read again", "updated again", "once")
PER_ACCESS = (
    *("read", "written", "updated"),
    *SCOPES,
    *("bytes", "distinct bytes", "lines", "distinct lines", "runs"),
    *REUSES,
    *("iterations until again", "bytes until again", "times again", "stride"),
    *(f"{what} each time" for what in ("bytes", "distinct bytes", "lines", "distinct lines")),
)
NAMES = (
    *(f"float {kind}" for kind in KINDS),
    *("address operations", "fused"),
    *(f"{way} {what}" for way in WAYS for what in ("innermost", "product", "loops")),
    *(f"intensity {k}" for k in range(TEN)),
    *(f"buffer {k} {what}" for k in range(ACCESSES) for what in PER_ACCESS),
    *("allocated bytes", "allocations"),
    *("loops", "trips", "executions", "conditions", "init", "update", "assign"),
    *(f"all float {kind}" for kind in KINDS),
    *("all address operations", "all fused", "all executions", "statements"),
)


@dataclass(frozen=True)
class Statement:
    """One Leaf where it stands: the loops around it, outermost first, as often as they run there; conditions; what is
    allocated around it."""

    leaf: Leaf
    loops: tuple[For, ...]
    conditions: int
    allocated: tuple[Alloc, ...]

    @property
    def executions(self) -> int:
        return prod(x.extent for x in self.loops)


@dataclass(frozen=True)
class Touched:
    """One access of a statement: the Load, whether it is read and written, where it lies, and its footprint inside the
    innermost 0, 1, ... of the loops around it."""

    load: Load
    read: bool
    written: bool
    scope: str
    itemsize: int
    steps: tuple[int, ...]  # elements from one iteration of each loop to the next, outermost first
    inside: Footprint


def statements(nest: Nest) -> Iterator[Statement]:
    """The innermost statements of a Nest, in order."""
    for phase in nest.phases:
        yield from _statements(phase, (), 0, ())


def _statements(
    body: Sequence[Stmt], loops: tuple[For, ...], conditions: int, allocated: tuple[Alloc, ...]
) -> Iterator[Statement]:
    for stmt in body:
        if isinstance(stmt, Alloc):
            allocated = (*allocated, stmt)
        elif isinstance(stmt, For):
            yield from _statements(stmt.body, (*loops, replace(stmt, body=())), conditions, allocated)
        elif isinstance(stmt, Branch):
            for side, taken in ((stmt.then, True), (stmt.otherwise, False)):
                yield from _statements(side, _running(loops, stmt.condition, taken), conditions + 1, allocated)
        elif isinstance(stmt, Leaf):
            yield Statement(stmt, loops, conditions + len(stmt.where), allocated)


def _running(loops: tuple[For, ...], condition: Expr, taken: bool) -> tuple[For, ...]:
    """The loops with as many iterations as there are on one side of `variable < number`; as they are, where the
    condition says something else."""
    if not isinstance(condition, Op) or condition.name != "lt":
        return loops
    variable, limit = condition.args
    if not isinstance(variable, Var) or not isinstance(limit, Const):
        return loops

    def count(extent: int) -> int:
        below = min(max(int(limit.value), 0), extent)
        return below if taken else extent - below

    return tuple(replace(x, extent=count(x.extent)) if x.var == variable.name else x for x in loops)


# --- what a statement touches ---------------------------------------------------------------------------------------


def touched(nest: Nest, statement: Statement, constants: frozenset[str], line: int) -> list[Touched]:
    """Every access of a statement, once, in the order of the text."""
    allocs = {a.region.name: a for a in statement.allocated}
    regions = {r.name: r for r in (*nest.params, *nest.temporaries)} | {n: a.region for n, a in allocs.items()}
    leaf = statement.leaf
    read = {x: None for e in leaf.body for x in loads(e)}
    written = dict.fromkeys(leaf.writes)
    if leaf.part == "update":
        read |= written
    columns = {x.var: k for k, x in enumerate(statement.loops)}
    extents = tuple(max(1, x.extent) for x in statement.loops)
    accesses = []
    for load in {**read, **written}:
        region = regions[load.buffer]
        scope = allocs[load.buffer].scope if load.buffer in allocs else "memory"
        scope = "constant" if load.buffer in constants else scope if scope in SCOPES else "memory"
        reach = reach_of(load, region, columns)
        inside = _inside(reach, extents, line)
        accesses.append(Touched(load, load in read, load in written, scope, reach.itemsize, steps(reach), inside))
    return accesses


def _inside(reach: Reach, extents: tuple[int, ...], line: int) -> Footprint:
    """The footprint of an access inside more and more of the loops around it."""
    bent = any(d.terms is None for d in reach.dims)
    dims = tuple([d if d.terms is None else replace(d, index=_ANY) for d in reach.dims])
    return _footprint(dims, reach.itemsize, tuple(reach.columns) if bent else (), extents, line)


_ANY = Const(0)  # an index that its terms say all of


@lru_cache(maxsize=8192)
def _footprint(
    dims: tuple[Dim, ...], itemsize: int, columns: tuple[str, ...], extents: tuple[int, ...], line: int
) -> Footprint:
    """Schedules of one Task have most of their footprints in common."""
    reach = Reach("", itemsize, dims, {name: k for k, name in enumerate(columns)}, dense=False)
    return footprint(reach, boxes(extents), line)


def boxes(extents: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The iterations of the innermost 0, 1, ... loops of these extents [loops + 1 x loops]."""
    count = len(extents)
    inner = np.arange(count)[None, :] >= count - np.arange(count + 1)[:, None]
    return np.where(inner, np.array(extents, np.int64)[None, :], 1)


def steps(reach: Reach) -> tuple[int, ...]:
    """Elements of storage from one iteration of each loop to the next, as far as indices are linear."""
    elements = [0] * len(reach.columns)
    for dim in reach.dims:
        for column, c in dim.terms or ():
            elements[column] += c * dim.stride
    return tuple(elements)


def reach_of(load: Load, region: Region, columns: dict[str, int]) -> Reach:
    """An access of a Nest, over tiles with a column for each loop."""
    dims = []
    for index, size, stride in zip(load.indices, region.shape, region.stride, strict=True):
        form = linear(index)
        terms = None
        if form is not None and form.plain:
            terms = tuple([(columns[a.name], c) for a, c in form.terms if isinstance(a, Var) and a.name in columns])
            if not terms:  # one place
                continue
        dims.append(Dim(index, terms, size, stride))
    return Reach(load.buffer, DTYPES[region.dtype].itemsize, tuple(dims), columns, dense=False)


# --- features -------------------------------------------------------------------------------------------------------


def features(nest: Nest, constants: frozenset[str] = frozenset(), line: int = 64) -> Floats | None:
    """[len(NAMES)]; None where nothing is executed. `constants` are parameters of the Nest that a network's weights
    are; `line` is in bytes."""
    dtypes = {r.name: r.dtype for r in (*nest.params, *nest.temporaries)}
    counted = []
    for statement in statements(nest):
        if statement.executions:
            dtypes_in_scope = dtypes | {a.region.name: a.region.dtype for a in statement.allocated}
            counted.append((statement, operations(statement, dtypes_in_scope)))
    if not counted:
        return None
    heaviest, counts = max(counted, key=lambda x: (_floats(x[1]) * x[0].executions, x[0].executions))
    totals = [
        _log(sum(c[kind] * statement.executions for statement, c in counted)) for kind in (*KINDS, "address", "fused")
    ]
    totals += [_log(sum(statement.executions for statement, _ in counted)), float(len(counted))]
    return np.array([*_row(heaviest, touched(nest, heaviest, constants, line), counts), *totals], np.float64)


def _floats(counts: Counter[str]) -> int:
    return sum(counts[kind] for kind in KINDS)


def operations(statement: Statement, dtypes: dict[str, str]) -> Counter[str]:
    """How many operations of each kind one execution makes on floats; "address" ones in indices and conditions; "fused"
    ones are products that are added."""
    leaf, counts = statement.leaf, Counter[str]()
    values = list(leaf.body)
    if leaf.part == "update":
        held = tuple(Load(w.buffer, w.indices) for w in leaf.writes)
        values = list(AGGREGATIONS[leaf.aggregation].combine(held, tuple(leaf.body)))
        counts["fused"] = sum(leaf.aggregation == "add" and isinstance(b, Op) and b.name == "mul" for b in leaf.body)
    for value in values:
        _count(value, dtypes, counts)
    for e in (*leaf.where, *(i for w in leaf.writes for i in w.indices)):
        counts["address"] += sum(isinstance(x, Op) for x in walk(e))
    return counts


def _count(value: Expr, dtypes: dict[str, str], counts: Counter[str]) -> None:
    if isinstance(value, Load):
        counts["address"] += sum(isinstance(x, Op) for i in value.indices for x in walk(i))
    elif isinstance(value, Op):
        if any(isinstance(a, Load) or dtype_of(a, dtypes) in FLOATS for a in value.args):
            counts[KIND_OF.get(value.name, "other")] += 1
        else:
            counts["address"] += 1
        for a in value.args:
            _count(a, dtypes, counts)


def _log(x: float) -> float:
    return log2(1.0 + max(0.0, x))


def _row(statement: Statement, accesses: list[Touched], counts: Counter[str]) -> list[float]:
    times = statement.executions
    row = [_log(counts[kind] * times) for kind in KINDS]
    row += [_log(counts["address"] * times), _log(counts["fused"] * times)]
    for way in WAYS:
        extents = [x.extent for x in statement.loops if x.tag.startswith(way)]
        row += [_log(extents[-1] if extents else 0), _log(prod(extents) if extents else 0), float(len(extents))]
    held = np.sum([a.inside.bytes for a in accesses], axis=0) if accesses else np.zeros(len(statement.loops) + 1)
    row += _intensity(statement, _floats(counts), held)
    every = [(_all(statement, a), a) for a in accesses]
    every.sort(key=lambda x: -x[0])
    for total, access in every[:ACCESSES]:
        row += _access(statement, access, total, held)
    row += [0.0] * (len(PER_ACCESS) * (ACCESSES - len(every[:ACCESSES])))
    row += [_log(sum(a.region.bytes for a in statement.allocated)), float(len(statement.allocated))]
    outer = prod(x.extent for x in statement.loops if not x.tag.startswith(("vector", "intrin", "unroll")))
    row += [float(len(statement.loops)), _log(outer), _log(times), float(statement.conditions)]
    return row + [float(statement.leaf.part == part) for part in ("init", "update", "assign")]


def _all(statement: Statement, access: Touched) -> float:
    """Bytes that all executions touch."""
    return float(statement.executions * access.itemsize)


def _intensity(statement: Statement, each: float, held: Floats) -> list[float]:
    """Operations for each distinct byte inside more and more loops, at TEN places from one execution to all."""
    trips = np.concatenate([[1.0], np.cumprod([max(1, x.extent) for x in reversed(statement.loops)])])
    curve = np.log2(1.0 + each * trips / np.maximum(held, 1.0))
    at = np.log2(trips)
    return [float(x) for x in np.interp(np.linspace(0.0, at[-1], TEN), at, curve)]


def _access(statement: Statement, access: Touched, total: float, held: Floats) -> list[float]:
    inside, extents = access.inside, [x.extent for x in reversed(statement.loops)]  # innermost first
    wide = 0  # loops whose iterations are one vector's lanes
    while wide < len(extents) and statement.loops[-1 - wide].tag.startswith(("vector", "intrin")):
        wide += 1
    lines = float(inside.lines[wide]) * statement.executions / max(1, prod(extents[:wide]))
    distinct, spread = float(inside.bytes[-1]), float(inside.lines[-1])
    again = next((k for k in range(wide, len(extents)) if extents[k] > 1 and _still(inside, k)), None)
    kind = "once" if again is None else "updated again" if access.written else "read again"
    times = 1.0 if again is None else float(extents[again])
    after = 0.0 if again is None else float(prod(extents[:again]))
    passed = 0.0 if again is None else float(held[again])
    row = [float(access.read and not access.written), float(access.written and not access.read)]
    row += [float(access.read and access.written), *(float(access.scope == s) for s in SCOPES)]
    row += [_log(total), _log(distinct), _log(lines), _log(spread), _log(float(inside.runs[-1]))]
    row += [
        *(float(kind == k) for k in REUSES),
        _log(after),
        _log(passed),
        _log(times),
        _log(_stride(statement, access)),
    ]
    return row + [_log(x / times) for x in (total, distinct, lines, spread)]


def _still(inside: Footprint, k: int) -> bool:
    """Whether loop k, from the innermost, touches what is touched inside it, and nothing else."""
    return bool(inside.elements[k + 1] == inside.elements[k])


def _stride(statement: Statement, access: Touched) -> float:
    """Elements from one iteration of the innermost loop that moves the access to the next."""
    pairs = zip(reversed(statement.loops), reversed(access.steps), strict=True)
    return float(next((abs(step) for loop, step in pairs if step and loop.extent > 1), 0))
