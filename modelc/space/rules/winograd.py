"""Winograd's minimal filtering F(m x m, r x r) as a derivation rule (Lavin and Gray, 2015); filters.py: the matrices.

A Block that slides a window of r taps along two spatial iterators with stride 1, or along one (windows.py), becomes

    pad      the input with its padding, large enough for whole tiles; one for each phase of a dilated window, whose
             taps read every d-th element (outputs d apart are a convolution without dilation), and one for each value
             of other iterators that say where windows begin (phases of a transposed convolution)
    rows     B^T d           (per tile of (m + r - 1) x (m + r - 1) inputs)
    columns  (B^T d) B
    the Block itself, now one product per point of the transformed tile: no window any more
    gather   A^T M
    scatter  (A^T M) A       m x m outputs per tile

and its constant operand becomes G g G^T when compiling. Multiplications fall by r^2 m^2 / (m + r - 1)^2, for r = 3 by
2.25 (m = 2), 3.24 (3), 4 (4), 4.59 (5), 5.06 (6), 5.44 (7), less what tiles reach beyond the edge: maps of 56, 28 and
14 rows are whole tiles of 7. Along one iterator it is F(m, r), by the square root of that; columns and scatter only
copy then.

Windows with a stride s slide with stride 1 along each of s phases of the input, every s-th element, with every s-th
tap. As sums over phases are sums of products too, the transformed tiles and kernels of all phases are multiplied and
added up like those of more channels, and transformed back once. A window of 3 taps and stride 2 has two in the one
phase and one, with a zero, in the other: 1.78 times fewer products (m = 8); one of 7 taps has four and three: 5.4 times
(m = 6).

Whole numbers that are summed in int32 stay whole: transformed tiles and kernels are int16, and results are shifted by
what the matrices were multiplied with to be whole. Only sizes are taken that are exact (windows.py).

All else is in float32, whatever input and kernel are stored as. Rounding errors grow with m: to about 1e-6 (m = 2),
1e-5 (m = 6) and 3e-5 (m = 7) of the largest output, if 256 channels are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Var, cast, op, select, substitute, variables
from modelc.ir.layout import Layout, stored_in
from modelc.space.rules.filters import ALONE, Transform, transform, whole_transform
from modelc.space.rules.rule import DoesNotApply, Sums, exchanged, fresh, reindexed, replaced, sole_consumer
from modelc.space.rules.sums import matrix_times
from modelc.space.rules.windows import Window, Windows, tile_sizes, windows

# tile rows and columns, points of a transformed tile and of a tile, rows and columns of phases by dilation, by stride
_ITERATORS = ("th", "tw", "e", "f", "ti", "tj", "hp", "wp", "hs", "ws")


def winograd_rule(task: Task, block: str, m: int) -> Task:
    """`task` with Block `block` computed by F(m x m, r x r). Raises DoesNotApply."""
    anchor = task.block(block)
    slid = windows(task, anchor) if isinstance(anchor, Block) else None
    if slid is None or not isinstance(anchor, Block):
        raise DoesNotApply(f"block {block} has no window of so few taps")
    if m not in (every := tile_sizes(anchor, slid)):
        raise DoesNotApply(f"there is no F({m}, {slid.taps}); m is one of {', '.join(map(str, every)) or 'none'}")
    first, read = sole_consumer(task, anchor)
    if not all(isinstance(i, (Var, Const)) for i in anchor.writes[0].indices):
        raise DoesNotApply(f"block {block} does not write its iterators plainly")
    return _Winograd(task, anchor, first, read, slid, m).task()


def error_bound(task: Task, block: str, m: int) -> float:
    """By how much an element of F(m x m, r x r) may differ from the exact sum, times the largest input times the
    largest kernel element (magnitudes), in float32; 0 of whole numbers.

    To first order: every rounding is at most u = 2^-24 of what |A|^T [(|G| g |G|^T) * (|B|^T d |B|)] |A| gives for
    g = d = 1, summed over the other reduction iterators (Higham, Accuracy and Stability, section 3.5). There are one
    for each term of each sum; the kernel is transformed in float64, and rounded once.
    """
    anchor = task.block(block)
    slid = windows(task, anchor) if isinstance(anchor, Block) else None
    assert slid is not None and isinstance(anchor, Block)
    if slid.largest is not None:
        return 0.0
    summed = prod(i.extent for i in anchor.reduction if i.name not in {w.tap for w in slid.both})
    summed *= prod(w.stride for w in slid.both)
    matrices = transform(m, slid.taps)
    data, kernel, output = (np.abs(np.array(x)) for x in (matrices.input, matrices.kernel, matrices.output))
    grown = output @ (kernel.sum(axis=1) * data.sum(axis=1))  # along one iterator: along both is the product of both
    terms = [len(slid.both) * int(np.count_nonzero(x, axis=1).max()) for x in (data, output)]
    return float(grown.max() ** len(slid.both) * summed * (sum(terms) + summed + 1) * 2.0**-24)


@dataclass(frozen=True)
class _Side:
    """One of the two ways that tiles lie side by side, along a window or (for what has but one) along nothing: the
    iterators over tiles, over points of a transformed tile and over elements of a tile, so many `tiles`, and the
    matrices."""

    window: Window | None
    tile: str
    point: str
    element: str
    tiles: int
    transform: Transform

    @property
    def m(self) -> int:
        return len(self.transform.output)

    @property
    def points(self) -> int:
        return len(self.transform.input)

    @property
    def over_tiles(self) -> Iter:
        return Iter(self.tile, self.tiles)

    @property
    def of_results(self) -> list[Iter]:
        return [self.over_tiles, Iter(self.element, self.m)]

    def at(self, offset: Expr) -> Expr:
        """Where the element that lies `offset` behind a tile's first is."""
        return op("add", op("mul", Var(self.tile), self.m), offset)


