"""Views: which values are Regions of others, without a copy.

    moved        a Transpose, Reshape, Slice, Split, Expand... whose output is an offset and strides in the source
    in place     a part of a Concat is written by its own Task where the Concat wants it
    adjacent     a Concat of parts that already lie side by side is a Region itself
    given away   a root of which a Concat's part (or an output) is a view that covers all of it is moved there instead

What is none of these is copied by a Task. All is decided on the Blocks' accesses, never on operator names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from modelc.ir.affine import Linear, linear, simplify
from modelc.ir.block import Block, compact_strides
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import Const, Expr, Load, Var, op
from modelc.ir.graph import Graph
from modelc.ir.layout import Layout, Layouts, channels_last, reordered
from modelc.partition.pieces import Piece, moved

NARROW = 8  # of fewer channels than this, a view is good enough where channels-last is wanted: it is read row by row

PROBES = 64  # points at which an index is looked at before it is evaluated everywhere


@dataclass(frozen=True)
class Region:
    """A view into `root`: logical strides and offset, in elements. A root that nothing is a view of may have a `layout`
    that does more than reorder; its strides say nothing then."""

    root: str
    offset: int
    strides: tuple[int, ...]
    layout: Layout | None = None

    def at(self, start: tuple[int, ...], sign: int = 1) -> Region:
        """The Region of the same strides that begins at `start`; before it, where `sign` is -1."""
        steps = sum(s * k for s, k in zip(self.strides, start, strict=True))
        return Region(self.root, self.offset + sign * steps, self.strides)


@dataclass(frozen=True)
class Part:
    """One part of a Concat: `block` copies `source` to `start` in `target`."""

    source: str
    target: str
    start: tuple[int, ...]
    block: Block


@dataclass(frozen=True)
class Copy:
    """A part that a Task has to copy: `name` is the Region of the target that it fills."""

    part: Part
    name: str


@dataclass(frozen=True)
class Views:
    """`places` of all values (and of the Regions that copies fill); `moves` are the values that need no Task because
    they are Regions of others, or are made of their parts; `copies` belong to the targets."""

    places: Mapping[str, Region]
    moves: frozenset[str]
    copies: tuple[Copy, ...]
    parts: Mapping[str, tuple[str, ...]]  # target -> the sources, or Regions, that make it up
    sources: Mapping[str, str]  # moved value -> what it is a view of


def find_views(graph: Graph, pieces: Iterable[Piece], layouts: Layouts) -> Views:
    """Decides where every value of the Graph lives."""
    return _Placer(graph, list(pieces), layouts).views()


def strides_of(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Logical strides of a compact tensor whose layout does no more than reorder."""
    order = layout.permutation or tuple(range(len(shape)))
    physical = compact_strides(tuple(shape[d] for d in order))
    strides = [0] * len(shape)
    for position, dim in enumerate(order):
        strides[dim] = physical[position]
    return tuple(strides)


def stored(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Layout, tuple[int, ...] | None]:
    """The canonical layout and physical strides (None: compact) of a strided Region: row-major if its strides fall,
    else channels-last, else by falling strides. Dimensions of one element get the strides that change nothing; those
    that repeat elements (stride 0) stay where they are."""
    rank = len(shape)
    if not prod(shape):
        return Layout(), None
    long = [d for d in range(rank) if shape[d] > 1 and strides[d]]
    orders = [tuple(range(rank))]
    if rank > 2:
        orders.append((0, *range(2, rank), 1))
    for order in orders:
        steps = [strides[d] for d in order if d in long]
        if all(a >= b for a, b in pairwise(steps)):
            break
    else:
        short = [d for d in range(rank) if d not in long]
        order = (*short, *sorted(long, key=lambda d: -strides[d]))
    layout = Layout() if order == tuple(range(rank)) else reordered(*order)
    physical = [strides[d] for d in order]
    for position in reversed(range(rank)):
        if shape[order[position]] == 1:
            inner = position + 1
            physical[position] = physical[inner] * shape[order[inner]] if inner < rank else 1
    explicit = tuple(physical)
    return layout, None if explicit == compact_strides(tuple(shape[d] for d in order)) else explicit


