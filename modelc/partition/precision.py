"""Contractions in bfloat16 with sums in float32, or in float16 with short sums in that: Program -> Program.

    before                                          after
    in x0: float32[1, 64, 56, 56]                   in x0: bfloat16[1, 64, 56, 56]
    const x1: float32[64, 64, 1, 1]                 const x1: bfloat16[64, 64, 1, 1]
    out y0: float32[1, 64, 56, 56]                  out y0: bfloat16[1, 64, 56, 56]
    t0[...] += x0[...] * x1[...]                    t0[...] += float32(x0[...]) * float32(x1[...])
    y0[...] = max(t0[...], float32(0.0))            y0[...] = bfloat16(max(t0[...], float32(0.0)))

A contraction is told by its structure: a sum of products of two loads, over iterators that index both. It is worth
bfloat16 where both operands are reused, or where the one that is not is a constant that streams by; a depthwise
convolution, whose data meets one weight each, is neither, and stays in float32; so does a sum of few terms.

Its operands become bfloat16: constants are converted, computed values are stored so by whoever writes them and read
with a cast by everyone, and what has to stay float32 (inputs and outputs of the program, operands of opaque Blocks) is
copied, by the one Task that multiplies it or by a Task of its own. What its Task computes is stored as bfloat16 too,
and so is what merely moves such values.
Inside a Task everything is float32, functions of what is rounded as exact as that needs them (codegen/math_rounded.py);
a result is rounded once, to nearest even, where it is stored.

In float16 the processor multiplies and adds up in one instruction, on twice as many lanes as in float32. A contraction
is worth it where one operand is a constant, depthwise ones too; its Block multiplies what is stored, without a cast,
and adds up in float16 (half_sums.py says how far), which the Blocks after it read as float32:

    t0[...] += x0[...] * x1[...]                    y0[...] = float16(max(float32(t0[...]), float32(0.0)))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import DTYPES, Expr, Load, Op, Var, cast
from modelc.ir.program import BoundTask, Placed, Program, verify_program
from modelc.partition.half_sums import HALF, LARGEST, half_sum
from modelc.partition.narrow_products import NARROW, WIDE, products
from modelc.partition.narrow_task import in_narrow, unused

LIMIT = {NARROW: float("inf"), HALF: LARGEST}  # of constants that are not infinite then


@dataclass(frozen=True)
class Narrowing:
    """Contractions are in `dtype`, but for those that write one of the values `wide`."""

    dtype: str = NARROW
    wide: frozenset[str] = frozenset()


def to_narrow(program: Program, kept: Collection[str] = (), dtype: str = NARROW) -> Program:
    """`program` with its contractions in `dtype`, but for the Tasks named in `kept`: what these compute is float32,
    from constants in float32. The program's inputs and outputs keep their dtypes."""
    rounded = _Rewrite(program, frozenset(kept), dtype).program()
    verify_program(rounded, "precision")
    return rounded


def contracting_tasks(program: Program, dtype: str = NARROW) -> tuple[str, ...]:
    """The names of the Tasks that `to_narrow` would let multiply `dtype`, in order."""
    beyond = {
        name for name, data in program.constants.items() if data.dtype == WIDE and not _within(data, LIMIT[dtype])
    }
    return tuple(
        bound.task.name
        for bound in program.tasks
        if any(products(bound.task, dtype))
        and beyond.isdisjoint(program.values[bound.values[x]].root for x in bound.task.constants)
    )


def _within(data: NDArray[Any], limit: float) -> bool:
    return not data.size or limit == float("inf") or float(np.abs(data).max()) <= limit


def writing_tasks(program: Program, values: Collection[str], dtype: str = NARROW) -> tuple[str, ...]:
    """Those of contracting_tasks() that write one of `values`: layouts change a Task's name, and not what it writes."""
    outputs = {bound.task.name: bound.outputs for bound in program.tasks}
    return tuple(name for name in contracting_tasks(program, dtype) if not set(values).isdisjoint(outputs[name]))


def with_roundings(program: Program, name: str) -> Program:
    """`program`, all stored as float32, where the Task `name` alone rounds its operands and results as in bfloat16."""
    tasks = [
        replace(bound, task=_with_roundings(bound.task)) if bound.task.name == name else bound
        for bound in program.tasks
    ]
    rounded = replace(program, tasks=tuple(tasks))
    verify_program(rounded, "precision")
    return rounded


