"""Whether an intrinsic computes what a Block does (TensorIR, section 4.2), and how the Block has to be cut for it.

First the expressions, without indices: the Block's body has to be the semantics' body, operands for operands. Then the
iterators, by characteristic vector: chi(v) says which operands v indexes. Block iterators with the chi of an iterator
of the intrinsic are its group; the others (batches, groups of channels, rows of a dot product) stay loops around it.

    C[n, o, h, w] += X[n, c, h + r, w + s] * W[o, c, r, s]     over  C[i] += A[k] * B[i, k], i:16 k:4
    i: o (C and B)    k: c, r, s (A and B)    loops: n, h, w (C and A)

TensorIR fuses all of a group, which needs a copy of every operand. Here a tile takes only the `inner` iterator of a
group, the one along which operands lie densest in memory; the others, its `outer` iterators, stay loops too. Extents
that do not divide are padded: with zeros in packed operands, which makes the other operand's elements there count for
nothing (unless they are NaN or infinite).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from modelc.ir.affine import Linear, bounds, linear
from modelc.ir.block import Block, Buffer
from modelc.ir.expr import Expr, Load, Op, Var, loads, variables
from modelc.ir.layout import Layout
from modelc.space.analysis.access import flat_index
from modelc.target import Intrinsic
from modelc.target.binding import bindings


class CannotPack(Exception):
    """An operand cannot be stored as its intrinsic reads it: it has to be copied, element by element."""


@dataclass(frozen=True)
class Group:
    """The Block's iterators that become one iterator of the intrinsic.

    `inner` is cut in tiles of `tile`; `outer` are loops around, outermost first.
    """

    iterator: str  # of the intrinsic
    tile: int
    inner: str
    outer: tuple[str, ...]
    extent: int  # of `inner`
    reduce: bool

    @property
    def padded(self) -> int:
        """`extent` and what divides it into whole tiles."""
        return -(-self.extent // self.tile) * self.tile


@dataclass(frozen=True)
class Match:
    """A Block and the intrinsic that computes it.

    `operands` are the intrinsic's, with what they are in the Block. `strides` say how far one step along each
    dimension of an operand moves in its buffer as it is stored now; None where that is not even, and the operand has
    to be packed (see `packing`) or copied. `loops` are iterators of no group, reductions last. `guards` are conditions
    of the Block that differ within a tile: they have to be made away with (padding) or be applied to an operand.
    """

    intrinsic: Intrinsic
    block: Block
    buffers: Mapping[str, Buffer]
    operands: Mapping[str, Load]
    groups: tuple[Group, ...]
    loops: tuple[str, ...]
    strides: Mapping[str, tuple[int, ...] | None]
    guards: tuple[Expr, ...]

    def group(self, iterator: str) -> Group:
        """By the intrinsic's iterator."""
        return next(group for group in self.groups if group.iterator == iterator)

    @property
    def efficiency(self) -> float:
        """The part of the multiply-adds that is not padding."""
        return prod(g.extent / g.padded for g in self.groups)

    def packing(self, operand: str, together: Mapping[str, int] | None = None) -> Layout:
        """The layout in which a tile of the operand is consecutive, in the order the intrinsic reads.

        Dimensions, outermost first: loops and outer spatial iterators; counts of spatial tiles; outer reductions;
        counts of reduction tiles; for a spatial iterator in `together`, that many tiles which are read in a row; the
        intrinsic's own dimensions. For W[o, c, r, s] and together={"i": 4}: [o / 64][r][s][c / 4][4][16][4].
        Padding is zero. Raises CannotPack.
        """
        return _Packing(self, operand, together or {}).layout()


def matches(
    block: Block, buffers: Mapping[str, Buffer], intrinsic: Intrinsic, constants: Collection[str] = ()
) -> Iterator[Match]:
    """Every assignment of operands (a product matches both ways round) under which the iterators match. `constants` can
    be packed, so their storage does not matter."""
    semantics = intrinsic.semantics
    if block.aggregation != semantics.aggregation or any(loads(c) for c in block.where):
        return
    if any(loads(i) for x in (*block.writes, *block.reads) for i in x.indices):
        return
    dtypes = {name: buffer.dtype for name, buffer in buffers.items()}
    (write,), (body,) = block.writes, block.body
    accumulator = intrinsic.accumulator
    if dtypes[write.buffer] != accumulator.dtype:
        return
    for bound in bindings(intrinsic, body, dtypes):
        way = _iterators(block, buffers, intrinsic, {accumulator.name: write, **bound}, constants)
        if way is not None:
            yield way


