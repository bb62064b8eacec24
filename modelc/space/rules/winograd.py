"""Winograd's minimal filtering F(m x m, 3 x 3) as a derivation rule (Lavin and Gray, 2015).

A Block that slides a window of three along two spatial iterators with stride 1 becomes

    pad      the input with its padding, large enough for whole tiles; one for each phase of a dilated window, whose
             taps read every d-th element: outputs d apart are a convolution without dilation
    rows     B^T d           (per tile of (m + 2) x (m + 2) inputs)
    columns  (B^T d) B
    the Block itself, now one product per point of the transformed tile: no window any more
    gather   A^T M
    scatter  (A^T M) A       m x m outputs per tile

and its constant operand becomes G g G^T when compiling. Multiplications fall by 9 m^2 / (m + 2)^2: 2.25 for m = 2,
3.24 for m = 3, 4 for m = 4, 5.06 for m = 6, less what tiles reach beyond the edge. Rounding errors grow with m: to
about 1e-6 (m = 2) and 2e-5 (m = 6) of the largest output in float32, if 256 channels are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import linear
from modelc.ir.block import AnyBlock, Block, Buffer, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Op, Var, op, select, variables
from modelc.ir.layout import Layout, Primitive
from modelc.space.rules.rule import DoesNotApply, combination

Matrix = tuple[tuple[float, ...], ...]
MODERATE = 4  # size of tiles whose transformed kernel is 4 times the kernel
KERNELS = 1 << 12  # that are transformed at once: what is between fits the caches
# tile rows and columns, points of a transformed tile, points of a tile, phases of rows and of columns
_ITERATORS = ("th", "tw", "e", "f", "ti", "tj", "hp", "wp")


@dataclass(frozen=True)
class Transform:
    """The three matrices of F(m, 3): input (B^T), kernel (G), output (A^T)."""

    input: Matrix
    kernel: Matrix
    output: Matrix


TRANSFORMS: dict[int, Transform] = {
    2: Transform(
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    3: Transform(
        ((2, -1, -2, 1, 0), (0, -2, -1, 1, 0), (0, 2, -3, 1, 0), (0, -1, 0, 1, 0), (0, 2, -1, -2, 1)),
        ((1 / 2, 0, 0), (-1 / 2, -1 / 2, -1 / 2), (-1 / 6, 1 / 6, -1 / 6), (1 / 6, 1 / 3, 2 / 3), (0, 0, 1)),
        ((1, 1, 1, 1, 0), (0, 1, -1, 2, 0), (0, 1, 1, 4, 1)),
    ),
    4: Transform(
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
    6: Transform(
        (
            (1, 0, -21 / 4, 0, 21 / 4, 0, -1, 0),
            (0, 1, 1, -17 / 4, -17 / 4, 1, 1, 0),
            (0, -1, 1, 17 / 4, -17 / 4, -1, 1, 0),
            (0, 1 / 2, 1 / 4, -5 / 2, -5 / 4, 2, 1, 0),
            (0, -1 / 2, 1 / 4, 5 / 2, -5 / 4, -2, 1, 0),
            (0, 2, 4, -5 / 2, -5, 1 / 2, 1, 0),
            (0, -2, 4, 5 / 2, -5, -1 / 2, 1, 0),
            (0, -1, 0, 21 / 4, 0, -21 / 4, 0, 1),
        ),
        (
            (1, 0, 0),
            (-2 / 9, -2 / 9, -2 / 9),
            (-2 / 9, 2 / 9, -2 / 9),
            (1 / 90, 1 / 45, 2 / 45),
            (1 / 90, -1 / 45, 2 / 45),
            (32 / 45, 16 / 45, 8 / 45),
            (32 / 45, -16 / 45, 8 / 45),
            (0, 0, 1),
        ),
        (
            (1, 1, 1, 1, 1, 1, 1, 0),
            (0, 1, -1, 2, -2, 1 / 2, -1 / 2, 0),
            (0, 1, 1, 4, 4, 1 / 4, 1 / 4, 0),
            (0, 1, -1, 8, -8, 1 / 8, -1 / 8, 0),
            (0, 1, 1, 16, 16, 1 / 16, 1 / 16, 0),
            (0, 1, -1, 32, -32, 1 / 32, -1 / 32, 1),
        ),
    ),
}


@dataclass(frozen=True)
class Window:
    """A spatial iterator and the reduction iterator that slides along it, the dimensions that they index, where the
    window starts (minus the padding before), and from each tap to the next."""

    spatial: str
    tap: str
    input_dim: int
    kernel_dim: int
    start: int
    dilation: int


def windows(task: Task, block: Block) -> tuple[Load, Load, tuple[Window, Window]] | None:
    """(input, constant kernel, its last two windows of three with stride 1), or None."""
    body = block.body[0]
    if block.aggregation != "add" or len(block.body) > 1 or not isinstance(body, Op) or body.name != "mul":
        return None
    data, kernel = body.args
    if not isinstance(data, Load) or not isinstance(kernel, Load):
        return None
    if data.buffer in task.constants:
        data, kernel = kernel, data
    if kernel.buffer not in task.constants or data.buffer in task.constants:
        return None
    if task.buffer(data.buffer).dtype != "float32" or task.buffer(kernel.buffer).dtype != "float32":
        return None
    if task.buffer(kernel.buffer).strides is not None:
        return None
    found = [w for d, i in enumerate(data.indices) if (w := _window(block, i, d, kernel)) is not None]
    if len(found) < 2:
        return None
    taps = {w.tap for w in found[-2:]}
    contracted = any(i.extent > 1 for i in block.reduction if i.name not in taps)
    return (data, kernel, (found[-2], found[-1])) if contracted else None


def _window(block: Block, index: Expr, dim: int, kernel: Load) -> Window | None:
    form = linear(index)
    if form is None or len(form.terms) != 2:
        return None
    steps = {a.name: c for a, c in form.terms if isinstance(a, Var)}
    taps = [i.name for i in block.reduction if i.name in steps and i.extent == 3]
    spatial = [i.name for i in block.spatial if i.name in steps]
    if len(taps) != 1 or len(spatial) != 1 or steps[spatial[0]] != 1 or steps[taps[0]] < 1:
        return None
    where = [d for d, i in enumerate(kernel.indices) if taps[0] in variables(i)]
    if len(where) != 1 or kernel.indices[where[0]] != Var(taps[0]):
        return None
    plain = [i for w in block.writes for i in w.indices if spatial[0] in variables(i)]
    if plain != [Var(spatial[0])]:
        return None
    return Window(spatial[0], taps[0], dim, where[0], form.constant, steps[taps[0]])


def products(block: Block, window: tuple[Window, Window], m: int) -> int:
    """Products by F(m x m, 3 x 3) for each element of what is summed and of what lies beside the windows."""
    return prod(-(-block.ranges[w.spatial] // (w.dilation * m)) * w.dilation * (m + 2) for w in window)


def worthwhile(block: Block, window: tuple[Window, Window]) -> tuple[int, ...]:
    """Of the sizes of tiles m, the one whose kernel is least and most accurate; of those whose kernel is moderate, and
    of all, the one of the fewest products: which that is hangs on how tiles divide the image."""

    def fewest(sizes: Iterable[int]) -> int:
        return min(sizes, key=lambda m: (products(block, window, m), m))

    return tuple(sorted({min(TRANSFORMS), fewest(m for m in TRANSFORMS if m <= MODERATE), fewest(TRANSFORMS)}))


def winograd_rule(task: Task, block: str, m: int) -> Task:
    """`task` with Block `block` computed by F(m x m, 3 x 3). Raises DoesNotApply."""
    anchor = task.block(block)
    found = windows(task, anchor) if isinstance(anchor, Block) else None
    if found is None or not isinstance(anchor, Block):
        raise DoesNotApply(f"block {block} has no two windows of three with stride 1")
    later = task.blocks[task.blocks.index(anchor) + 1 :]
    (write,) = anchor.writes
    consumers = [b for b in later if isinstance(b, Block) and any(r.buffer == write.buffer for r in b.reads)]
    if write.buffer in task.outputs or len(consumers) != 1:
        raise DoesNotApply(f"what block {block} writes is not consumed in place")
    if not all(isinstance(i, (Var, Const)) for i in write.indices):
        raise DoesNotApply(f"block {block} does not write its iterators plainly")
    return _Winograd(task, anchor, consumers[0], found, m).task()


def error_bound(task: Task, block: str, m: int) -> float:
    """By how much an element of F(m x m, 3 x 3) may differ from the exact sum, times the largest input times the
    largest kernel element (magnitudes), in float32.

    To first order: every rounding is at most u = 2^-24 of what |A|^T [(|G| g |G|^T) * (|B|^T d |B|)] |A| gives for
    g = d = 1, summed over the other reduction iterators (Higham, Accuracy and Stability, section 3.5). There are one
    for each term of each sum; the kernel is transformed in float64, and rounded once.
    """
    anchor = task.block(block)
    found = windows(task, anchor) if isinstance(anchor, Block) else None
    assert found is not None and isinstance(anchor, Block)
    taps = {w.tap for w in found[2]}
    summed = prod(i.extent for i in anchor.reduction if i.name not in taps)
    transform = TRANSFORMS[m]
    data, kernel, output = (np.abs(np.array(x)) for x in (transform.input, transform.kernel, transform.output))
    grown = np.outer(kernel.sum(axis=1), kernel.sum(axis=1)) * np.outer(data.sum(axis=1), data.sum(axis=1))
    terms = [2 * int(np.count_nonzero(x, axis=1).max()) for x in (data, output)]
    return float((output @ grown @ output.T).max() * summed * (sum(terms) + summed + 1) * 2.0**-24)


class _Winograd:
    """Writes out the Blocks of one application; the attributes are names that they share. `first` is the anchor's
    consumer."""

    def __init__(
        self, task: Task, anchor: Block, first: Block, found: tuple[Load, Load, tuple[Window, Window]], m: int
    ):
        self.old, self.anchor, self.first, self.m = task, anchor, first, m
        self.data, self.kernel, (self.high, self.wide) = found
        self.transform = TRANSFORMS[m]
        self.points = m + 2
        taken = {i.name for b in task.blocks if isinstance(b, Block) for i in b.iters}
        suffix = ""
        while taken & {name + suffix for name in _ITERATORS}:
            suffix += "_"
        self.th, self.tw, self.e, self.f, self.i, self.j, *phases = (name + suffix for name in _ITERATORS)
        ranges, both = anchor.ranges, (self.high, self.wide)
        self.rows, self.columns = (-(-ranges[w.spatial] // (w.dilation * m)) for w in both)
        self.phase = {w.spatial: Iter(n, w.dilation) for n, w in zip(phases, both, strict=True) if w.dilation > 1}
        self.phases = tuple(self.phase.values())

    def name(self, base: str) -> str:
        taken = {b.name for b in self.old.buffers} | {b.name for b in self.old.blocks}
        return base if base not in taken else f"{base}_w"

    def task(self) -> Task:
        old, anchor = self.old, self.anchor
        dtype = "float32"
        pad, padded = self.pad()
        outer = [d for d in range(len(self.data.indices)) if d not in (self.high.input_dim, self.wide.input_dim)]
        names = [f"w{chr(97 + k)}" for k in range(len(outer))]
        of_phase = len(self.phases)
        iters = [*self.phases, *(Iter(n, padded.shape[of_phase + d]) for n, d in zip(names, outer, strict=True))]
        lead = [i.extent for i in iters]
        tiles = [Iter(self.th, self.rows), Iter(self.tw, self.columns)]
        at = [Var(i.name) for i in (*iters, *tiles)]

        def tile(i: Expr, j: Expr) -> Load:
            index: list[Expr] = [Const(0)] * len(self.data.indices)
            for d, n in zip(outer, names, strict=True):
                index[d] = Var(n)
            index[self.high.input_dim] = op("add", op("mul", Var(self.th), self.m), i)
            index[self.wide.input_dim] = op("add", op("mul", Var(self.tw), self.m), j)
            return Load(padded.name, (*(Var(i.name) for i in self.phases), *index))

        half, whole = self.name("half"), self.name("tiles")
        dims = [*outer, self.high.input_dim, self.wide.input_dim]
        stored_in = self.tile_layout(padded, [*range(of_phase), *(of_phase + d for d in dims)])
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
        buffers.insert(at_kernel, replace(kernel, shape=(p, p, *self.kernel_shape()), layout=Layout()))
        buffers += [
            padded,
            Buffer(half, dtype, (p, p, *lead, self.rows, self.columns), stored_in),
            Buffer(whole, dtype, (p, p, *lead, self.rows, self.columns), stored_in),
            sums,
            Buffer(parts, dtype, (self.m, p, *shapes), stored_out),
            Buffer(result, dtype, (self.m, self.m, *shapes), stored_out),
        ]
        before = old.blocks[: old.blocks.index(anchor)]
        later = old.blocks[old.blocks.index(anchor) + 1 :]
        after = [self.consumer(b, result) if write.buffer in _read(b) else b for b in later]
        blocks: list[AnyBlock] = [*before, pad, rows, columns, product, gather, scatter, *after]
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
        return _reordered([0, 1, *(names.index(n) + 2 for n in ordered)])

    def tile_layout(self, like: Buffer, dims: Sequence[int]) -> Layout:
        """The layout of a buffer of (point, point, dims of `like`...): points outermost, the rest in `like`'s order."""
        order = like.layout.permutation or tuple(range(len(like.shape)))
        place = {d: k + 2 for k, d in enumerate(dims)}
        return _reordered([0, 1, *(place[d] for d in order if d in place)])

    def kernel_shape(self) -> tuple[int, ...]:
        shape = self.old.buffer(self.kernel.buffer).shape
        return tuple(n for d, n in enumerate(shape) if d not in (self.high.kernel_dim, self.wide.kernel_dim))

    def pad(self) -> tuple[Block, Buffer]:
        """The copy of the input that whole tiles are read from [phases..., dimensions of the input...]."""
        source = self.old.buffer(self.data.buffer)
        shape, low = list(source.shape), [0] * len(source.shape)
        for window, tiles in ((self.high, self.rows), (self.wide, self.columns)):
            shape[window.input_dim] = tiles * self.m + 2
            low[window.input_dim] = window.start
        ranges = self.anchor.ranges
        for d, index in enumerate(self.data.indices):
            form = linear(index)
            if d not in (self.high.input_dim, self.wide.input_dim) and form is not None and len(form.terms) == 2:
                low[d] = form.constant
                shape[d] = sum((ranges[str(a)] - 1) * c for a, c in form.terms) + 1
        names = [f"p{chr(97 + d)}" for d in range(len(shape))]
        at = [op("add", Var(n), lo) for n, lo in zip(names, low, strict=True)]
        last = [lo + n - 1 for n, lo in zip(shape, low, strict=True)]
        for window in (self.high, self.wide):
            if phase := self.phase.get(window.spatial):
                d, apart = window.input_dim, window.dilation
                at[d] = op("add", op("add", op("mul", Var(names[d]), apart), Var(phase.name)), low[d])
                last[d] = low[d] + shape[d] * apart - 1
        value: Expr = Load(source.name, tuple(at))
        for d in reversed(range(len(shape))):
            if last[d] >= source.shape[d]:
                value = select(op("lt", at[d], source.shape[d]), value, Const(0.0, "float32"))
            if low[d] < 0:
                value = select(op("ge", at[d], 0), value, Const(0.0, "float32"))
        name = self.name(f"{source.name}_padded")
        iters = (*self.phases, *(Iter(n, x) for n, x in zip(names, shape, strict=True)))
        written = Load(name, tuple(Var(i.name) for i in iters))
        block = Block(self.name(f"pad_{source.name}"), iters, (written,), (value,))
        order, before = source.layout.permutation or range(len(shape)), len(self.phases)
        layout = _reordered([*range(before), *(before + d for d in order)])
        return block, Buffer(name, "float32", tuple(i.extent for i in iters), layout)

    def product(self, whole: str, outer: Sequence[int]) -> tuple[Block, Buffer]:
        """The Block itself over transformed tiles: the windows are gone, the points of the tile are batch iterators, as
        phases are."""
        anchor, p = self.anchor, self.points
        gone = {self.high.spatial, self.wide.spatial, self.high.tap, self.wide.tap}
        spatial = [*self.phases, *(i for i in anchor.spatial if i.name not in gone)]
        tiles = [Iter(self.th, self.rows), Iter(self.tw, self.columns)]
        points = [Iter(self.e, p), Iter(self.f, p)]
        reduction = [i for i in anchor.reduction if i.name not in gone]
        batch, phases = [Var(self.e), Var(self.f)], [Var(i.name) for i in self.phases]
        place = [Var(self.th), Var(self.tw)]
        low = [linear(self.data.indices[d]) for d in outer]
        index = [
            op("sub", self.data.indices[d], 0 if form is None or len(form.terms) < 2 else form.constant)
            for d, form in zip(outer, low, strict=True)
        ]
        data = Load(whole, (*batch, *phases, *(_plus(i) for i in index), *place))
        dims = [i for d, i in enumerate(self.kernel.indices) if d not in (self.high.kernel_dim, self.wide.kernel_dim)]
        kernel = Load(self.kernel.buffer, (*batch, *dims))
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

    def within_phase(self, window: Window, index: Expr) -> Expr:
        """Where element `index` of a phase is among all outputs along `window`."""
        phase = self.phase.get(window.spatial)
        return op("add", op("mul", index, phase.extent), Var(phase.name)) if phase else index


