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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import TargetError
from modelc.ir.block import AnyBlock, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import DTYPES, Expr, Load, Op, Var, cast, variables
from modelc.ir.program import BoundTask, Placed, Program, is_contraction, verify_program
from modelc.partition.half_sums import HALF, LARGEST, can_be_cut, half_sum, parts_of
from modelc.target import Intrinsic, Target
from modelc.target.intrinsics import shipped_intrinsics

NARROW, WIDE = "bfloat16", "float32"
LIMIT = {NARROW: float("inf"), HALF: LARGEST}  # of constants that are not infinite then
LEAST_DEPTH = 4  # terms of a dot product that are worth rounding: fewer fill no tile


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


# --- what the target can do ---------------------------------------------------------------------------------------


SUMS = {NARROW: WIDE, HALF: HALF}  # what products are added up in
FLAGS = {NARROW: "bf16", HALF: "f16"}


def multiplies(target: Target, dtype: str) -> bool:
    """Whether one of the target's intrinsics multiplies `dtype` and adds up as that asks for."""
    return any(_multiplies(intrinsic, dtype) for intrinsic in target.available_intrinsics)


def require(target: Target, dtype: str) -> None:
    """Raises TargetError, naming the features that would do, if the target cannot multiply `dtype`."""
    if multiplies(target, dtype):
        return
    intrinsics = [i for i in shipped_intrinsics() if i.architecture == target.architecture.name]
    intrinsics = [i for i in intrinsics if _multiplies(i, dtype)]
    ways = dict.fromkeys(" and ".join(f for f in i.features if f not in target.features) for i in intrinsics)
    lacking = "lists none of the intrinsics for it" if "" in ways else f"lacks {', or '.join(ways)}"
    if not intrinsics:
        lacking = f"is of {target.architecture.name}, for which no intrinsic for it is known"
    raise TargetError(
        f"precision {FLAGS[dtype]}: the target {target.name} cannot multiply {dtype}: it {lacking}; "
        "compile with --precision f32, or for another target"
    )


def _multiplies(intrinsic: Intrinsic, dtype: str) -> bool:
    kinds = [o.dtype for o in intrinsic.operands if o.name != intrinsic.accumulator.name]
    return kinds == [dtype, dtype] and intrinsic.accumulator.dtype == SUMS[dtype]


# --- contractions -------------------------------------------------------------------------------------------------


def products(task: Task, dtype: str = NARROW) -> Iterator[tuple[Block, tuple[Load, Load]]]:
    """The Blocks of `task` that are worth multiplying in `dtype`, with their operands."""
    for block in task.blocks:
        operands = _operands(task, block)
        if operands is not None and (_worth if dtype == NARROW else _worth_half)(task, block, *operands):
            yield block, operands  # type: ignore[misc]


def _operands(task: Task, block: AnyBlock) -> tuple[Load, Load] | None:
    """The two float32 loads of which the Block adds up products, over iterators that index both."""
    if not isinstance(block, Block) or block.aggregation != "add" or not isinstance(block.body[0], Op):
        return None
    body, dtypes = block.body[0], task.dtypes
    if body.name != "mul" or dtypes[block.writes[0].buffer] != WIDE:
        return None
    a, b = body.args
    if not (isinstance(a, Load) and isinstance(b, Load) and dtypes[a.buffer] == dtypes[b.buffer] == WIDE):
        return None
    return (a, b) if any({i.name} <= variables(a) & variables(b) for i in block.reduction) else None


def _worth(task: Task, block: AnyBlock, a: Load, b: Load) -> bool:
    """Whether one operand is a constant, which is packed for the instructions that add several products at a time when
    compiling, or the Task reduces rows of products besides (attention), and packs what it multiplies again and again;
    each operand meets several elements of the other, or is a constant that is read once; and a dot product has terms
    enough in a row. Other contractions of two computed operands are faster in float32 than with their operands packed
    or widened while running."""
    assert isinstance(block, Block)
    constants = {a.buffer, b.buffer} & task.constants
    if not constants and not any(x.reduction and not is_contraction(x) for x in task.blocks if isinstance(x, Block)):
        return False
    if _depth(block, *((b, a) if a.buffer in task.constants else (a, b))) < LEAST_DEPTH:
        return False
    long = {i.name for i in block.spatial if i.extent > 1}
    reused = {x: bool(long & (variables(y) - variables(x))) for x, y in ((a, b), (b, a))}
    return any(reused.values()) and all(reused[x] or x.buffer in task.constants for x in (a, b))


