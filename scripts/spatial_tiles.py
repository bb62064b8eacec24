"""ALT's layouts of spatial tiles: what a window slides over is unfolded, and what it writes is split (its section 5.1).

    X: N C H W -> N H/h W/w C (V (h - 1) + M) (V (w - 1) + M)        tiles that overlap by M - V rows and columns
    Y: N O H W -> N H/h W/w O h w
    Y[n,o,i,j] += X[n,c,V i + r,V j + s] ...
      -> Y[n,i/h,j/w,o,i%h,j%w] += X[n,i/h,j/w,c,V (i%h) + r,V (j%w) + s] ...    (equation 1)

V is the stride and M the length of the window. Tiles of X hold its padding too. Channels are innermost in both.
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.affine import linear
from modelc.ir.block import Block, Buffer, Iter, Task
from modelc.ir.expr import Expr, Load, Var, op
from modelc.ir.layout import Layout, reordered
from modelc.space.rules.rule import accesses_moved

SPACE = (2, 3)  # dimensions of N C H W
ORDER = reordered(0, 1, 2, 4, 5, 3)


def unfolded(task: Task, size: int) -> Layout | None:
    """The primitives that make such tiles of `size` x `size` outputs of what the anchor of `task` slides over, but for
    the order of dimensions; None where it sums no windows over two dimensions, or they do not divide."""
    anchor, shape = _anchor(task), task.buffer(task.outputs[0]).shape
    if anchor.aggregation != "add" or len(shape) != 4 or any(shape[d] % size or shape[d] <= size for d in SPACE):
        return None
    layout = Layout()
    for d in reversed(SPACE):
        stride, length = _window(anchor, d)
        if length == 1:
            return None
        form = linear(anchor.reads[0].indices[d])
        assert form is not None
        extent = task.buffer(anchor.reads[0].buffer).shape[d]
        after = max(0, stride * (shape[d] - 1) + length + form.constant - extent)
        layout = layout.then("pad", d, -form.constant, after)
        layout = layout.then("unfold", d, stride * (size - 1) + length, stride * size)
    _, _, *tiles = layout.shape(task.buffer(anchor.reads[0].buffer).shape)
    return layout if tiles[::2] == [shape[d] // size for d in SPACE] else None


def tiled(task: Task, size: int) -> Task | None:
    """`task` on tiles of `size` x `size` outputs; None where unfolded() is."""
    layout = unfolded(task, size)
    if layout is None:
        return None
    anchor, output = _anchor(task), task.buffer(task.outputs[0])
    data = task.buffer(anchor.reads[0].buffer)
    n, c, tiles_h, rows, tiles_w, columns = layout.shape(data.shape)
    split = {b.name for b in task.buffers if b.shape == output.shape and b.name not in task.constants} - {data.name}
    n_out, channels, height, width = output.shape
    stored = (n_out, height // size, width // size, channels, size, size)
    buffers = [replace(b, shape=stored, layout=ORDER) if b.name in split else b for b in task.buffers]
    there = Buffer(data.name, data.dtype, (n, tiles_h, tiles_w, c, rows, columns), ORDER)
    blocks = [_tiled_block(b, split, data.name, size) for b in task.blocks if isinstance(b, Block)]
    return replace(task, buffers=tuple(there if b.name == data.name else b for b in buffers), blocks=tuple(blocks))


def _tiled_block(block: Block, split: set[str], data: str, size: int) -> Block:
    """`block` with its spatial iterators in two, and the accesses to what is `split`, and to `data`, by both."""
    spatial = [str(i) for i in (block.writes[0].indices[d] for d in SPACE)]
    strides = [_window(block, d)[0] if block.reduction else 1 for d in SPACE]
    outer, inner = [Var(f"{name}q") for name in spatial], [Var(f"{name}p") for name in spatial]
    iters = list[Iter]()
    for i in block.iters:
        if i.name not in spatial:
            iters.append(i)
            continue
        iters += [Iter(f"{i.name}q", i.extent // size, i.reduce), Iter(f"{i.name}p", size, i.reduce)]
    wholes: dict[Expr, Expr] = {
        Var(name): op("add", op("mul", q, size), p) for name, q, p in zip(spatial, outer, inner, strict=True)
    }

    def visit(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer not in (*split, data):
            return None
        if e.buffer in split:
            return Load(e.buffer, (e.indices[0], *outer, e.indices[1], *inner))
        taps = [linear(e.indices[d]) for d in SPACE]
        within = [op("mul", p, stride) for p, stride in zip(inner, strides, strict=True)]
        for k, form in enumerate(taps):
            assert form is not None
            for atom, step in form.terms:
                if atom != Var(spatial[k]):
                    within[k] = op("add", within[k], op("mul", atom, step))
        return Load(e.buffer, (e.indices[0], *outer, e.indices[1], *within))

    moved = accesses_moved(block, visit)
    return replace(
        moved.mapped(lambda e: wholes.get(e)), iters=tuple(iters), where=() if block.reduction else block.where
    )


def _anchor(task: Task) -> Block:
    anchor = task.block(task.anchor)
    assert isinstance(anchor, Block)
    return anchor


def _window(block: Block, dim: int) -> tuple[int, int]:
    """(V, M): how far the window moves along a spatial dimension of what it reads first, and its length."""
    form = linear(block.reads[0].indices[dim])
    assert form is not None
    spatial, ranges = block.writes[0].indices[dim], block.ranges
    length = 1 + sum(step * (ranges[str(atom)] - 1) for atom, step in form.terms if atom != spatial)
    return form.coefficient(spatial), length  # type: ignore[arg-type]