def _reordered(order: Sequence[int]) -> Layout:
    return Layout() if list(order) == sorted(order) else Layout((Primitive("reorder", tuple(order)),))


def _read(block: AnyBlock) -> set[str]:
    return {r.buffer for r in block.reads} if isinstance(block, Block) else set(block.inputs)


def _plus(index: Expr) -> Expr:
    """An index with its constant folded away."""
    form = linear(index)
    return index if form is None else form.expr()


def transformed_kernel(task: Task, name: str, data: NDArray[Any], block: str, m: int) -> NDArray[Any]:
    """What constant `name` holds after winograd_rule(task, block, m): G g G^T for the kernel, computed in float64, of
    shape (m + 2, m + 2, other dimensions); any other constant as it is."""
    anchor = task.block(block)
    assert isinstance(anchor, Block)
    found = windows(task, anchor)
    assert found is not None
    _, kernel, (high, wide) = found
    if kernel.buffer != name:
        return data
    moved = np.moveaxis(data.reshape(task.buffer(kernel.buffer).shape), (high.kernel_dim, wide.kernel_dim), (0, 1))
    g = np.array(TRANSFORMS[m].kernel)
    count = moved[0, 0].size
    flat = moved.reshape(3, 3, count)
    transformed = np.empty((len(g), len(g), count), data.dtype)
    for start in range(0, count, KERNELS):
        part = slice(start, start + KERNELS)
        columns = np.einsum("er,rsn->esn", g, np.ascontiguousarray(flat[..., part], np.float64))
        transformed[..., part] = np.einsum("fs,esn->efn", g, columns)
    return transformed.reshape(len(g), len(g), *moved.shape[2:])
