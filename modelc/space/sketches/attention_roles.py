"""What the Blocks of attention are for, told by what they read; and the stages that bring them into the form for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.affine import linear
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.ir.expr import Load, Op, Var, variables, walk
from modelc.ir.program import is_contraction
from modelc.space.analysis.access import Access, accesses, reads_plainly
from modelc.space.analysis.around import consumers_of
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.attention_units import Unit, unit_of
from modelc.space.sketches.clean import applied, inlined
from modelc.space.sketches.lanes import lanes_split
from modelc.target import Target

LEAST_READS = 8  # of one element, for a copy of it in another dtype to pay
MOST_OPERATIONS = 4  # of a map that is computed twice rather than stored
CHEAP = ("add", "sub", "mul", "div", "min", "max", "select", "cast")


@dataclass(frozen=True)
class Roles:
    """The Blocks of attention by their role. All dimensions are numbered as those of the scores."""

    task: Task
    scores: Block  # the contraction
    epilogue: tuple[Block, ...]  # maps of its result that run on its register tile
    owner: Block  # the last map over whole rows
    before: tuple[Block, ...]  # what else works on one row, before the owner
    after: tuple[Block, ...]  # and after it
    values: Block | None  # the second contraction
    results: tuple[Block, ...]  # maps of its result
    packs: tuple[Block, ...]  # copies of operands
    others: tuple[Block, ...]  # maps that come before everything else
    iters: Mapping[str, tuple[str, ...]]  # Block -> its iterators along the scores' dimensions, "" where it has none
    key: int  # the dimension that rows are long in
    query: int  # the dimension of the query rows of a tile
    joined: tuple[Block, ...] = ()  # of keys in parts, which are the first dimension: what makes a whole of the parts

    @property
    def root(self) -> Block:
        return self.values or self.owner

    @property
    def parts(self) -> int:
        """How many parts the keys are in."""
        return self.scores.ranges[self.iters[self.scores.name][0]] if self.joined else 1

    @property
    def join(self) -> Block | None:
        """The sum of what the parts' rows weigh."""
        weighed = {b.writes[0].buffer for b in self.results}
        return next((b for b in self.joined if b.reduction and weighed & b.buffers_read), None)

    @property
    def followed(self) -> dict[str, str]:
        """The iterators of the second contraction, and what they are in the sum of its parts."""
        if self.join is None:
            return {}
        (result,) = self.results[-1].writes
        (read,) = [r for r in self.join.reads if r.buffer == result.buffer]
        return dict(zip(map(str, result.indices), map(str, read.indices), strict=True))

    def rows_of(self, name: str) -> str:
        """The iterator of Block `name` that goes over query rows."""
        return self.iters[name][self.query]


def _contractions(task: Task) -> list[Block]:
    return [b for b in task.blocks if isinstance(b, Block) and _contracts(b)]


def _contracts(block: Block) -> bool:
    """Whether a contraction's operands each move with something of their own: a mask added to rows does not."""
    moving = [variables(r) for r in block.reads]
    return is_contraction(block) and any(a - b and b - a for a in moving for b in moving)