def same_region(shape: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two strides address the same elements."""
    return all(x == y for n, x, y in zip(shape, a, b, strict=True) if n > 1)


def is_compact(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    return same_region(shape, strides, compact_strides(shape))


# --- moved --------------------------------------------------------------------------------------------------------


def region_of(block: Block, read: Load, source: Region) -> Region | None:
    """What `block`, which copies `read` of a value at `source`, writes, as a Region of the same root; None if it is not
    one: the strides are not constant, or not positive."""
    flat: Expr = Const(source.offset)
    for index, stride in zip(read.indices, source.strides, strict=True):
        flat = op("add", flat, op("mul", index, stride))
    flat = simplify(flat, block.ranges)
    form = linear(flat)
    if form is None:
        return None
    if not all(isinstance(atom, Var) for atom, _ in form.terms):
        form = _probed(flat, block)
    if form is None or form.constant < 0 or any(c < 0 for _, c in form.terms):
        return None
    (write,) = block.writes
    strides = tuple(form.coefficient(i) if isinstance(i, Var) else 0 for i in write.indices)
    return Region(source.root, form.constant, strides)


def _probed(flat: Expr, block: Block) -> Linear | None:
    """The linear form of an index with divisions and remainders that add up to one, found by evaluating it: at the
    corners, then at points across the grid, and if these agree, everywhere."""
    long = [i for i in block.iters if i.extent > 1]
    zero = {i.name: np.asarray(0) for i in block.iters}
    base = int(evaluate(flat, zero, {}))
    steps = {i.name: int(evaluate(flat, {**zero, i.name: np.asarray(1)}, {})) - base for i in long}
    scattered = np.random.default_rng(0).integers(0, [i.extent for i in long], (PROBES, len(long)))
    points = {i.name: scattered[:, k] for k, i in enumerate(long)}
    grid = {i.name: g for i, g in zip(long, np.ogrid[tuple(slice(i.extent) for i in long)], strict=True)}
    for env in (points, grid):
        expected = base + sum(steps[n] * v for n, v in env.items())
        if not (evaluate(flat, {**zero, **env}, {}) == expected).all():
            return None
    return Linear(tuple((Var(n), c) for n, c in steps.items() if c), base)


def parts_of(piece: Piece) -> list[Part]:
    """The parts, if all that the Piece does is to copy whole values side by side into one value."""
    parts = []
    for block in piece.blocks:
        if not isinstance(block, Block) or block.aggregation != "assign" or block.where or len(block.writes) != 1:
            return []
        (write,), read = block.writes, block.body[0]
        over = tuple(Var(i.name) for i in block.iters)
        if not isinstance(read, Load) or read.indices != over:
            return []
        forms = [linear(i) for i in write.indices]
        start = []
        for form, v in zip(forms, over, strict=False):
            if form is None or form.terms != ((v, 1),):
                return []
            start.append(form.constant)
        if len(forms) != len(over):
            return []
        parts.append(Part(read.buffer, write.buffer, tuple(start), block))
    return parts if len({p.target for p in parts}) == 1 and (len(parts) > 1 or any(parts[0].start)) else []


class _Placer:
    """Places are computed on demand from three decisions: what is pinned to a Region of a Concat, what is given away to
    an output, and which Concats are Regions of what their parts live in."""

    def __init__(self, graph: Graph, pieces: list[Piece], layouts: Layouts) -> None:
        self.graph, self.pieces, self.layouts = graph, pieces, layouts
        self.shapes = {n: v.shape for n, v in graph.values.items()}
        self.constant = {n for n, v in graph.values.items() if v.data is not None}
        for p in pieces:
            self.shapes |= {n: p.locals[n].shape for n in p.tables}
            self.constant.update(p.tables)
        self.grown = {x: g for g in graph.grown for x in (g.past, g.present)}
        self.roots = {*graph.inputs, *graph.outputs, *self.constant}
        self.fixed = self.roots | {x for p in pieces if p.opaque for x in p.writes}
        self.moves: dict[str, tuple[Block, Load]] = {}
        self.parts: dict[str, list[Part]] = {}
        for p in (p for p in pieces if not p.alone):
            parts = parts_of(p)
            if parts and sum(t.block.points() for t in parts) == prod(self.shapes[parts[0].target]):
                self.parts[parts[0].target] = parts
                continue
            for block in p.blocks:
                read = moved(block)
                if read is not None and isinstance(block, Block) and read.buffer in self.shapes:
                    target = block.writes[0].buffer
                    if block.points() == prod(self.shapes.get(target, (0,))):
                        self.moves[target] = (block, read)
        self.viewers: dict[str, list[str]] = {}
        for name, (_, read) in self.moves.items():
            self.viewers.setdefault(read.buffer, []).append(name)
        self.pinned: dict[str, Part] = {}
        self.given: dict[str, tuple[str, Part | None]] = {}  # root -> (the view of it, where that is wanted)
        self.adjacent: dict[str, Part] = {}  # Concat -> a part that says where it is
        self.following: dict[str, list[str]] = {}  # value -> what is `given` or `adjacent` to it
        self.memo: dict[str, Region] = {}

    # --- where a value is -----------------------------------------------------------------------------------------

    def place(self, name: str) -> Region:
        waiting = [name]
        while waiting:
            last = waiting[-1]
            other = None if last in self.memo else self._beside(last)
            if other is not None and other not in self.memo:
                waiting.append(other)
                continue
            if last not in self.memo:
                self.memo[last] = self._placed(last)
            waiting.pop()
        return self.memo[name]

    def _beside(self, name: str) -> str | None:
        """The value whose place says where this one is."""
        if name in self.roots:
            return None
        if name in self.pinned:
            return self.pinned[name].target
        if name in self.given:
            view, part = self.given[name]
            return part.target if part else view
        if name in self.adjacent:
            return self.adjacent[name].source
        return self.moves[name][1].buffer if name in self.moves else None

    def _placed(self, name: str) -> Region:
        layout = self.layouts.get(name, Layout())
        if layout.primitives and layout.permutation is None:
            return Region(name, 0, compact_strides(self.shapes[name]), layout)
        if name in self.grown:
            grown = self.grown[name]
            return Region(grown.present, 0, compact_strides(grown.stored(self.shapes[name])))
        own = Region(name, 0, strides_of(self.shapes[name], layout))
        if name in self.roots:
            return own
        if name in self.pinned:
            return self.within(self.pinned[name])
        if name in self.given:
            view, part = self.given[name]
            there = self.place(view) if part is None else self.within(part)
            return Region(there.root, there.offset, own.strides)
        if name in self.adjacent:
            part = self.adjacent[name]
            return self.place(part.source).at(part.start, -1)
        return self.view(name) or own

    def within(self, part: Part) -> Region:
        """Where the part of a Concat belongs."""
        return self.place(part.target).at(part.start)

    def view(self, name: str) -> Region | None:
        """The Region that a moved value is; None if it has to be copied."""
        if name not in self.moves:
            return None
        block, read = self.moves[name]
        region = region_of(block, read, self.place(read.buffer))
        if region is None or not prod(self.shapes[name]):
            return None
        shape = self.shapes[name]
        wants = self.layouts.get(name)
        if wants is not None and wants == channels_last(len(shape)) and shape[1] >= NARROW and region.strides[1] != 1:
            return None
        return region

    def is_view(self, name: str) -> bool:
        """Whether the value was not stored for itself: it is a Region by its position in its source."""
        placed = name in self.pinned or name in self.given or name in self.roots
        return not placed and (name in self.adjacent or self.view(name) is not None)

    def forget(self, name: str) -> None:
        """Drops what is known of a value and of all that depends on it."""
        pending = [name]
        while pending:
            name = pending.pop()
            if self.memo.pop(name, None) is not None:
                pending += self.viewers.get(name, ())
                pending += [p.source for p in self.parts.get(name, ())]
                pending += self.following.get(name, ())

    # --- decisions ------------------------------------------------------------------------------------------------

    def views(self) -> Views:
        outputs = frozenset(self.graph.outputs)
        for piece in reversed(self.pieces):
            for name in piece.writes:
                if name in self.parts:
                    self.concatenated(name)
                elif name in self.moves and name in outputs:
                    self.give(name, None)
        copies = []
        made: dict[str, tuple[str, ...]] = {}
        for target, parts in self.parts.items():
            if target in self.adjacent:
                made[target] = tuple(p.source for p in parts)
                continue
            names = []
            for k, part in enumerate(parts):
                name = part.source
                if not self.at_home(part):
                    name = f"{target}#part{k}"
                    copies.append(Copy(part, name))
                names.append(name)
            made[target] = tuple(names)
        places = {n: self.place(n) for n in self.shapes}
        places |= {c.name: self.within(c.part) for c in copies}
        covered = {view for view, _ in self.given.values()}  # their source's root has been given to them
        moves = {n for n in self.moves if self.is_view(n) or n in covered}
        sources = {n: self.moves[n][1].buffer for n in moves}
        return Views(places, frozenset(moves | set(made)), tuple(copies), made, sources)

    def at_home(self, part: Part) -> bool:
        """Whether the part already is where the Concat wants it."""
        return self.lies_at(part, self.within(part))

    def lies_at(self, part: Part, there: Region) -> bool:
        here = self.place(part.source)
        same_begin = (here.root, here.offset) == (there.root, there.offset)
        return same_begin and same_region(self.shapes[part.source], here.strides, there.strides)

    def concatenated(self, target: str) -> None:
        parts = self.parts[target]
        placed = target in self.roots or target in self.pinned or target in self.given
        widest = max(parts, key=lambda p: prod(self.shapes[p.source]))
        if not placed and self.side_by_side(parts, widest):
            self.adjacent[target] = widest
            self.following.setdefault(widest.source, []).append(target)
            self.forget(target)
            return
        for part in parts:
            if not self.at_home(part) and not self.pin(part):
                self.give(part.source, part)

    def side_by_side(self, parts: list[Part], widest: Part) -> bool:
        """Whether all parts lie where a Concat wants them that is placed by its `widest` part."""
        whole = self.place(widest.source).at(widest.start, -1)
        return whole.root not in self.constant and all(self.lies_at(part, whole.at(part.start)) for part in parts)

    def free(self, name: str) -> bool:
        """Whether the value is a root of its own that could as well be elsewhere."""
        return name not in self.fixed and name not in self.pinned and name not in self.given and not self.is_view(name)

    def pin(self, part: Part) -> bool:
        """Lets the source be written in place, unless a view of it would have to be copied then."""
        name = part.source
        if not self.free(name):
            return False
        before = self.regions(name)
        self.pinned[name] = part
        self.forget(name)
        if self.regions(name) < before:
            del self.pinned[name]
            self.forget(name)
            return False
        return True

    def regions(self, name: str) -> int:
        """How many views there are of a value, and of views of it."""
        count, pending = 0, [name]
        while pending:
            views = [v for v in self.viewers.get(pending.pop(), ()) if self.is_view(v)]
            count += len(views)
            pending += views
        return count

    def give(self, name: str, part: Part | None) -> bool:
        """Moves the root of which `name` is a view, from the first to the last element in order, to where `name` is
        wanted: at `part`, or in a root of its own (None)."""
        if name not in self.moves or (part is not None and name in self.fixed):
            return False
        block, read = self.moves[name]
        at = region_of(block, read, self.place(read.buffer))
        if at is None or not self.free(at.root) or at.offset or at.root not in self.graph.values:
            return False
        shape = self.shapes[name]
        whole = prod(shape) == prod(self.shapes[at.root]) and is_compact(shape, at.strides)
        wanted = compact_strides(shape) if part is None else self.within(part).strides
        if not whole or not is_compact(shape, wanted):
            return False
        self.given[at.root] = (name, part)
        self.following.setdefault(part.target if part else name, []).append(at.root)
        self.forget(at.root)
        return True