def rounded_values(program: Program) -> frozenset[str]:
    """The values that are computed through bfloat16, stored so, or by sums in float16, or made from such values."""
    places = program.values
    roots = {place.root for place in places.values() if place.dtype == NARROW}
    for bound in program.tasks:
        inside = any(b.dtype == NARROW for b in bound.task.buffers) or half_sum(bound.task) is not None
        if inside or any(places[name].root in roots for name in bound.inputs):
            roots |= {places[name].root for name in bound.outputs}
    return frozenset(name for name, place in places.items() if place.root in roots)


# --- the rewrite --------------------------------------------------------------------------------------------------


class _Rewrite:
    """One application; the attributes are what is decided about roots and values."""

    def __init__(self, program: Program, kept: frozenset[str], dtype: str) -> None:
        self.old, self.kept, self.dtype = program, kept, dtype
        self.contracting = {*contracting_tasks(program, dtype)} - kept
        self.places = program.values
        self.operands = [self._contracted(bound) for bound in program.tasks]  # buffers, by Task
        self.stays = self._stays()
        self.roots = self._stored_narrow()
        self.values = dict(program.values)
        self.constants = dict(program.constants)
        self.copies: dict[str, str] = {}  # a value that stays float32 -> its copy in bfloat16
        self.copied = Counter(bound.values[x] for k, bound in enumerate(program.tasks) for x in self._wide(k))
        self.tasks: list[BoundTask] = []

    def _contracted(self, bound: BoundTask) -> frozenset[str]:
        """The Task's buffers that become operands in the dtype."""
        return _contracted(bound.task, self.dtype) if bound.task.name in self.contracting else frozenset()

    def _wide(self, k: int) -> list[str]:
        """The buffers of Task `k` that are operands, and stay float32."""
        bound, operands = self.old.tasks[k], self.operands[k]
        return [x for x in bound.task.inputs if x in operands and self._root(bound, x) not in self.roots]

    def _root(self, bound: BoundTask, buffer: str) -> str | None:
        """The root that a boundary buffer lies in; None for a local."""
        return self.places[bound.values[buffer]].root if buffer in bound.values else None

    def _stays(self) -> set[str]:
        """Roots that keep their dtype whoever reads them."""
        stays = {*self.old.inputs, *self.old.outputs}
        stays |= {name for name, place in self.places.items() if place.dtype != WIDE}
        for bound in self.old.tasks:
            opaque = {x for b in bound.task.blocks if isinstance(b, OpaqueBlock) for x in (*b.inputs, *b.outputs)}
            stays |= {self.places[bound.values[x]].root for x in opaque if x in bound.values}
            if bound.task.name in self.kept:
                constants = bound.task.constants
                stays |= {self.places[bound.values[x]].root for x in (*bound.task.outputs, *constants)}
        return stays

    def _stored_narrow(self) -> set[str]:
        """Roots that are stored as bfloat16: operands, results of contractions, and what only moves such values."""
        roots: set[str | None] = set()
        for bound, operands in zip(self.old.tasks, self.operands, strict=True):
            roots |= {self._root(bound, name) for name in operands}
            if operands:
                roots |= {self._root(bound, name) for name in bound.task.outputs}
        narrow = {root for root in roots if root is not None} - self.stays
        writers: dict[str, list[int]] = {}
        for k, bound in enumerate(self.old.tasks):
            for name in bound.outputs:
                writers.setdefault(self.places[name].root, []).append(k)
        again = True
        while again:
            exact = {k for k, bound in enumerate(self.old.tasks) if self._moves(bound, narrow)}
            more = {root for root, by in writers.items() if exact.issuperset(by)} - narrow - self.stays
            again, narrow = bool(more), narrow | more
        return narrow

    def _moves(self, bound: BoundTask, narrow: set[str]) -> bool:
        """Whether the Task gives nothing but elements of values that are stored as bfloat16."""
        moved = [x for b in bound.task.blocks for x in _moved(b)]
        own = {b.name for b in bound.task.locals}
        return bool(moved) and all(x is not None and (x in own or self._root(bound, x) in narrow) for x in moved)

    def program(self) -> Program:
        for name in self.roots - self.constants.keys():
            self._narrow(name)
        for k, bound in enumerate(self.old.tasks):
            task, values = bound.task, dict(bound.values)
            for buffer in self._wide(k):
                if buffer in task.constants or self.copied[values[buffer]] > 1:
                    values[buffer] = self._copy(values[buffer])
            for buffer in task.constants:
                if self._root(bound, buffer) in self.roots:
                    self._convert(self._root(bound, buffer) or "")
            narrow = {x for x in values if self.values[values[x]].dtype == self.dtype}
            copied = {x for x in values if values[x] != bound.values[x]}
            task = replace(task, buffers=tuple(self._bound(b, values, copied) for b in task.buffers))
            self.tasks.append(replace(bound, task=_narrowed(task, narrow, self.operands[k], self.dtype), values=values))
        used = {n for bound in self.tasks for n in bound.values.values()} | {*self.old.inputs, *self.old.outputs}
        used |= {self.values[n].root for n in used}
        constants = {n: data for n, data in self.constants.items() if n in used}
        places = {n: place for n, place in self.values.items() if n in used}
        return replace(self.old, constants=constants, values=places, tasks=tuple(self.tasks))

    def _bound(self, buffer: Buffer, values: Mapping[str, str], copied: Collection[str]) -> Buffer:
        """The buffer, if it is `copied`, as it lies in the copy."""
        return replace(buffer, strides=self.values[values[buffer.name]].strides) if buffer.name in copied else buffer

    def _narrow(self, root: str) -> None:
        """Every value in a root is of the dtype."""
        for name, place in self.values.items():
            if place.root == root:
                self.values[name] = replace(place, dtype=self.dtype)

    def _convert(self, root: str) -> None:
        """A constant that everyone reads in the dtype."""
        if self.values[root].dtype == WIDE:
            self._narrow(root)
            self.constants[root] = self.constants[root].astype(DTYPES[self.dtype])

    def _copy(self, name: str) -> str:
        """A copy in the dtype of a value that stays float32: a constant, or what a Task of its own writes."""
        if name in self.copies:
            return self.copies[name]
        place = self.values[name]
        if place.root in self.constants:
            copy = self._fresh(f"{place.root}#{self.dtype}")
            self.constants[copy] = self.constants[place.root].astype(DTYPES[self.dtype])
            self.values[copy] = replace(self.values[place.root], name=copy, root=copy, dtype=self.dtype)
            for other in [p for p in self.values.values() if p.root == place.root]:
                inside = copy if other.name == place.root else self._fresh(f"{other.name}#{self.dtype}")
                self.values[inside] = replace(other, name=inside, root=copy, dtype=self.dtype)
                self.copies[other.name] = inside
            return self.copies[name]
        copy = self._fresh(f"{name}#{self.dtype}")
        self.values[copy] = Placed(copy, self.dtype, place.shape, place.layout)
        self.tasks.append(_rounding_task(f"to_{self.dtype}_{len(self.copies)}", place, self.values[copy]))
        self.copies[name] = copy
        return copy

    def _fresh(self, name: str) -> str:
        while name in self.values:
            name += "_"
        return name