def prepared(
    task: Task, target: Target, stages: list[Stage], tensorize: bool, parts: int = 1
) -> tuple[Task, dict[str, Unit]]:
    """The Task with the rows' common factor after the values, keys in `parts`, results of contractions in registers,
    operands that are contiguous in what becomes a vector, and reductions by lanes; and the contractions that intrinsics
    compute, if the Task may use any. Raises DoesNotApply if keys do not go in so many parts."""
    contractions = _contractions(task)
    if not contractions or len(contractions) > 2 or not _reduced(task, contractions):
        return task, {}
    for contraction in contractions[1:]:
        for buffer in contraction.buffers_read:
            for block in [b for b in task.blocks if isinstance(b, Block) and b.writes[0].buffer == buffer]:
                with suppress(DoesNotApply):
                    task = inlined(applied(task, stages, "defer", block=block.name), stages)
    if parts > 1:
        task = applied(task, stages, "online", block=_peak(task), count=parts)
        contractions = _contractions(task)
    for name in [b.name for b in contractions]:
        block = _block(task, name)
        buffer, consumers = block.writes[0].buffer, consumers_of(task, block)
        plain = len(consumers) == 1 and not consumers[0].reduction and reads_plainly(consumers[0], buffer) is not None
        if not plain or buffer in task.outputs:
            task = applied(task, stages, "cache_write", block=name)
    vectors = dict(_vectors(task, [b.name for b in contractions]))
    units = {n: unit_of(task, _block(task, n), v, target) for n, v in vectors.items()} if tensorize else {}
    units = units if all(units.values()) else {}  # a single one gains less than it costs to change in between
    for name in vectors:
        if (unit := units.get(name)) is None:
            task = _unrounded(task, name, stages)
        elif unit.stores_accumulators:
            task = _accumulators_stored(task, name, stages)
    chosen = dict[str, Unit]()
    for name, vector in vectors.items():
        if (unit := units.get(name)) is not None:
            task, chosen[name] = _packed(task, name, unit, target, stages)
            continue
        block = _block(task, name)
        for read in accesses(task, block)[0]:
            across = read.strides[vector] not in (0, 1) and _alone(read.load, vector)
            lanes = {vector} if across else {n for n, step in read.strides.items() if step == 1}
            place = next((d for d, i in enumerate(read.load.indices) if lanes & variables(i)), -1)
            wide = _widened(task, block, read)
            if across or wide:
                args: dict[str, str | int] = {"dtype": wide} if wide else {}
                args |= {"buffer": read.load.buffer, "innermost": place}
                task = _in_parts(applied(task, stages, "cache_read", block=name, **args), name, stages)
    return lanes_split(task, target, stages, [b.name for b in contractions]), chosen


def _alone(read: Load, vector: str) -> bool:
    """Whether a dimension is read by the `vector` iterator alone, or by it within parts."""
    forms = [linear(i) for i in read.indices if vector in variables(i)]
    return len(forms) == 1 and forms[0] is not None and forms[0].coefficient(Var(vector)) == 1


def _in_parts(task: Task, name: str, stages: list[Stage]) -> Task:
    """The Task with copies that contraction `name` reads part by part stored so."""
    for read in _block(task, name).reads:
        for dim, index in enumerate(read.indices):
            if len(variables(index)) > 1:
                with suppress(DoesNotApply):
                    task = applied(task, stages, "factor", block=name, buffer=read.buffer, dim=dim)
    return task


def _unrounded(task: Task, name: str, stages: list[Stage]) -> Task:
    """The Task with locals stored in the dtype that contraction `name` casts them to, because it runs on plain vectors.
    Mere roundings are inlined."""
    for e in [e for b in _block(task, name).body for e in walk(b)]:
        if isinstance(e, Op) and e.dtype and isinstance(e.args[0], Load):
            with suppress(DoesNotApply):
                task = applied(task, stages, "widen", buffer=e.args[0].buffer, dtype=e.dtype)
                task = _inlined(task, e.args[0].buffer, stages)
    return task


def _inlined(task: Task, buffer: str, stages: list[Stage]) -> Task:
    """The Task without `buffer`, if that is a mere copy."""
    for block in [b for b in task.blocks if isinstance(b, Block) and b.writes[0].buffer == buffer]:
        if isinstance(block.body[0], Load):
            with suppress(DoesNotApply):
                task = applied(task, stages, "inline", block=block.name)
    return task


def _accumulators_stored(task: Task, name: str, stages: list[Stage]) -> Task:
    """A copy takes the sums of contraction `name` to memory; cheap maps of what is there are computed wherever their
    results are read: that is less than storing them."""
    consumers = consumers_of(task, _block(task, name))
    if not isinstance(consumers[0].body[0], Load) or consumers[0].writes[0].buffer in task.outputs:
        task = applied(task, stages, "cache_write", block=name)
        consumers = consumers_of(task, _block(task, name))
    buffer, again = consumers[0].writes[0].buffer, True
    while again:
        again = False
        for block in task.blocks:
            if not isinstance(block, Block) or block.reduction or buffer not in block.buffers_read:
                continue
            operations = [e for b in block.body for e in walk(b) if isinstance(e, Op)]
            if len(operations) <= MOST_OPERATIONS and all(e.name in CHEAP for e in operations):
                with suppress(DoesNotApply):
                    task, again = applied(task, stages, "inline", block=block.name), True
                    break
    return task