# --- iterators ------------------------------------------------------------------------------------------------------


def _iterators(
    block: Block,
    buffers: Mapping[str, Buffer],
    intrinsic: Intrinsic,
    operands: Mapping[str, Load],
    constants: Collection[str],
) -> Match | None:
    semantics = intrinsic.semantics
    names = [o.name for o in intrinsic.operands]
    pattern = {x.buffer: x for x in (*semantics.writes, *semantics.reads)}

    def chi(iterator: str, accesses: Mapping[str, Load]) -> tuple[bool, ...]:
        return tuple(iterator in variables(accesses[name]) for name in names)

    flats = {
        name: linear(flat_index(buffers[access.buffer], access, block.ranges)) for name, access in operands.items()
    }
    fixed = {n: flat for n, flat in flats.items() if operands[n].buffer not in constants}
    groups, grouped = [], set()
    for it in semantics.iters:
        members = [m.name for m in block.iters if chi(m.name, operands) == chi(it.name, pattern)]
        if not members:
            return None
        grouped.update(members)
        touching = [f for f in fixed.values() if f is None or any(m in variables(f.expr()) for m in members)]
        members.sort(key=lambda n: _moves(n, block.ranges, touching))  # of equals, the Block's order
        *outer, inner = members
        groups.append(Group(it.name, it.extent, inner, tuple(outer), block.ranges[inner], it.reduce))
    around = [i for i in block.iters if i.name not in grouped]
    summed = sorted((i.name for i in around if i.reduce), key=lambda n: _moves(n, block.ranges, fixed.values()))
    loops = (*(i.name for i in around if not i.reduce), *summed)
    inside = {g.inner for g in groups}
    guards = tuple(c for c in block.where if variables(c) & inside)
    by_name = {g.iterator: g for g in groups}
    strides: dict[str, tuple[int, ...] | None] = {}
    for operand in intrinsic.operands:
        steps = [
            None if (step := _step(by_name[d.iterator].inner, flats[operand.name])) is None else step * d.step
            for d in operand.digits
        ]
        strides[operand.name] = None if None in steps else tuple(s for s in steps if s is not None)
    return Match(intrinsic, block, buffers, operands, tuple(groups), loops, strides, guards)


def _moves(name: str, ranges: Mapping[str, int], flats: Iterable[Linear | None]) -> tuple[bool, bool, int]:
    """Sorts iterators so that those which move least in what they index come last."""
    moving = [flat for flat in flats if flat is not None and name in variables(flat.expr())]
    steps = [abs(flat.coefficient(Var(name))) for flat in moving]
    return ranges[name] > 1, all(_even(flat, name) for flat in moving), -min(steps, default=0)


def _even(flat: Linear, name: str) -> bool:
    """Whether each step of an iterator moves equally far."""
    return not any(name in variables(atom) for atom, _ in flat.terms if isinstance(atom, Op))


def _step(name: str, flat: Linear | None) -> int | None:
    """How far a step of an iterator moves; None if that is not one number."""
    return flat.coefficient(Var(name)) if flat is not None and _even(flat, name) else None


# --- packing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """A dimension on the way to the layout: an inner iterator, or the rest of a dimension of the tensor."""

    extent: int
    inner: str | None = None  # the Block's iterator that it is
    role: tuple[int, int] = (0, 0)  # where it goes: see Match.packing