class _Winograd:
    """Writes out the Blocks of one application; the attributes are names that they share. `first` is the anchor's
    consumer, which reads its results as `read`."""

    def __init__(self, task: Task, anchor: Block, first: Block, read: Load, slid: Windows, m: int):
        self.old, self.anchor, self.first, self.slid = task, anchor, first, slid
        self.names_in_first = {
            str(own): index for own, index in zip(anchor.writes[0].indices, read.indices, strict=True)
        }
        self.read = read
        self.data, self.kernel = slid.data, slid.kernel
        taken = {i.name for b in task.blocks if isinstance(b, Block) for i in b.iters}
        suffix = ""
        while taken & {name + suffix for name in _ITERATORS}:
            suffix += "_"
        th, tw, e, f, i, j, *phases = (name + suffix for name in _ITERATORS)
        ranges, both, matrices = anchor.ranges, slid.both, transform_of(slid, m)
        self.transformed, self.summed = ("float32", "float32") if slid.largest is None else ("int16", "int32")
        tiles = [-(-ranges[w.spatial] // (w.dilation * m)) for w in both]
        high = _Side(slid.high, th, e, i, tiles[0], matrices)
        wide = _Side(slid.wide, tw, f, j, tiles[1], matrices) if slid.wide else _Side(None, tw, f, j, 1, ALONE)
        self.sides = (high, wide)
        self.phase = {w.spatial: Iter(n, w.dilation) for n, w in zip(phases[:2], both, strict=False) if w.dilation > 1}
        self.phases = tuple(self.phase.values())
        self.strided = {w.spatial: Iter(n, w.stride) for n, w in zip(phases[2:], both, strict=False) if w.stride > 1}
        moved = [i for i in anchor.spatial if any(i.name in variables(w.offset) for w in both)]
        self.own = (*self.phases, *moved, *self.strided.values())  # what has tiles of its own
        self.along = {w.spatial for w in both}
        self.weighted = [i for i in anchor.spatial if i.name in slid.choosing(anchor)]  # what has a kernel of its own
        self.low, self.shape = self.extents()

    def names(self, letter: str, count: int) -> list[str]:
        """Names of iterators beside those of what has tiles of its own."""
        taken, every = {i.name for i in self.own}, (f"{letter}{chr(97 + k)}" for k in range(26))
        return [name for name in every if name not in taken][:count]

    def task(self) -> Task:
        old, anchor, (high, wide) = self.old, self.anchor, self.sides
        pad, padded = self.pad()
        windowed = [w.input_dim for w in self.slid.both]
        outer = [d for d in range(len(self.data.indices)) if d not in windowed]
        names = self.names("w", len(outer))
        before = len(self.own)
        iters = [*self.own, *(Iter(n, padded.shape[before + d]) for n, d in zip(names, outer, strict=True))]
        lead = [i.extent for i in iters]
        tiles = [side.over_tiles for side in self.sides]
        at = [Var(i.name) for i in (*iters, *tiles)]

        def tile(*offsets: Expr) -> Load:
            index: list[Expr] = [Const(0)] * len(self.data.indices)
            for d, n in zip(outer, names, strict=True):
                index[d] = Var(n)
            for side, offset in zip(self.sides, offsets, strict=True):
                if side.window is not None:
                    index[side.window.input_dim] = side.at(offset)
            return Load(padded.name, (*(Var(i.name) for i in self.own), *index))

        half, whole = fresh(self.old, "half"), fresh(self.old, "tiles")
        arranged = self.tile_layout(padded, [*range(before), *(before + d for d in (*outer, *windowed))])
        rows = Block(
            fresh(self.old, "rows"),
            (*iters, *tiles, Iter(wide.element, wide.points)),
            tuple(Load(half, (Const(e), Var(wide.element), *at)) for e in range(high.points)),
            matrix_times(
                high.transform.input,
                [tile(Const(i), Var(wide.element)) for i in range(high.points)],
                self.transformed,
            ),
        )
        columns = Block(
            fresh(self.old, "columns"),
            (*iters, *tiles, Iter(high.point, high.points)),
            tuple(Load(whole, (Var(high.point), Const(f), *at)) for f in range(wide.points)),
            matrix_times(
                wide.transform.input,
                [Load(half, (Var(high.point), Const(j), *at)) for j in range(wide.points)],
                self.transformed,
            ),
        )
        product, sums = self.product(whole, outer)
        parts, result = fresh(self.old, "parts"), fresh(self.old, "result")
        others = [*self.phases, *(i for i in anchor.spatial if i.name not in self.along)]
        stored_out = self.result_layout([*(i.name for i in others), *(w.spatial for w in self.slid.both)])
        sums = replace(sums, layout=stored_out)
        spot = [Var(i.name) for i in (*others, *tiles)]
        gather = Block(
            fresh(self.old, "gather"),
            (*others, *tiles, Iter(wide.point, wide.points)),
            tuple(Load(parts, (Const(i), Var(wide.point), *spot)) for i in range(high.m)),
            self.results(high, [Load(sums.name, (Const(e), Var(wide.point), *spot)) for e in range(high.points)]),
        )
        scatter = Block(
            fresh(self.old, "scatter"),
            (*others, *tiles, Iter(high.element, high.m)),
            tuple(Load(result, (Var(high.element), Const(j), *spot)) for j in range(wide.m)),
            self.results(wide, [Load(parts, (Var(high.element), Const(f), *spot)) for f in range(wide.points)]),
        )
        shapes = tuple(i.extent for i in (*others, *tiles))
        every = (high.points, wide.points)
        kernel, transformed_shape = old.buffer(self.kernel.buffer), (*every, *lead, high.tiles, wide.tiles)
        new = (pad, rows, columns, product, gather, scatter)
        consumer = self.consumer(result)
        task = replaced(
            old,
            [consumer if b is self.first else b for b in exchanged(old, anchor, *new)],
            replace(kernel, dtype=self.transformed, shape=(*every, *self.kernel_shape()), layout=Layout()),
            padded,
            Buffer(half, self.transformed, transformed_shape, arranged),
            Buffer(whole, self.transformed, transformed_shape, arranged),
            sums,
            Buffer(parts, self.summed, (high.m, wide.points, *shapes), stored_out),
            Buffer(result, self.summed, (high.m, wide.m, *shapes), stored_out),
        )
        return replace(task, anchor=anchor.name)

    def results(self, side: _Side, values: Sequence[Expr]) -> tuple[Expr, ...]:
        """What the output's matrix makes of `values` along one side, less the factor that whole numbers have."""
        sums = matrix_times(side.transform.output, values, self.summed)
        bits = side.transform.divisor.bit_length() - 1
        return tuple(op("shr", x, Const(bits, self.summed)) for x in sums) if bits else sums

    def result_layout(self, names: Sequence[str]) -> Layout:
        """The layout of a buffer of (point, point, the anchor's iterators `names`...): points outermost, the rest in
        the order in which what the first consumer writes is stored."""
        own = {index: name for name, index in self.names_in_first.items()}
        (written, *_) = self.first.writes
        buffer = self.old.buffer(written.buffer)
        stored: list[str] = []
        for d in buffer.layout.permutation or range(len(buffer.shape)):
            form = linear(written.indices[d])
            terms = sorted(form.terms, key=lambda term: -term[1]) if form is not None else ()
            stored += [own[i] for i, _ in terms if i in own]
        ordered = [*(n for n in names if n not in stored), *(n for n in stored if n in names)]
        return self.points_first([names.index(n) for n in ordered])

    def tile_layout(self, like: Buffer, dims: Sequence[int]) -> Layout:
        """The layout of a buffer of (point, point, dims of `like`...): points outermost, the rest in `like`'s order."""
        order = like.layout.permutation or tuple(range(len(like.shape)))
        place = {d: k for k, d in enumerate(dims)}
        return self.points_first([place[d] for d in order if d in place])

    def points_first(self, order: Sequence[int]) -> Layout:
        """The layout of a buffer of (point, point, dimensions..., and one of tiles along nothing, if there is such)."""
        alone = [len(order) + 2] if self.slid.wide is None else []
        return stored_in([0, 1, *alone, *(k + 2 for k in order)])

    def kernel_shape(self) -> tuple[int, ...]:
        shape = self.old.buffer(self.kernel.buffer).shape
        others = (n for d, n in enumerate(shape) if d not in self.slid.kernel_dims)
        return (*(i.extent for i in (*self.weighted, *self.strided.values())), *others)

    def extents(self) -> tuple[list[int], list[int]]:
        """Along each dimension of the input, where what is read of it begins, and how much that is; of the windows'
        dimensions, in one phase, and before what other iterators add."""
        low, shape = [], []
        for index, extent in zip(self.data.indices, self.old.buffer(self.data.buffer).shape, strict=True):
            limits = bounds(index, self.anchor.ranges)
            if limits is None:
                raise DoesNotApply(f"index {index} has no bounds")
            whole = limits[0] >= 0 and limits[1] < extent
            low.append(0 if whole else limits[0])
            shape.append(extent if whole else limits[1] - limits[0] + 1)
        for side in self.sides:
            if side.window is not None:
                low[side.window.input_dim] = side.window.start
                shape[side.window.input_dim] = side.tiles * side.m + self.slid.taps - 1
        return low, shape

    def pad(self) -> tuple[Block, Buffer]:
        """The copy of the input that whole tiles are read from [what has tiles of its own..., dimensions...]."""
        source = self.old.buffer(self.data.buffer)
        names = self.names("p", len(self.shape))
        iters = (*self.own, *(Iter(n, x) for n, x in zip(names, self.shape, strict=True)))
        at: list[Expr] = [op("add", Var(n), low) for n, low in zip(names, self.low, strict=True)]
        for window in self.slid.both:
            d = window.input_dim
            within = op("add", self.read_by(window, Var(names[d])), self.low[d])
            at[d] = within if window.offset == Const(0) else op("add", within, window.offset)
        value: Expr = Load(source.name, tuple(at))
        value = value if source.dtype == self.transformed else cast(self.transformed, value)
        for index, extent in reversed(list(zip(at, source.shape, strict=True))):
            limits = bounds(index, {i.name: i.extent for i in iters})
            if limits is None or limits[1] >= extent:
                value = select(op("lt", index, extent), value, Const(0, self.transformed))
            if limits is None or limits[0] < 0:
                value = select(op("ge", index, 0), value, Const(0, self.transformed))
        name = fresh(self.old, f"{source.name}_padded")
        written = Load(name, tuple(Var(i.name) for i in iters))
        block = Block(fresh(self.old, f"pad_{source.name}"), iters, (written,), (value,))
        order, before = source.layout.permutation or range(len(names)), len(self.own)
        layout = stored_in([*range(before), *(before + d for d in order)])
        return block, Buffer(name, self.transformed, tuple(i.extent for i in iters), layout)

    def product(self, whole: str, outer: Sequence[int]) -> tuple[Block, Buffer]:
        """The Block itself over transformed tiles: the windows are gone, the points of the tile are batch iterators, as
        phases are that outputs have; those of a stride are summed over."""
        anchor, taps = self.anchor, {w.tap for w in self.slid.both}
        spatial = [*self.phases, *(i for i in anchor.spatial if i.name not in self.along)]
        tiles = [side.over_tiles for side in self.sides]
        points = [Iter(side.point, side.points) for side in self.sides]
        strided = [replace(i, reduce=True) for i in self.strided.values()]
        reduction = [*strided, *(i for i in anchor.reduction if i.name not in taps)]
        batch, place = ([Var(i.name) for i in iters] for iters in (points, tiles))
        own, weighted = ([Var(i.name) for i in iters] for iters in (self.own, [*self.weighted, *strided]))
        index = [simplify(op("sub", self.data.indices[d], self.low[d]), anchor.ranges) for d in outer]
        data = Load(whole, (*batch, *own, *index, *place))
        dims = [i for d, i in enumerate(self.kernel.indices) if d not in self.slid.kernel_dims]
        kernel = Load(self.kernel.buffer, (*batch, *weighted, *dims))
        sums = fresh(self.old, "products")
        write = Load(sums, (*batch, *(Var(i.name) for i in spatial), *place))
        shape = tuple(i.extent for i in (*points, *spatial, *tiles))
        factors = (x if self.transformed == self.summed else cast(self.summed, x) for x in (data, kernel))
        iters = (*points, *spatial, *tiles, *reduction)
        return Block(anchor.name, iters, (write,), (op("mul", *factors),), "add"), Buffer(sums, self.summed, shape)

    def consumer(self, result: str) -> Block:
        """The consumer over tiles: h, w become th * m + i, tw * m + j (times the dilation, plus the phase); parts
        beyond the edge are left out."""
        block, names = self.first, self.names_in_first
        others = [names[i.name] for i in self.anchor.spatial if i.name not in self.along]
        along: dict[str, _Side] = {}
        tiled: dict[str, Expr] = {}
        inside: list[Expr] = []
        for side in self.sides:
            if side.window is not None:
                spatial = side.window.spatial
                name, index = str(names[spatial]), self.within_phase(spatial, side.at(Var(side.element)))
                along[name], tiled[name] = side, index
                if side.tiles * side.m * side.window.dilation > block.ranges[name]:
                    inside.append(op("lt", index, block.ranges[name]))
        elements, tiles = [Var(side.element) for side in self.sides], [Var(side.tile) for side in self.sides]
        new = Load(result, (*elements, *(Var(i.name) for i in self.phases), *others, *tiles))
        iters = [*self.phases, *(i for side in self.sides if side.window is None for i in side.of_results)]
        for it in block.iters:
            iters += along[it.name].of_results if it.name in along else [it]
        mapped = reindexed(block, self.read, new, tiled)
        return replace(mapped, iters=tuple(iters), where=(*mapped.where, *inside))

    def read_by(self, window: Window, index: Expr) -> Expr:
        """Where element `index` of what a phase reads is among all that is read along `window`."""
        strided = self.strided.get(window.spatial)
        if strided is None:
            return self.within_phase(window.spatial, index)
        return op("add", op("mul", index, strided.extent), Var(strided.name))

    def within_phase(self, spatial: str, index: Expr) -> Expr:
        """Where element `index` of a phase is among all outputs along an iterator."""
        phase = self.phase.get(spatial)
        return op("add", op("mul", index, phase.extent), Var(phase.name)) if phase else index


def transformed_kernel(task: Task, name: str, data: NDArray[Any], block: str, m: int) -> NDArray[Any] | Sums:
    """What constant `name` holds after winograd_rule(task, block, m): G g G^T for the kernel, of shape (points, points,
    what has a kernel of its own, other dimensions); any other constant as it is."""
    anchor = task.block(block)
    assert isinstance(anchor, Block)
    slid = windows(task, anchor)
    assert slid is not None
    if slid.kernel.buffer != name:
        return data
    g = np.array(transform_of(slid, m).kernel)
    second = g if len(slid.kernel_dims) > 1 else np.ones((1, 1))
    points, of_taps = (len(g), len(second)), (g.shape[1], second.shape[1])

    def taps() -> NDArray[Any]:
        dims = slid.kernel_dims
        whole = np.moveaxis(data.reshape(task.buffer(name).shape), dims, range(len(dims)))
        extents = whole.shape[: len(dims)]
        whole = np.pad(whole, [(0, 1)] * len(dims) + [(0, 0)] * (whole.ndim - len(dims)))  # for taps without an element
        places = [_elements(anchor, slid, w, extents[k]) for k, w in enumerate(slid.both)]
        return whole[places[0]][:, None] if len(dims) == 1 else whole[places[0][:, None], places[1][None]]

    dtype = "float32" if slid.largest is None else "int16"
    return Sums(np.kron(g, second).astype(np.float64), points, of_taps, dtype, data.dtype.name, taps)


def transform_of(slid: Windows, m: int) -> Transform:
    """The matrices of F(m, taps) for what is slid over."""
    matrices = transform(m, slid.taps) if slid.largest is None else whole_transform(m, slid.taps)
    assert matrices is not None
    return matrices


def _elements(anchor: Block, slid: Windows, window: Window, extent: int) -> NDArray[np.int64]:
    """Which element of the kernel, of `extent` along its dimension, each tap is; `extent` for a tap that has none
    [taps, what has a kernel of its own..., phases of strides...]."""
    choosing, strided = slid.choosing(anchor), [w for w in slid.both if w.stride > 1]
    shape = (slid.taps, *(anchor.ranges[n] for n in choosing), *(w.stride for w in strided))
    elements = np.empty(shape, np.int64)
    for at in np.ndindex(shape):
        phases = dict(zip((w.spatial for w in strided), at[1 + len(choosing) :], strict=True))
        tap = window.stride * at[0] + phases.get(window.spatial, 0)
        tap = slid.taps - 1 - tap if window.reversed else tap
        values: dict[str, Expr] = {n: Const(v) for n, v in zip((window.tap, *choosing), (tap, *at[1:]), strict=False)}
        limits = bounds(substitute(slid.kernel.indices[window.kernel_dim], values), {})
        assert limits is not None and limits[0] == limits[1]
        elements[at] = limits[0] if 0 <= limits[0] < extent else extent
    return elements