def _packed(task: Task, name: str, unit: Unit, target: Target, stages: list[Stage]) -> tuple[Task, Unit]:
    """Contraction `name` with a copy of the operand that moves with its columns: whole vectors, and whole steps of the
    reduction; and its unit then."""
    buffer = unit.packed[1]
    task = applied(task, stages, "cache_read", block=name, buffer=buffer)
    for made in [b for b in task.blocks if isinstance(b, Block) and b.writes[0].buffer == buffer]:
        with suppress(DoesNotApply):
            task = applied(task, stages, "inline", block=made.name)
    for iterator, extent in unit.lengths().items():
        task = applied(task, stages, "lengthen", block=name, iter=iterator, extent=extent)
    block = _block(task, name)
    (read,) = [r for r in block.reads if unit.vector in variables(r)]
    dim, whole = read.indices.index(Var(unit.vector)), -(-block.ranges[unit.vector] // unit.lanes) * unit.lanes
    if whole > block.ranges[unit.vector]:
        task = applied(task, stages, "extend", buffer=read.buffer, dim=dim, extent=whole)
    wide = tuple(replace(i, extent=whole) if i.name == unit.vector else i for i in block.iters)
    again = unit_of(task, replace(block, iters=wide), unit.vector, target)
    assert again is not None
    return task, again


def _widened(task: Task, block: Block, read: Access) -> str:
    """The dtype to which `block` casts an input of the Task, if the reuse of its elements pays for a copy; else ""."""
    again = prod(i.extent for i in block.iters if read.strides[i.name] == 0)
    if again < LEAST_READS or read.load.buffer not in task.inputs:
        return ""
    dtypes = [e.dtype for b in block.body for e in walk(b) if isinstance(e, Op) and e.args[0] == read.load and e.dtype]
    return dtypes[0] if dtypes else ""


def _block(task: Task, name: str) -> Block:
    return next(b for b in task.blocks if isinstance(b, Block) and b.name == name)


def _peak(task: Task) -> str:
    """The Block of the maximum of each row. Raises DoesNotApply if there is none."""
    peaks = [b.name for b in task.blocks if isinstance(b, Block) and b.aggregation == "max"]
    if not peaks:
        raise DoesNotApply("rows have no maximum")
    return peaks[0]


def _reduced(task: Task, contractions: Sequence[Block]) -> list[Block]:
    """The reductions between the contractions."""
    return [b for b in task.blocks if isinstance(b, Block) and b.reduction and b not in contractions]


def _vectors(task: Task, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The vector iterator of each contraction: of the first what its rows are reduced over, of the second what the
    weights do not have."""
    first, *others = (b for b in task.blocks if isinstance(b, Block) and b.name in names)
    rows = _rows_of(task, first)
    if rows is not None:
        yield first.name, rows[0][rows[1]]
    for block in others:
        if (width := width_of(task, block)) is not None:
            yield block.name, width


def _rows_of(task: Task, scores: Block) -> tuple[tuple[str, ...], int] | None:
    """The scores' iterator for each dimension of the rows, and the dimension that is reduced over."""
    consumers = consumers_of(task, scores)
    if not consumers:
        return None
    names = _iterators(scores, consumers[0])
    if names is None:
        return None
    from_scores = {consumers[0].writes[0].buffer}
    for block in task.blocks[task.blocks.index(consumers[0]) + 1 :]:
        if not isinstance(block, Block):
            return None
        for read in block.reads:
            if read.buffer in from_scores and len(read.indices) == len(names):
                if block.reduction and not _contracts(block):
                    over = [d for d, i in enumerate(read.indices) if variables(i) & {i.name for i in block.reduction}]
                    return (names, over[0]) if len(over) == 1 and names[over[0]] else None
                from_scores |= {w.buffer for w in block.writes}
    return None


def _iterators(scores: Block, consumer: Block) -> tuple[str, ...] | None:
    """The contraction's iterator for each dimension of what its consumer writes."""
    plain = reads_plainly(consumer, scores.writes[0].buffer)
    if plain is None:
        return None
    own = {name: scores.writes[0].indices[d] for d, name in plain.items()}
    iters = [own.get(str(i)) for i in consumer.writes[0].indices]
    return tuple(i.name if isinstance(i, Var) else "" for i in iters)


def width_of(task: Task, values: Block) -> str | None:
    """The iterator of the values alone that is contiguous in them, or the longest."""
    written = {w.buffer for b in task.blocks if isinstance(b, Block) for w in b.writes}
    weights = [r for r in values.reads if r.buffer in written and not _is_copy(task, r.buffer)]
    if len(weights) != 1:
        return None
    names = [i for i in values.spatial if i.extent > 1 and i.name not in variables(weights[0])]
    reads = [a for a in accesses(task, values)[0] if a.load != weights[0]]
    names.sort(key=lambda i: (all(a.strides[i.name] != 1 for a in reads), -i.extent))
    return names[0].name if names else None


def _is_copy(task: Task, buffer: str) -> bool:
    """Whether a Block that reads nothing but the Task's inputs writes the buffer."""
    writers = [b for b in task.blocks if isinstance(b, Block) and buffer in {w.buffer for w in b.writes}]
    return all(b.buffers_read <= {*task.inputs} for b in writers)


def roles_of(task: Task) -> Roles | None:
    """What the Blocks of a prepared Task are for; None if it has other ones."""
    contractions = _contractions(task)
    blocks = [b for b in task.blocks if isinstance(b, Block)]
    if not 1 <= len(contractions) <= 2 or len(blocks) < len(task.blocks) or any(len(b.writes) > 1 for b in blocks):
        return None
    scores, values = contractions[0], contractions[1] if len(contractions) > 1 else None
    rows = _rows_of(task, scores)
    if rows is None or any(c.where for c in contractions):
        return None
    names, key = rows
    epilogue = tuple(consumers_of(task, scores))
    joined = _joined(blocks, contractions, key)
    results = tuple(b for b in _results(task, values) if b not in joined) if values is not None else ()
    before_all = [b for b in blocks[: blocks.index(scores)] if _is_copy(task, b.writes[0].buffer)]
    copies = [b for b in blocks if values is not None and b not in before_all and _packs(task, b, values)]
    between = [b for b in blocks if b not in (*contractions, *epilogue, *results, *joined, *before_all, *copies)]
    packed = [b for b in before_all if _packs(task, b, scores) or (values is not None and _packs(task, b, values))]
    iters = {b.name: n for b in between if (n := _positions(b, len(names), key)) is not None} | {scores.name: names}
    wide = [b for b in between if not b.reduction and iters.get(b.name, ("",) * len(names))[key]]
    wide = [b for b in wide if values is None or b.writes[0].buffer in values.buffers_read]
    if not wide or any(b.name not in iters for b in between):
        return None
    owner = wide[-1]
    if values is not None:
        (read,) = [r for r in values.reads if r.buffer == owner.writes[0].buffer]
        iters[values.name] = tuple(i.name if isinstance(i, Var) else "" for i in read.indices)
    query = _query(task, scores, values, iters, key)
    place = between.index(owner)
    roles = Roles(
        task=task,
        scores=scores,
        epilogue=epilogue,
        owner=owner,
        before=tuple(between[:place]),
        after=tuple(between[place + 1 :]),
        values=values,
        results=results,
        packs=(*packed, *copies),
        others=tuple(b for b in before_all if b not in packed),
        iters=iters,
        key=key,
        query=-1 if query is None else query,
        joined=joined,
    )
    if query is None or not _sound(roles):
        return None
    return roles if roles.join is None else replace(roles, iters={**iters, roles.join.name: _of_join(roles)})


def _of_join(roles: Roles) -> tuple[str, ...]:
    """The iterators of the sum of the parts along the scores' dimensions."""
    assert roles.values is not None
    names = enumerate(roles.iters[roles.values.name])
    return tuple("" if d in (0, roles.key) else roles.followed.get(n, "") for d, n in names)


def _joined(blocks: Sequence[Block], contractions: Sequence[Block], key: int) -> tuple[Block, ...]:
    """What reduces over the parts of the keys, and all that follows from it; nothing where keys are whole: then
    reductions go along the keys."""
    joined, made = list[Block](), set[str]()
    for b in blocks if key else ():
        over = {Var(i.name) for i in b.reduction}
        if made & b.buffers_read or (b not in contractions and any({*r.indices[:1]} & over for r in b.reads)):
            joined.append(b)
            made |= {w.buffer for w in b.writes}
    return tuple(joined)


def _results(task: Task, values: Block) -> list[Block]:
    """The maps of the second contraction's result: its consumers, and those of a mere copy."""
    consumers = consumers_of(task, values)
    copied = (
        len(consumers) == 1
        and isinstance(consumers[0].body[0], Load)
        and consumers[0].writes[0].buffer not in task.outputs
    )
    return [*consumers, *consumers_of(task, consumers[0])] if copied else consumers


def _packs(task: Task, block: Block, contraction: Block) -> bool:
    """Whether the Block makes an operand of the contraction from inputs of the Task."""
    buffer = block.writes[0].buffer
    readers = [b for b in task.blocks if isinstance(b, Block) and buffer in b.buffers_read]
    return readers == [contraction] and not block.reduction and _is_copy(task, buffer)


def _positions(block: Block, rank: int, key: int) -> tuple[str, ...] | None:
    """The Block's iterator for each dimension of the rows: from what it reads or writes whole, or row by row."""
    for load in (*block.writes, *block.reads):
        indices = [i.name if isinstance(i, Var) else "" for i in load.indices]
        if len(indices) == rank and {i.name for i in block.spatial if i.extent > 1} <= set(indices):
            return tuple(indices)
    for load in (*block.writes, *block.reads):
        indices = [i.name if isinstance(i, Var) else "" for i in load.indices]
        if len(indices) == rank - 1:
            return (*indices[:key], "", *indices[key:])
    return None


def _query(
    task: Task, scores: Block, values: Block | None, iters: Mapping[str, tuple[str, ...]], key: int
) -> int | None:
    """The last dimension along which one head's keys and values stay the same."""
    names = iters[scores.name]
    keyed = [r for r in scores.reads if names[key] in variables(r)]
    for d in reversed(range(len(names))):
        if d == key or not names[d] or scores.ranges[names[d]] == 1:
            continue
        if any(names[d] in variables(r) for r in keyed):
            continue
        if values is not None:
            own = iters[values.name][d]
            if sum(own in variables(r) for r in values.reads) != 1:
                continue
        return d
    return None


def _sound(roles: Roles) -> bool:
    """Whether every Block that works on one row serves the owner, or follows from it, and outputs are written by the
    last Blocks alone."""
    inner = (*roles.before, roles.owner, *roles.after)
    reads = {b.name: b.buffers_read for b in inner}
    made = {roles.owner.writes[0].buffer}
    for b in roles.after:
        if not reads[b.name] & made:
            return False
        made |= {w.buffer for w in b.writes}
    if not all(any(b.writes[0].buffer in reads[c.name] for c in inner) for b in roles.before):
        return False
    last = {b.name for b in ((roles.joined or roles.results)[-1:] if roles.values is not None else (roles.owner,))}
    writing = {b.name for b in roles.task.blocks if isinstance(b, Block) and b.writes[0].buffer in roles.task.outputs}
    whole = {b.name for b in (*roles.before, roles.owner) if roles.iters[b.name][roles.key]}
    return last <= writing <= last | whole and not roles.root.where
