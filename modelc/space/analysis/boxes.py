"""Boxes: which elements of a buffer a Block touches over a part of its iteration space, and which part of it computes
the elements that others read. Closed forms on affine accesses; a base may move with loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from modelc.errors import InvalidIR
from modelc.ir.affine import bounds, linear, simplify, weighted
from modelc.ir.block import Block, Task
from modelc.ir.expr import Const, Expr, Load, Var, op, substitute, variables
from modelc.ir.sizes import is_sized, larger, most, same, smaller


@dataclass(frozen=True)
class Span:
    """Indices [base, base + extent): the base is an expression over loop variables."""

    base: Expr
    extent: int


Box = tuple[Span, ...]
Domain = Mapping[str, Span]  # of iterators: a part of a Block's iteration space


def whole(block: Block) -> dict[str, Span]:
    return {i.name: Span(Const(0), i.extent) for i in block.iters}


def box(access: Load, shape: Sequence[int], domain: Domain, ranges: Mapping[str, int]) -> Box:
    """The smallest box of indices into a buffer of `shape` that `access` touches over `domain`."""
    spans = (_span(index, size, domain, ranges) for index, size in zip(access.indices, shape, strict=True))
    return tuple(_within(span, size) for span, size in zip(spans, shape, strict=True))


def placed_domains(
    task: Task,
    block: Block,
    domain: Domain,
    placed: Collection[str],
    ranges: Mapping[str, int],
    padded: Mapping[str, Mapping[str, int]],
) -> tuple[dict[str, Domain], dict[str, Box]]:
    """What each Block `placed` inside a loop of `block` computes where `block` computes `domain`, and the box of each
    buffer that they write there.

    Consumers of `block` follow what it writes; for all others, what is read of them decides, last Block first; where
    nothing is read of one there (sums of a part, which are read when all parts are done), what it reads does. By Block
    and iterator, `padded` are tiles that are read whole, as far as there is something."""
    domains: dict[str, Domain] = {block.name: domain}
    boxes = _written(task, block, domain, ranges)
    order = [b for b in task.blocks if b.name in placed and b.name != block.name]
    later = {b.name for b in task.blocks[task.blocks.index(block) :]}
    for b in order:
        assert isinstance(b, Block)
        if b.name in later and any(r.buffer in boxes for r in b.reads):
            domains[b.name] = _consumer_domain(b, boxes)
            boxes |= _written(task, b, domains[b.name], ranges)
    aside = list[Block]()
    for b in reversed(order):
        if b.name in domains:
            continue
        assert isinstance(b, Block)
        wanted = _demand(task, b, domains, ranges, padded)
        if wanted is None:
            aside.append(b)
            continue
        domains[b.name] = _producer_domain(b, wanted)
        boxes |= {w.buffer: wanted for w in b.writes}
    for b in reversed(aside):
        if not any(r.buffer in boxes for r in b.reads):
            raise InvalidIR(f"block {b.name} is placed where nothing reads what it writes")
        domains[b.name] = _consumer_domain(b, boxes)
        boxes |= _written(task, b, domains[b.name], ranges)
    return domains, boxes


def _written(task: Task, block: Block, domain: Domain, ranges: Mapping[str, int]) -> dict[str, Box]:
    return {w.buffer: box(w, task.buffer(w.buffer).shape, domain, ranges) for w in block.writes}


def _demand(
    task: Task,
    producer: Block,
    domains: Mapping[str, Domain],
    ranges: Mapping[str, int],
    padded: Mapping[str, Mapping[str, int]],
) -> Box | None:
    """The union of what the Blocks of `domains` read there of what `producer` writes; None if they read nothing."""
    written = {w.buffer for w in producer.writes}
    readers = (b for b in map(task.block, domains) if isinstance(b, Block))
    demands = [
        box(
            read,
            task.buffer(read.buffer).shape,
            _in_tiles(domains[reader.name], padded.get(reader.name, {})),
            ranges,
        )
        for reader in readers
        for read in reader.reads
        if read.buffer in written
    ]
    return _union(demands, ranges) if demands else None


def _in_tiles(domain: Domain, tiles: Mapping[str, int]) -> Domain:
    """A domain of whole tiles."""
    return {n: Span(s.base, -(-s.extent // tiles.get(n, 1)) * tiles.get(n, 1)) for n, s in domain.items()}


def _producer_domain(producer: Block, wanted: Box) -> Domain:
    domain = whole(producer)
    for index, span in zip(producer.writes[0].indices, wanted, strict=True):
        if isinstance(index, Var):
            domain[index.name] = _within(_from_start(span), domain[index.name].extent)
        elif not isinstance(index, Const):
            raise InvalidIR(f"block {producer.name} cannot be placed in a loop: it writes at {index}")
    return domain


def _consumer_domain(consumer: Block, boxes: Mapping[str, Box]) -> Domain:
    domain = whole(consumer)
    for read in consumer.reads:
        for index, span in zip(read.indices, boxes.get(read.buffer, ()), strict=False):
            if isinstance(index, Var):
                domain[index.name] = _within(span, consumer.ranges[index.name])
    return domain


def _span(index: Expr, size: int, domain: Domain, ranges: Mapping[str, int]) -> Span:
    """The span of an index expression over `domain`; the whole dimension if it is not affine there."""
    form = linear(index)
    if form is None:
        return Span(Const(0), size)
    if not variables(index):
        return Span(index, 1)
    extent, terms = 1, list[tuple[Expr, int]]()
    for atom, c in form.terms:
        if isinstance(atom, Var):
            span = domain[atom.name]
        else:
            values = {name: s.base for name, s in domain.items()}
            mentioned = [s for name, s in domain.items() if name in variables(atom)]
            limits = bounds(atom, {name: most(s.extent) for name, s in domain.items()})
            if all(most(s.extent) <= 1 for s in mentioned):
                span = Span(simplify(substitute(atom, values), ranges), 1)
            elif limits is not None and all(s.base == Const(0) for s in mentioned):
                span = Span(Const(limits[0]), limits[1] - limits[0] + 1)
            else:
                return Span(Const(0), size)
        terms.append((span.base if c > 0 else op("add", span.base, span.extent - 1), c))
        extent += abs(c) * (span.extent - 1)
    return Span(weighted(form.constant, terms, ranges), extent)


def _within(span: Span, size: int) -> Span:
    """A span without what lies past the end of its dimension: a condition keeps the block from going there."""
    return Span(span.base, smaller(span.extent, size - int(span.base.value))) if isinstance(span.base, Const) else span


def _from_start(span: Span) -> Span:
    """A span without what lies before the start of its dimension, where that is known."""
    if isinstance(span.base, Const) and span.base.value < 0 and not is_sized(span.extent):
        return Span(Const(0), max(0, span.extent + int(span.base.value)))
    return span


def _union(boxes: Iterable[Box], ranges: Mapping[str, int]) -> Box:
    """The smallest box around several, whose bases have to lie constant distances apart."""
    first, *others = boxes
    for other in others:
        first = tuple(_joined(a, b, ranges) for a, b in zip(first, other, strict=True))
    return first


def _joined(a: Span, b: Span, ranges: Mapping[str, int]) -> Span:
    if a.base == b.base and same(a.extent, b.extent):
        return a
    gap = linear(simplify(op("sub", b.base, a.base), ranges))
    if gap is None or gap.terms:
        raise InvalidIR(f"spans at {a.base} and {b.base} have no constant distance: no common box")
    low = min(0, gap.constant)
    return Span(simplify(op("add", a.base, low), ranges), larger(a.extent, gap.constant + b.extent) - low)