def _narrowed(task: Task, narrow: Collection[str], operands: Collection[str], dtype: str) -> Task:
    """`task` with the boundary buffers `narrow` stored as `dtype`; what is float32 of its contractions' `operands` it
    copies first."""
    boundary, inside = {*task.inputs, *task.outputs}, {*operands}
    for buffer in (x for x in task.inputs if x in operands and x not in narrow):
        task, copy = _copied(task, buffer, dtype)
        inside = inside - {buffer} | {copy}
    changed = {*narrow, *(inside - boundary)}
    return in_narrow(task, {x for x in changed if task.buffer(x).dtype == WIDE}, inside, dtype)


@dataclass(frozen=True)
class Narrowed:
    """What becomes of a Program's Tasks and values in `dtype`, by names that hold in whatever layouts they have.
    `values` are stored so; `operands` are what contractions multiply so; `shared` are operands that stay float32, and
    that several Tasks read from one copy; `contracting` are the Tasks that multiply so."""

    values: frozenset[str]
    operands: frozenset[str]
    shared: frozenset[str]
    contracting: frozenset[str]
    dtype: str

    def task(self, bound: BoundTask, contracting: bool, converted: Collection[str] = ()) -> Task:
        """`bound`'s Task as to_narrow makes it. `converted` are values that it reads in another layout, from a copy
        which is stored in the dtype if that is what is multiplied."""
        task = bound.task
        operands = _contracted(task, self.dtype) if contracting else frozenset()
        narrow = {x for x, v in bound.values.items() if self.stored(v, v in converted)}
        copied = {x for x in operands & bound.values.keys() if x in task.constants or bound.values[x] in self.shared}
        compact = copied - task.constants  # as the Task that rounds them writes them
        buffers = tuple(replace(b, strides=None) if b.name in compact else b for b in task.buffers)
        return _narrowed(replace(task, buffers=buffers), narrow | copied, operands, self.dtype)

    def stored(self, value: str, converted: bool) -> bool:
        """Whether a value, or what it is converted to, is stored in the dtype."""
        return value in self.values or (converted and value in self.operands)