def _worth_half(task: Task, block: AnyBlock, a: Load, b: Load) -> bool:
    """Whether one operand is a constant, the Block is the one reduction of its Task, and its sum is short enough for
    float16 or can be cut in parts that are."""
    assert isinstance(block, Block)
    if any(not isinstance(x, Block) or (x.reduction and x is not block) for x in task.blocks):
        return False
    if not {a.buffer, b.buffer} & task.constants or _written_to(task, block.writes[0].buffer) != 1:
        return False
    return can_be_cut(task, block) and parts_of(block) is not None


def _written_to(task: Task, buffer: str) -> int:
    """How many Blocks write a buffer."""
    return sum(any(w.buffer == buffer for w in b.writes) for b in task.blocks if isinstance(b, Block))


def _depth(block: Block, data: Load, constant: Load) -> int:
    """Terms of a dot product that can lie in a row: along one iterator, or along the channels of a window's taps."""
    common = [i for i in block.reduction if {i.name} <= variables(data) & variables(constant)]
    plain = [i.extent for i in common if Var(i.name) in data.indices]
    taps = [i.extent for i in common if Var(i.name) not in data.indices]
    return max(plain, default=1) * max(taps, default=1)


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
    copy = _unused(task, f"{buffer}_copy")
    iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(source.shape))
    at = tuple(Var(i.name) for i in iters)
    block = Block(_unused(task, f"round_{buffer}"), iters, (Load(copy, at),), (Load(buffer, at),))
    multiplied = {b.name: loads for b, loads in products(task, dtype)}

    def visit(e: Expr, operands: tuple[Load, Load]) -> Expr | None:
        return Load(copy, e.indices) if isinstance(e, Load) and e.buffer == buffer and e in operands else None

    blocks = [
        b.mapped(partial(visit, operands=multiplied[b.name])) if isinstance(b, Block) and b.name in multiplied else b
        for b in task.blocks
    ]
    local = Buffer(copy, source.dtype, source.shape, source.layout)
    return replace(task, blocks=(block, *blocks), buffers=(*task.buffers, local)), copy


def _unused(task: Task, base: str) -> str:
    """A name that no buffer and no Block has: `base`, or with lines after it."""
    while base in {b.name for b in (*task.blocks, *task.buffers)}:
        base += "_"
    return base


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


# --- one Task -----------------------------------------------------------------------------------------------------


def in_narrow(task: Task, narrow: Collection[str], operands: Collection[str] = (), dtype: str = NARROW) -> Task:
    """`task` with the float32 buffers `narrow` stored as `dtype`: readers cast what they load, and writers round. What
    is accumulated is rounded by a Block of its own when it is done; other Blocks of the Task then read it unrounded,
    unless it is one of a contraction's `operands`. In float16 the contractions whose operands are narrow multiply and
    add up in that."""
    if not narrow:
        return task
    halved = _half_sums(task, {*narrow, *operands}) if dtype == HALF else {}
    task, narrow = _with_local_sums(task, halved, narrow)
    rounding = _Rounding(task, frozenset(narrow), dtype, frozenset(halved))
    blocks: list[AnyBlock] = []
    for block in task.blocks:
        blocks.append(block if isinstance(block, OpaqueBlock) else rounding.block(block, frozenset(operands)))
        blocks += rounding.after(block)
    buffers = [replace(b, dtype=dtype) if b.name in narrow else b for b in task.buffers]
    return replace(task, blocks=tuple(blocks), buffers=(*buffers, *rounding.buffers))