class _Packing:
    """Works out the layout of one operand."""

    def __init__(self, match_: Match, operand: str, together: Mapping[str, int]):
        self.match, self.together = match_, together
        self.operand = match_.intrinsic.operand(operand)
        self.access = match_.operands[operand]
        self.buffer = match_.buffers[self.access.buffer]
        self.ranges = match_.block.ranges
        self.groups = [g for g in match_.groups if any(d.iterator == g.iterator for d in self.operand.digits)]
        self.inner = {g.inner for g in self.groups}

    def layout(self) -> Layout:
        layout, pieces = Layout(), list[_Piece]()
        for dim, index in enumerate(self.access.indices):
            layout, parts = self.cut(layout, len(pieces), index, self.buffer.shape[dim])
            pieces += parts
        for group in self.groups:
            layout, pieces = self.tiled(layout, pieces, group)
        order = sorted(range(len(pieces)), key=lambda k: pieces[k].role)
        return layout if order == list(range(len(order))) else layout.then("reorder", *order)

    def cut(self, layout: Layout, dim: int, index: Expr, extent: int) -> tuple[Layout, list[_Piece]]:
        """A dimension of the tensor (`dim` of the layout so far) as inner iterators and what is between them."""
        form = linear(index)
        names = sorted(variables(index) & self.inner)
        if not names:
            return layout, [self.uncut(index, extent)]
        if form is None or any(set(names) & variables(atom) for atom, _ in form.terms if isinstance(atom, Op)):
            raise CannotPack(f"{self.access} is not linear in {', '.join(names)}")
        names.sort(key=lambda n: -form.coefficient(Var(n)))
        borders: list[int] = []
        for name in names:
            step = form.coefficient(Var(name))
            self.apart(form, name, step)
            borders += [step * self.ranges[name], step]
        if any(b <= 0 or a % b for a, b in zip(borders, [*borders[1:], 1], strict=True)):
            raise CannotPack(f"{self.access} mixes {', '.join(names)}")
        whole = -(-extent // borders[0]) * borders[0]
        if whole != extent:
            layout = layout.then("pad", dim, 0, whole - extent)
        pieces, parts, before = [], [], whole
        for place, border in enumerate([*borders, 1]):
            part, before = before // border, border
            if place % 2:
                parts.append(part)
                pieces.append(_Piece(part, names[place // 2]))
            elif part > 1:
                parts.append(part)
                pieces.append(self.uncut(index, part))
        return (layout.then("split", dim, *parts[1:]) if len(parts) > 1 else layout), pieces

    def apart(self, form: Linear, name: str, step: int) -> None:
        """Checks that other terms of the index never carry into the digit that `name` is."""
        span = step * self.ranges[name]
        low = Linear(tuple((a, c) for a, c in form.terms if a != Var(name) and c % span), form.constant % span)
        limits = bounds(low.expr(), self.ranges)
        if step <= 0 or limits is None or limits[0] < 0 or limits[1] >= step:
            raise CannotPack(f"{self.access} mixes {name} with other iterators")

    def uncut(self, index: Expr, extent: int) -> _Piece:
        """A piece of a dimension that no tile cuts. It counts as a reduction if one moves through it."""
        reductions = {i.name for i in self.match.block.reduction}
        outer = [n for g in self.match.groups if g.reduce for n in g.outer]
        outer += [n for n in self.match.loops if n in reductions]
        used = (variables(index) - self.inner) & reductions
        rank = max((outer.index(n) + 1 for n in used if n in outer), default=0)
        return _Piece(extent, role=(2, rank) if used else (0, 0))

    def tiled(self, layout: Layout, pieces: list[_Piece], group: Group) -> tuple[Layout, list[_Piece]]:
        """A group's dimension as counts of tiles, tiles read in a row, and the operand's own dimensions."""
        places = [k for k, p in enumerate(pieces) if p.inner == group.inner]
        if len(places) != 1:
            raise CannotPack(f"{self.access} has no dimension of its own for {group.inner}")
        (at,) = places
        row = 1 if group.reduce else self.together.get(group.iterator, 1)
        whole = -(-group.extent // (group.tile * row)) * group.tile * row
        if whole != group.extent:
            layout = layout.then("pad", at, 0, whole - group.extent)
        place = self.match.groups.index(group)
        made = [_Piece(whole // (group.tile * row), role=(3 if group.reduce else 1, place))]
        if row > 1:
            made.append(_Piece(row, role=(4, place)))
        digits = [(k, d) for k, d in enumerate(self.operand.digits) if d.iterator == group.iterator]
        for k, digit in sorted(digits, key=lambda d: -d[1].step):
            made.append(_Piece(digit.extent, role=(5, k)))
        layout = layout.then("split", at, *(p.extent for p in made[1:]))
        return layout, [*pieces[:at], *made, *pieces[at + 1 :]]
