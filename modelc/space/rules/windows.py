"""Windows of a few taps that a contraction by a constant slides along its input, found in its accesses.

What a window reads lies at `spatial + dilation * tap + start + offset`: the offset, and which of the kernel's elements
a tap is, may depend on other spatial iterators, as on the phases of a transposed convolution. Or it lies at `stride *
spatial + tap + start`: every stride-th element is one phase of the input, and every stride-th tap slides along that
with stride 1; results of all phases are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from modelc.ir.affine import Linear, linear, simplify
from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, op, variables
from modelc.ir.factors import clamped
from modelc.space.rules.filters import TAPS, sizes, whole_transform

SIXTEEN_BITS = ("bfloat16", "float16")
SMALL = ("int8", "uint8", "int16")
LARGEST_TILE = (1 << 15) - 1  # of transformed whole numbers, which are stored as int16
LARGEST_SUM = (1 << 31) - 1
MODERATE = 2  # points of a transformed tile for each tap, up to which a kernel grows by 4 at the most


@dataclass(frozen=True)
class Window:
    """A spatial iterator and the reduction iterator that slides along it, the dimensions that they index, where the
    window starts (minus the padding before) for tap 0, from each tap to the next, from each window to the next, how
    many taps are in a phase of the input, and what other iterators add. If it is `reversed`, tap 0 is the last value of
    its iterator."""

    spatial: str
    tap: str
    input_dim: int
    kernel_dim: int
    start: int
    dilation: int
    stride: int
    taps: int
    offset: Expr
    reversed: bool


@dataclass(frozen=True)
class Windows:
    """The input, the constant kernel, and its last two windows, both of so many taps in a phase; or the last one.
    Where input and kernel are whole numbers, summed in int32, `largest` are the magnitudes of both at most."""

    data: Load
    kernel: Load
    high: Window
    wide: Window | None
    largest: tuple[int, int] | None = None

    @property
    def taps(self) -> int:
        return self.high.taps

    @property
    def both(self) -> tuple[Window, ...]:
        return (self.high,) if self.wide is None else (self.high, self.wide)

    @property
    def kernel_dims(self) -> tuple[int, ...]:
        return tuple(w.kernel_dim for w in self.both)

    def choosing(self, block: Block) -> tuple[str, ...]:
        """The spatial iterators of `block` that choose which elements of the kernel the taps are."""
        named = {n for d in self.kernel_dims for n in variables(self.kernel.indices[d])}
        return tuple(i.name for i in block.spatial if i.name in named)


def windows(task: Task, block: Block) -> Windows | None:
    """The windows that minimal filtering is for: over float32, or what is read as that; or over whole numbers of at
    most 16 bits. None if there are none."""
    body = block.body[0]
    if block.aggregation != "add" or len(block.body) > 1 or not isinstance(body, Op) or body.name != "mul":
        return None
    first, second = (_float32(value, task) or _whole(value, task) for value in body.args)
    if first is None or second is None:
        return None
    (data, most), (kernel, heaviest) = first, second
    if (most is None) != (heaviest is None):
        return None
    if data.buffer in task.constants:
        data, kernel, most, heaviest = kernel, data, heaviest, most
    if kernel.buffer not in task.constants or data.buffer in task.constants:
        return None
    if task.buffer(kernel.buffer).strides is not None:
        return None
    sliding_windows = [w for d in range(len(data.indices)) if (w := _window(block, data, d, kernel)) is not None]
    if not sliding_windows:
        return None
    alike = len(sliding_windows) > 1 and sliding_windows[-2].taps == sliding_windows[-1].taps
    high, wide = sliding_windows[-2:] if alike else (sliding_windows[-1], None)
    slid = Windows(data, kernel, high, wide, None if most is None or heaviest is None else (most, heaviest))
    bounded = [(data, d) for d in range(len(data.indices))] + [(kernel, d) for d in slid.kernel_dims]
    if not all(any(_bounds(c, task, read, d) for read, d in bounded) for c in block.where):
        return None
    taps = {w.tap for w in slid.both}
    return slid if any(i.extent > 1 for i in block.reduction if i.name not in taps) else None


def _float32(value: Expr, task: Task) -> tuple[Load, None] | None:
    """What is loaded as float32, or stored in 16 bits and converted to it."""
    if isinstance(value, Load):
        return (value, None) if task.buffer(value.buffer).dtype == "float32" else None
    inner = value.args[0] if isinstance(value, Op) and value.name == "cast" and value.dtype == "float32" else None
    stored = isinstance(inner, Load) and task.buffer(inner.buffer).dtype in SIXTEEN_BITS
    return (inner, None) if stored and isinstance(inner, Load) else None


def _whole(value: Expr, task: Task) -> tuple[Load, int] | None:
    """Whole numbers that are loaded as int32, said to be between two bounds or all of a dtype, and their magnitude at
    most."""
    if not isinstance(value, Op) or value.name != "cast" or value.dtype != "int32":
        return None
    number, bounds = clamped(value.args[0])
    if not isinstance(number, Load) or (dtype := task.buffer(number.buffer).dtype) not in SMALL:
        return None
    kind = np.iinfo(DTYPES[dtype])
    least, most = bounds or (int(kind.min), int(kind.max))
    return number, max(-least, most)


def _window(block: Block, data: Load, dim: int, kernel: Load) -> Window | None:
    form, spatial_names = linear(data.indices[dim]), {i.name for i in block.spatial}
    if form is None:
        return None
    plain = {a.name: c for a, c in form.terms if isinstance(a, Var)}
    offset_terms = tuple((a, c) for a, c in form.terms if not isinstance(a, Var))
    sliding = [i.name for i in block.reduction if i.name in plain]
    if len(plain) != 2 or len(sliding) != 1 or any(variables(a) - spatial_names for a, _ in offset_terms):
        return None
    (tap,) = sliding
    (spatial,) = plain.keys() - {tap}
    stride, step = plain[spatial], plain[tap]
    elsewhere = [i for d, i in enumerate(data.indices) if d != dim]
    where = [d for d, i in enumerate(kernel.indices) if tap in variables(i)]
    others = [i for d, i in enumerate(kernel.indices) if d not in where]
    if stride < 1 or spatial not in spatial_names or len(where) != 1:
        return None
    if any({spatial, tap} & variables(i) for i in elsewhere) or any(spatial in variables(a) for a, _ in offset_terms):
        return None
    if variables(kernel.indices[where[0]]) - spatial_names - {tap} or any(spatial in variables(i) for i in others):
        return None
    taps = -(-block.ranges[tap] // stride)
    if taps not in TAPS or (stride > 1 and (step != 1 or offset_terms or kernel.indices[where[0]] != Var(tap))):
        return None
    last = block.ranges[tap] - 1
    start = form.constant + (step * last if step < 0 else 0)
    offset = simplify(Linear(offset_terms, 0).expr(), block.ranges)
    return Window(spatial, tap, dim, where[0], start, abs(step), stride, taps, offset, step < 0)


def _bounds(condition: Expr, task: Task, read: Load, dim: int) -> bool:
    """Whether a condition only keeps what is read inside its buffer along `dim`, so that zeros around say the same."""
    if not isinstance(condition, Op) or condition.name not in ("ge", "lt"):
        return False
    index, limit = condition.args
    same = linear(op("sub", index, read.indices[dim]))
    end = 0 if condition.name == "ge" else task.buffer(read.buffer).shape[dim]
    return same is not None and not same.terms and not same.constant and limit == Const(end)


def tile_sizes(block: Block, slid: Windows) -> tuple[int, ...]:
    """Every m of which there is an F(m, taps) for `slid`: of whole numbers, those that are exact whatever the numbers
    are. Transformed ones are int16 then, and sums of sums int32."""
    if slid.largest is None:
        return sizes(slid.taps)
    taps = {w.tap for w in slid.both}
    summed = prod(i.extent for i in block.reduction if i.name not in taps) * prod(w.stride for w in slid.both)
    return tuple(m for m in sizes(slid.taps) if _exact(m, slid, summed))


def _exact(m: int, slid: Windows, summed: int) -> bool:
    """Whether no number of F(m, taps) leaves its dtype where `summed` products are added up for each point."""
    matrices, along = whole_transform(m, slid.taps), len(slid.both)
    if matrices is None or slid.largest is None:
        return False
    data, kernel = (np.abs(np.array(x)).sum(axis=1) for x in (matrices.input, matrices.kernel))
    transformed = [largest * x.max() ** along for largest, x in zip(slid.largest, (data, kernel), strict=True)]
    gathered = (np.abs(np.array(matrices.output)) @ (data * kernel)).max()  # of one element along one window
    scattered = gathered * (gathered / matrices.divisor if along > 1 else 1)
    most = prod(slid.largest) * summed * max(scattered, gathered * (data * kernel).max() ** (along - 1))
    return bool(max(transformed) <= LARGEST_TILE and most <= LARGEST_SUM)


def products(block: Block, slid: Windows, m: int) -> int:
    """Products by F(m, taps) for each element of what is summed and of what lies beside the windows."""
    tiles = (-(-block.ranges[w.spatial] // (w.dilation * m)) * w.dilation for w in slid.both)
    return prod(n * (m + slid.taps - 1) * w.stride for n, w in zip(tiles, slid.both, strict=True))


def worthwhile(block: Block, slid: Windows) -> tuple[int, ...]:
    """Of the sizes of tiles m, the one whose kernel is least and most accurate; of those whose kernel is moderate, the
    one of the fewest products, which hangs on how tiles divide the image; and larger ones that have fewer than all
    that are smaller."""
    every = {m: products(block, slid, m) for m in tile_sizes(block, slid)}
    if not every:
        return ()
    moderate = [m for m in every if m + slid.taps - 1 <= MODERATE * slid.taps]
    larger = [m for m in every if m > max(moderate) and every[m] < min(every[k] for k in every if k < m)]
    return tuple(sorted({min(every), min(moderate, key=lambda m: (every[m], m)), *larger}))