def narrowed(program: Program, kept: Collection[str] = (), dtype: str = NARROW) -> Narrowed:
    """What to_narrow makes of `program`."""
    rewrite = _Rewrite(program, frozenset(kept), dtype)
    each = zip(program.tasks, rewrite.operands, strict=True)
    operands = {bound.values[x] for bound, names in each for x in names & bound.values.keys()}
    return Narrowed(
        frozenset(name for name, place in program.values.items() if place.root in rewrite.roots),
        frozenset(operands),
        frozenset(name for name, count in rewrite.copied.items() if count > 1),
        frozenset(rewrite.contracting),
        dtype,
    )


def _contracted(task: Task, dtype: str) -> frozenset[str]:
    """The buffers that contractions worth `dtype` multiply."""
    return frozenset(x.buffer for _, loads in products(task, dtype) for x in loads)


def _moved(block: AnyBlock) -> Iterator[str | None]:
    """The buffers whose elements a Block moves as they are; None for a Block that computes."""
    if not isinstance(block, Block) or block.aggregation not in ("assign", "max", "min"):
        yield None
        return
    for body in block.body:
        yield body.buffer if isinstance(body, Load) else None


def _copied(task: Task, buffer: str, dtype: str) -> tuple[Task, str]:
    """`task` with a copy of what it reads from `buffer`, and the copy's name: its contractions multiply that."""
    source = task.buffer(buffer)
    copy = unused(task, f"{buffer}_copy")
    iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(source.shape))
    at = tuple(Var(i.name) for i in iters)
    block = Block(unused(task, f"round_{buffer}"), iters, (Load(copy, at),), (Load(buffer, at),))
    multiplied = {b.name: loads for b, loads in products(task, dtype)}

    def visit(e: Expr, operands: tuple[Load, Load]) -> Expr | None:
        return Load(copy, e.indices) if isinstance(e, Load) and e.buffer == buffer and e in operands else None

    blocks = [
        b.mapped(partial(visit, operands=multiplied[b.name])) if isinstance(b, Block) and b.name in multiplied else b
        for b in task.blocks
    ]
    local = Buffer(copy, source.dtype, source.shape, source.layout)
    return replace(task, blocks=(block, *blocks), buffers=(*task.buffers, local)), copy


def _rounding_task(name: str, source: Placed, target: Placed) -> BoundTask:
    iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(source.shape))
    at = tuple(Var(i.name) for i in iters)
    block = Block("round", iters, (Load("y0", at),), (cast(target.dtype, Load("x0", at)),))
    buffers = (
        Buffer("x0", source.dtype, source.shape, source.layout, source.strides),
        Buffer("y0", target.dtype, target.shape, target.layout),
    )
    return BoundTask(Task(name, buffers, ("x0",), ("y0",), (block,), "round"), {"x0": source.name, "y0": target.name})


def _with_roundings(task: Task) -> Task:
    results = {x for x in task.outputs if task.buffer(x).dtype == WIDE}
    contractions = {block.name: set(loads) for block, loads in products(task)}
    rounded = in_narrow(task, results)
    blocks: list[AnyBlock] = []
    for block in rounded.blocks:
        if isinstance(block, Block):
            operands = contractions.get(block.name, set[Load]())
            block = block.mapped(partial(_through_bfloat16, operands, results))
            wide = [write.buffer in results for write in block.writes]
            body = [cast(WIDE, e) if w else e for e, w in zip(block.body, wide, strict=True)]
            block = replace(block, body=tuple(body))
        blocks.append(block)
    buffers = tuple(replace(b, dtype=WIDE) if b.name in results else b for b in rounded.buffers)
    return replace(rounded, blocks=tuple(blocks), buffers=buffers)


def _through_bfloat16(operands: Collection[Load], results: Collection[str], e: Expr) -> Expr | None:
    """Operands are rounded, and results are read as they are, for they are float32 again."""
    if isinstance(e, Load) and e in operands:
        return cast(WIDE, cast(NARROW, e))
    if isinstance(e, Op) and e.dtype == WIDE and isinstance(e.args[0], Load) and e.args[0].buffer in results:
        return e.args[0]
    return None