def _half_sums(task: Task, narrow: Collection[str]) -> dict[str, str]:
    """The Blocks that multiply and add up in float16, and what they write."""
    each = products(task, HALF)
    return {b.name: b.writes[0].buffer for b, loads in each if all(x.buffer in narrow for x in loads)}


def _with_local_sums(task: Task, halved: Mapping[str, str], narrow: Collection[str]) -> tuple[Task, frozenset[str]]:
    """The Task and its narrow buffers, what `halved` Blocks write among these; an output of theirs that stays float32
    is made of a sum beside it."""
    buffers, blocks, changed = list(task.buffers), list[AnyBlock](), {*narrow}
    for block in task.blocks:
        written = halved.get(block.name, "")
        if not isinstance(block, Block) or written not in task.outputs or written in narrow:
            blocks.append(block)
            changed |= {written} - {""}
            continue
        target = task.buffer(written)
        local = _unused(task, f"{written}_sum")
        iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(target.shape))
        at = tuple(Var(i.name) for i in iters)
        buffers.append(Buffer(local, WIDE, target.shape))
        blocks.append(replace(block, writes=(Load(local, block.writes[0].indices),)))
        blocks.append(Block(_unused(task, f"widen_{written}"), iters, (Load(written, at),), (Load(local, at),)))
        changed.add(local)
    return replace(task, buffers=tuple(buffers), blocks=tuple(blocks)), frozenset(changed)


@dataclass
class _Rounding:
    """How a Task's narrow buffers are written; `sums` are those that are accumulated, in a float32 buffer beside. The
    Blocks `halved` add up in the dtype."""

    task: Task
    narrow: frozenset[str]
    dtype: str
    halved: frozenset[str]
    sums: dict[str, str] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        taken = {b.name for b in self.task.buffers} | {b.name for b in self.task.blocks}
        for name in sorted(self.narrow - {*self.task.inputs}):
            if all(b.aggregation == "assign" or b.name in self.halved for b in self._writers(name)):
                continue
            wide = next(f"{name}_{k}" for k in range(len(taken) + 1) if f"{name}_{k}" not in taken)
            taken.add(wide)
            self.sums[name] = wide
            buffer = self.task.buffer(name)
            self.buffers.append(Buffer(wide, WIDE, buffer.shape, buffer.layout))

    def _writers(self, name: str) -> list[Block]:
        return [b for b in self.task.blocks if isinstance(b, Block) and any(w.buffer == name for w in b.writes)]

    def block(self, block: Block, operands: frozenset[str]) -> Block:
        if block.name in self.halved:
            return block
        contracted = operands if _operands(self.task, block) is not None else frozenset[str]()

        def read(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.buffer not in self.narrow:
                return None
            if e.buffer in self.sums and e.buffer not in contracted:
                return Load(self.sums[e.buffer], e.indices)
            return cast(WIDE, e)

        new = block.mapped(read)
        writes, body = [], []
        for write, value in zip(new.writes, new.body, strict=True):
            narrowed = write.buffer in self.narrow
            to = self.sums.get(write.buffer, write.buffer)
            writes.append(Load(to, write.indices))
            body.append(self._rounded(value) if narrowed and to == write.buffer else value)
        return replace(new, writes=tuple(writes), body=tuple(body))

    def after(self, block: AnyBlock) -> Iterator[Block]:
        """The Blocks that round what `block` was the last to write."""
        for name, wide in self.sums.items():
            if self._writers(name)[-1] is not block:
                continue
            iters = tuple(Iter(f"i{k}", n) for k, n in enumerate(self.task.buffer(name).shape))
            at = tuple(Var(i.name) for i in iters)
            rounded = (cast(self.dtype, Load(wide, at)),)
            yield Block(_unused(self.task, f"round_{name}"), iters, (Load(name, at),), rounded)

    def _rounded(self, value: Expr) -> Expr:
        """`value` in the dtype; what was so is moved as it is."""
        inner = value.args[0] if isinstance(value, Op) and value.name == "cast" else None
        return inner if isinstance(inner, Load) and inner.buffer in self.narrow else cast(self.dtype, value)
