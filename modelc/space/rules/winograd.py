"""Winograd's minimal filtering F(m x m, r x r) as a derivation rule (Lavin and Gray, 2015); filters.py: the matrices.

A Block that slides a window of r taps along two spatial iterators with stride 1 (windows.py) becomes

    pad      the input with its padding, large enough for whole tiles; one for each phase of a dilated window, whose
             taps read every d-th element (outputs d apart are a convolution without dilation), and one for each value
             of other iterators that say where windows begin (phases of a transposed convolution)
    rows     B^T d           (per tile of (m + r - 1) x (m + r - 1) inputs)
    columns  (B^T d) B
    the Block itself, now one product per point of the transformed tile: no window any more
    gather   A^T M
    scatter  (A^T M) A       m x m outputs per tile

and its constant operand becomes G g G^T when compiling. Multiplications fall by r^2 m^2 / (m + r - 1)^2, for r = 3 by
2.25 (m = 2), 3.24 (3), 4 (4), 5.06 (6), less what tiles reach beyond the edge.

Windows with a stride s slide with stride 1 along each of s phases of the input, every s-th element, with every s-th
tap. As sums over phases are sums of products too, the transformed tiles and kernels of all phases are multiplied and
added up like those of more channels, and transformed back once. A window of 3 taps and stride 2 has two in the one
phase and one, with a zero, in the other: 1.72 times fewer products (m = 7); one of 7 taps has four and three: 4.8 times
(m = 5).

All of this is in float32, whatever input and kernel are stored as. Rounding errors grow with m: to about 1e-6 (m = 2)
and 2e-5 (m = 6) of the largest output, if 256 channels are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.block import AnyBlock, Block, Buffer, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Var, cast, op, select, substitute, variables
from modelc.ir.layout import Layout, stored_in
from modelc.space.rules.filters import sizes, transform
from modelc.space.rules.rule import DoesNotApply, combination
from modelc.space.rules.windows import Window, Windows, windows

KERNELS = 1 << 12  # that are transformed at once: what is between fits the caches
# tile rows and columns, points of a transformed tile and of a tile, rows and columns of phases by dilation, by stride
_ITERATORS = ("th", "tw", "e", "f", "ti", "tj", "hp", "wp", "hs", "ws")


def winograd_rule(task: Task, block: str, m: int) -> Task:
    """`task` with Block `block` computed by F(m x m, r x r). Raises DoesNotApply."""
    anchor = task.block(block)
    found = windows(task, anchor) if isinstance(anchor, Block) else None
    if found is None or not isinstance(anchor, Block):
        raise DoesNotApply(f"block {block} has no two windows of so few taps")
    if m not in sizes(found.taps):
        raise DoesNotApply(f"there is no F({m}, {found.taps}); m is one of {', '.join(map(str, sizes(found.taps)))}")
    later = task.blocks[task.blocks.index(anchor) + 1 :]
    (write,) = anchor.writes
    consumers = [b for b in later if isinstance(b, Block) and any(r.buffer == write.buffer for r in b.reads)]
    if write.buffer in task.outputs or len(consumers) != 1:
        raise DoesNotApply(f"what block {block} writes is not consumed in place")
    if not all(isinstance(i, (Var, Const)) for i in write.indices):
        raise DoesNotApply(f"block {block} does not write its iterators plainly")
    return _Winograd(task, anchor, consumers[0], found, m).task()


def error_bound(task: Task, block: str, m: int) -> float:
    """By how much an element of F(m x m, r x r) may differ from the exact sum, times the largest input times the
    largest kernel element (magnitudes), in float32.

    To first order: every rounding is at most u = 2^-24 of what |A|^T [(|G| g |G|^T) * (|B|^T d |B|)] |A| gives for
    g = d = 1, summed over the other reduction iterators (Higham, Accuracy and Stability, section 3.5). There are one
    for each term of each sum; the kernel is transformed in float64, and rounded once.
    """
    anchor = task.block(block)
    found = windows(task, anchor) if isinstance(anchor, Block) else None
    assert found is not None and isinstance(anchor, Block)
    summed = prod(i.extent for i in anchor.reduction if i.name not in {w.tap for w in found.both})
    summed *= prod(w.stride for w in found.both)
    matrices = transform(m, found.taps)
    data, kernel, output = (np.abs(np.array(x)) for x in (matrices.input, matrices.kernel, matrices.output))
    grown = np.outer(kernel.sum(axis=1), kernel.sum(axis=1)) * np.outer(data.sum(axis=1), data.sum(axis=1))
    terms = [2 * int(np.count_nonzero(x, axis=1).max()) for x in (data, output)]
    return float((output @ grown @ output.T).max() * summed * (sum(terms) + summed + 1) * 2.0**-24)


class _Winograd:
    """Writes out the Blocks of one application; the attributes are names that they share. `first` is the anchor's
    consumer."""

    def __init__(self, task: Task, anchor: Block, first: Block, found: Windows, m: int):
        self.old, self.anchor, self.first, self.found, self.m = task, anchor, first, found, m
        self.data, self.kernel, self.high, self.wide = found.data, found.kernel, found.high, found.wide
        self.transform = transform(m, found.taps)
        self.points = m + found.taps - 1
        taken = {i.name for b in task.blocks if isinstance(b, Block) for i in b.iters}
        suffix = ""
        while taken & {name + suffix for name in _ITERATORS}:
            suffix += "_"
        self.th, self.tw, self.e, self.f, self.i, self.j, *phases = (name + suffix for name in _ITERATORS)
        ranges, both = anchor.ranges, found.both
        self.rows, self.columns = (-(-ranges[w.spatial] // (w.dilation * m)) for w in both)
        self.phase = {w.spatial: Iter(n, w.dilation) for n, w in zip(phases[:2], both, strict=True) if w.dilation > 1}
        self.phases = tuple(self.phase.values())
        self.strided = {w.spatial: Iter(n, w.stride) for n, w in zip(phases[2:], both, strict=True) if w.stride > 1}
        moved = [i for i in anchor.spatial if any(i.name in variables(w.offset) for w in both)]
        self.own = (*self.phases, *moved, *self.strided.values())  # what has tiles of its own
        self.weighted = [i for i in anchor.spatial if i.name in found.choosing(anchor)]  # what has a kernel of its own
        self.low, self.shape = self.extents()

    def name(self, base: str) -> str:
        taken = {b.name for b in self.old.buffers} | {b.name for b in self.old.blocks}
        return base if base not in taken else f"{base}_w"

    def names(self, letter: str, count: int) -> list[str]:
        """Names of iterators beside those of what has tiles of its own."""
        taken, every = {i.name for i in self.own}, (f"{letter}{chr(97 + k)}" for k in range(26))
        return [name for name in every if name not in taken][:count]

    def task(self) -> Task:
        old, anchor = self.old, self.anchor
        dtype = "float32"
        pad, padded = self.pad()
        outer = [d for d in range(len(self.data.indices)) if d not in (self.high.input_dim, self.wide.input_dim)]
        names = self.names("w", len(outer))
        before = len(self.own)
        iters = [*self.own, *(Iter(n, padded.shape[before + d]) for n, d in zip(names, outer, strict=True))]
        lead = [i.extent for i in iters]
        tiles = [Iter(self.th, self.rows), Iter(self.tw, self.columns)]
        at = [Var(i.name) for i in (*iters, *tiles)]

        def tile(i: Expr, j: Expr) -> Load:
            index: list[Expr] = [Const(0)] * len(self.data.indices)
            for d, n in zip(outer, names, strict=True):
                index[d] = Var(n)
            index[self.high.input_dim] = op("add", op("mul", Var(self.th), self.m), i)
            index[self.wide.input_dim] = op("add", op("mul", Var(self.tw), self.m), j)
            return Load(padded.name, (*(Var(i.name) for i in self.own), *index))

        half, whole = self.name("half"), self.name("tiles")
        dims = [*outer, self.high.input_dim, self.wide.input_dim]
        arranged = self.tile_layout(padded, [*range(before), *(before + d for d in dims)])
        p = self.points
        rows = Block(
            self.name("rows"),
            (*iters, *tiles, Iter(self.j, p)),
            tuple(Load(half, (Const(e), Var(self.j), *at)) for e in range(p)),
            tuple(combination(row, [tile(Const(i), Var(self.j)) for i in range(p)]) for row in self.transform.input),
        )
        columns = Block(
            self.name("columns"),
            (*iters, *tiles, Iter(self.e, p)),
            tuple(Load(whole, (Var(self.e), Const(f), *at)) for f in range(p)),
            tuple(
                combination(row, [Load(half, (Var(self.e), Const(j), *at)) for j in range(p)])
                for row in self.transform.input
            ),
        )
        product, sums = self.product(whole, outer)
        parts, result = self.name("parts"), self.name("result")
        (write,) = anchor.writes
        others = [*self.phases, *(i for i in anchor.spatial if i.name not in (self.high.spatial, self.wide.spatial))]
        stored_out = self.result_layout([*(i.name for i in others), self.high.spatial, self.wide.spatial])
        sums = replace(sums, layout=stored_out)
        spot = [Var(i.name) for i in others] + [Var(self.th), Var(self.tw)]
        gather = Block(
            self.name("gather"),
            (*others, *tiles, Iter(self.f, p)),
            tuple(Load(parts, (Const(i), Var(self.f), *spot)) for i in range(self.m)),
            tuple(
                combination(row, [Load(sums.name, (Const(e), Var(self.f), *spot)) for e in range(p)])
                for row in self.transform.output
            ),
        )
        scatter = Block(
            self.name("scatter"),
            (*others, *tiles, Iter(self.i, self.m)),
            tuple(Load(result, (Var(self.i), Const(j), *spot)) for j in range(self.m)),
            tuple(
                combination(row, [Load(parts, (Var(self.i), Const(f), *spot)) for f in range(p)])
                for row in self.transform.output
            ),
        )
        shapes = tuple(i.extent for i in (*others, *tiles))
        buffers = [b for b in old.buffers if b.name not in (write.buffer, self.kernel.buffer)]
        kernel = old.buffer(self.kernel.buffer)
        at_kernel = old.buffers.index(kernel)
        buffers.insert(at_kernel, replace(kernel, dtype=dtype, shape=(p, p, *self.kernel_shape()), layout=Layout()))
        buffers += [
            padded,
            Buffer(half, dtype, (p, p, *lead, self.rows, self.columns), arranged),
            Buffer(whole, dtype, (p, p, *lead, self.rows, self.columns), arranged),
            sums,
            Buffer(parts, dtype, (self.m, p, *shapes), stored_out),
            Buffer(result, dtype, (self.m, self.m, *shapes), stored_out),
        ]
        earlier, later = old.blocks[: old.blocks.index(anchor)], old.blocks[old.blocks.index(anchor) + 1 :]
        after = [self.consumer(b, result) if write.buffer in b.buffers_read else b for b in later]
        blocks: list[AnyBlock] = [*earlier, pad, rows, columns, product, gather, scatter, *after]
        return replace(old, blocks=tuple(blocks), buffers=tuple(buffers), anchor=anchor.name)

    def result_layout(self, names: Sequence[str]) -> Layout:
        """The layout of a buffer of (point, point, the anchor's iterators `names`...): points outermost, the rest in
        the order in which what the first consumer writes is stored."""
        (read,) = {r for r in self.first.reads if r.buffer == self.anchor.writes[0].buffer}
        own = {i: str(mine) for mine, i in zip(self.anchor.writes[0].indices, read.indices, strict=True)}
        (written, *_) = self.first.writes
        buffer = self.old.buffer(written.buffer)
        stored: list[str] = []
        for d in buffer.layout.permutation or range(len(buffer.shape)):
            form = linear(written.indices[d])
            terms = sorted(form.terms, key=lambda term: -term[1]) if form is not None else ()
            stored += [own[i] for i, _ in terms if i in own]
        ordered = [*(n for n in names if n not in stored), *(n for n in stored if n in names)]
        return stored_in([0, 1, *(names.index(n) + 2 for n in ordered)])

    def tile_layout(self, like: Buffer, dims: Sequence[int]) -> Layout:
        """The layout of a buffer of (point, point, dims of `like`...): points outermost, the rest in `like`'s order."""
        order = like.layout.permutation or tuple(range(len(like.shape)))
        place = {d: k + 2 for k, d in enumerate(dims)}
        return stored_in([0, 1, *(place[d] for d in order if d in place)])

    def kernel_shape(self) -> tuple[int, ...]:
        shape = self.old.buffer(self.kernel.buffer).shape
        others = (n for d, n in enumerate(shape) if d not in self.found.kernel_dims)
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
        for window, tiles in ((self.high, self.rows), (self.wide, self.columns)):
            low[window.input_dim] = window.start
            shape[window.input_dim] = tiles * self.m + self.found.taps - 1
        return low, shape

    def pad(self) -> tuple[Block, Buffer]:
        """The copy of the input that whole tiles are read from [what has tiles of its own..., dimensions...]."""
        source = self.old.buffer(self.data.buffer)
        names = self.names("p", len(self.shape))
        iters = (*self.own, *(Iter(n, x) for n, x in zip(names, self.shape, strict=True)))
        at: list[Expr] = [op("add", Var(n), low) for n, low in zip(names, self.low, strict=True)]
        for window in self.found.both:
            d = window.input_dim
            within = op("add", self.read_by(window, Var(names[d])), self.low[d])
            at[d] = within if window.offset == Const(0) else op("add", within, window.offset)
        value: Expr = Load(source.name, tuple(at))
        value = value if source.dtype == "float32" else cast("float32", value)
        for index, extent in reversed(list(zip(at, source.shape, strict=True))):
            limits = bounds(index, {i.name: i.extent for i in iters})
            if limits is None or limits[1] >= extent:
                value = select(op("lt", index, extent), value, Const(0.0, "float32"))
            if limits is None or limits[0] < 0:
                value = select(op("ge", index, 0), value, Const(0.0, "float32"))
        name = self.name(f"{source.name}_padded")
        written = Load(name, tuple(Var(i.name) for i in iters))
        block = Block(self.name(f"pad_{source.name}"), iters, (written,), (value,))
        order, before = source.layout.permutation or range(len(names)), len(self.own)
        layout = stored_in([*range(before), *(before + d for d in order)])
        return block, Buffer(name, "float32", tuple(i.extent for i in iters), layout)

    def product(self, whole: str, outer: Sequence[int]) -> tuple[Block, Buffer]:
        """The Block itself over transformed tiles: the windows are gone, the points of the tile are batch iterators, as
        phases are that outputs have; those of a stride are summed over."""
        anchor, p = self.anchor, self.points
        gone = {self.high.spatial, self.wide.spatial, self.high.tap, self.wide.tap}
        spatial = [*self.phases, *(i for i in anchor.spatial if i.name not in gone)]
        tiles = [Iter(self.th, self.rows), Iter(self.tw, self.columns)]
        points = [Iter(self.e, p), Iter(self.f, p)]
        strided = [replace(i, reduce=True) for i in self.strided.values()]
        reduction = [*strided, *(i for i in anchor.reduction if i.name not in gone)]
        batch, place = [Var(self.e), Var(self.f)], [Var(self.th), Var(self.tw)]
        own, weighted = ([Var(i.name) for i in some] for some in (self.own, [*self.weighted, *strided]))
        index = [simplify(op("sub", self.data.indices[d], self.low[d]), anchor.ranges) for d in outer]
        data = Load(whole, (*batch, *own, *index, *place))
        dims = [i for d, i in enumerate(self.kernel.indices) if d not in self.found.kernel_dims]
        kernel = Load(self.kernel.buffer, (*batch, *weighted, *dims))
        sums = self.name("products")
        write = Load(sums, (*batch, *(Var(i.name) for i in spatial), *place))
        shape = (p, p, *(i.extent for i in spatial), self.rows, self.columns)
        block = Block(anchor.name, (*points, *spatial, *tiles, *reduction), (write,), (op("mul", data, kernel),), "add")
        return block, Buffer(sums, "float32", shape)

    def consumer(self, block: AnyBlock, result: str) -> AnyBlock:
        """A consumer over tiles: h, w become th * m + i, tw * m + j (times the dilation, plus the phase); parts beyond
        the edge are left out."""
        assert isinstance(block, Block)
        (write,) = self.anchor.writes
        (read,) = {r for r in block.reads if r.buffer == write.buffer}
        names = {str(a): b for a, b in zip(write.indices, read.indices, strict=True)}
        h, w = names[self.high.spatial], names[self.wide.spatial]
        others = [names[i.name] for i in self.anchor.spatial if i.name not in (self.high.spatial, self.wide.spatial)]
        tiled = {
            h: self.within_phase(self.high, op("add", op("mul", Var(self.th), self.m), Var(self.i))),
            w: self.within_phase(self.wide, op("add", op("mul", Var(self.tw), self.m), Var(self.j))),
        }
        phases = [Var(i.name) for i in self.phases]
        new = Load(result, (Var(self.i), Var(self.j), *phases, *others, Var(self.th), Var(self.tw)))
        marker = Load(result, ())
        mapped = block.mapped(lambda x: marker if x == read else None)
        mapped = mapped.mapped(lambda x: tiled.get(x))
        mapped = mapped.mapped(lambda x: new if x == marker else None)
        ranges = block.ranges
        iters: list[Iter] = [*self.phases]
        for it in block.iters:
            if Var(it.name) == h:
                iters += [Iter(self.th, self.rows), Iter(self.i, self.m)]
            elif Var(it.name) == w:
                iters += [Iter(self.tw, self.columns), Iter(self.j, self.m)]
            else:
                iters.append(it)
        where = list(mapped.where)
        for var, tiles, window in ((h, self.rows, self.high), (w, self.columns, self.wide)):
            extent = ranges[str(var)]
            if tiles * self.m * window.dilation > extent:
                where.append(op("lt", tiled[var], extent))
        return replace(mapped, iters=tuple(iters), where=tuple(where))

    def read_by(self, window: Window, index: Expr) -> Expr:
        """Where element `index` of what a phase reads is among all that is read along `window`."""
        strided = self.strided.get(window.spatial)
        if strided is None:
            return self.within_phase(window, index)
        return op("add", op("mul", index, strided.extent), Var(strided.name))

    def within_phase(self, window: Window, index: Expr) -> Expr:
        """Where element `index` of a phase is among all outputs along `window`."""
        phase = self.phase.get(window.spatial)
        return op("add", op("mul", index, phase.extent), Var(phase.name)) if phase else index


def transformed_kernel(task: Task, name: str, data: NDArray[Any], block: str, m: int) -> NDArray[Any]:
    """What constant `name` holds after winograd_rule(task, block, m): G g G^T for the kernel, computed in float64, of
    shape (points, points, what has a kernel of its own, other dimensions); any other constant as it is."""
    anchor = task.block(block)
    assert isinstance(anchor, Block)
    found = windows(task, anchor)
    assert found is not None
    if found.kernel.buffer != name:
        return data
    whole = np.moveaxis(data.reshape(task.buffer(name).shape), found.kernel_dims, (0, 1))
    extents = whole.shape[:2]
    whole = np.pad(whole, [(0, 1)] * 2 + [(0, 0)] * (whole.ndim - 2))  # zeros, where a tap has no element
    high, wide = (_elements(anchor, found, w, extents[k]) for k, w in enumerate(found.both))
    moved = whole[high[:, None], wide[None]]
    g = np.array(transform(m, found.taps).kernel)
    count = moved[0, 0].size
    flat = moved.reshape(found.taps, found.taps, count)
    transformed = np.empty((len(g), len(g), count), np.float32)
    for start in range(0, count, KERNELS):
        part = slice(start, start + KERNELS)
        columns = np.einsum("er,rsn->esn", g, np.ascontiguousarray(flat[..., part], np.float64))
        transformed[..., part] = np.einsum("fs,esn->efn", g, columns)
    return transformed.reshape(len(g), len(g), *moved.shape[2:])


def _elements(anchor: Block, found: Windows, window: Window, extent: int) -> NDArray[np.int64]:
    """Which element of the kernel, of `extent` along its dimension, each tap is; `extent` for a tap that has none
    [taps, what has a kernel of its own..., phases of strides...]."""
    choosing, strided = found.choosing(anchor), [w for w in found.both if w.stride > 1]
    shape = (found.taps, *(anchor.ranges[n] for n in choosing), *(w.stride for w in strided))
    elements = np.empty(shape, np.int64)
    for at in np.ndindex(shape):
        phases = dict(zip((w.spatial for w in strided), at[1 + len(choosing) :], strict=True))
        tap = window.stride * at[0] + phases.get(window.spatial, 0)
        tap = found.taps - 1 - tap if window.reversed else tap
        values: dict[str, Expr] = {n: Const(v) for n, v in zip((window.tap, *choosing), (tap, *at[1:]), strict=False)}
        limits = bounds(substitute(found.kernel.indices[window.kernel_dim], values), {})
        assert limits is not None and limits[0] == limits[1]
        elements[at] = limits[0] if 0 <= limits[0] < extent else extent
    return elements
