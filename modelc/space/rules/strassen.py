"""Strassen's products of matrices as a derivation rule (Strassen, Gaussian Elimination is not Optimal, 1969).

A Block that sums products of a computed operand and of a constant,

    C[.., m, n] += A[.., m, k] * B[k, n]

(or of windows that slide along the rows, A[.., m + r, k] * B[r, k, n])
has its rows m, columns n and depth k cut in halves (or with `levels` = 2, halves of halves: quarters; zeros make rows
whole), and becomes

    sums      for each of 7 products (49) a sum of parts of A
    the Block itself, once for each product, over iterators of half (a quarter) the extent
    combine   each part of C as a sum of products

and its constant operand becomes as many sums of parts of B when compiling. Multiplications fall to 7/8 (49/64); the
constant grows to 7/4 (49/16) of its size. Depth and columns are cut into blocks; rows cyclically, so that some rows of
every part are one stretch of the whole: a thread that has them reads and writes no others. Where a window slides along
the rows these are cut into blocks too, for neighbouring taps share sums then. Rounding errors are a few times those of
the plain sum: each product adds up parts that the results cancel again (Higham, Accuracy and Stability, section
23.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.affine import bounds, linear, simplify
from modelc.ir.block import AnyBlock, Block, Buffer, Iter, Task
from modelc.ir.expr import Const, Expr, Load, Var, op, select, variables
from modelc.ir.layout import Layout, stored_in
from modelc.space.rules.rule import (
    DoesNotApply,
    Sums,
    contracted,
    exchanged,
    fresh,
    reindexed,
    replaced,
    sole_consumer,
    unused,
)
from modelc.space.rules.sums import Matrix, matrix_times

LEVELS = (1, 2)  # how often matrices are cut in halves

# Of each product: the parts of A that are added up [row half][depth half], those of B [depth half][column half], and
# the parts of C that it is added to [row half][column half].
_PRODUCTS = (
    (((1, 0), (0, 1)), ((1, 0), (0, 1)), ((1, 0), (0, 1))),
    (((0, 0), (1, 1)), ((1, 0), (0, 0)), ((0, 0), (1, -1))),
    (((1, 0), (0, 0)), ((0, 1), (0, -1)), ((0, 1), (0, 1))),
    (((0, 0), (0, 1)), ((-1, 0), (1, 0)), ((1, 0), (1, 0))),
    (((1, 1), (0, 0)), ((0, 0), (0, 1)), ((-1, 1), (0, 0))),
    (((-1, 0), (1, 0)), ((1, 1), (0, 0)), ((0, 0), (0, 1))),
    (((0, 1), (0, -1)), ((0, 0), (1, 1)), ((1, 0), (0, 0))),
)


@dataclass(frozen=True)
class Coefficients:
    """Those of products t, each [t, part of a row, part of a column] of its matrix: of A, B and C."""

    data: NDArray[Any]
    kernel: NDArray[Any]
    result: NDArray[Any]

    @property
    def products(self) -> int:
        return len(self.data)

    @property
    def parts(self) -> int:
        """Of each of the rows, the columns and the depth."""
        return int(self.data.shape[1])

    @cached_property
    def sums(self) -> Matrix:
        """[t, part of A, those of a row of parts one after the other]: what products multiply."""
        return tuple(map(tuple, self.data.reshape(self.products, -1).tolist()))

    @cached_property
    def results(self) -> Matrix:
        """[part of C, those of a row of parts one after the other; t]."""
        return tuple(map(tuple, self.result.reshape(self.products, -1).T.tolist()))


@cache
def coefficients(levels: int) -> Coefficients:
    """Of matrices that are cut in halves `levels` times."""
    once = [np.array(x) for x in zip(*_PRODUCTS, strict=True)]
    every = once
    for _ in range(levels - 1):
        every = [np.kron(more, single) for more, single in zip(every, once, strict=True)]
    return Coefficients(*every)


@dataclass(frozen=True)
class Operands:
    """What a Block multiplies: a computed operand and a constant; and the iterators that the first alone goes along,
    that the constant alone does, and that both are summed along."""

    data: Load
    kernel: Load
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    depth: tuple[str, ...]


def operands(task: Task, block: AnyBlock) -> Operands | None:
    """Those of `block` where it sums products of a computed operand and a constant in float32; or None."""
    product = None if not isinstance(block, Block) or block.where else contracted(task, block)
    if not isinstance(block, Block) or product is None:
        return None
    data, kernel = product
    buffers = [task.buffer(x.buffer) for x in (data, kernel, *block.writes)]
    if any(b.dtype != "float32" for b in buffers) or buffers[1].strides is not None:
        return None
    if not all(isinstance(i, Var | Const) for i in block.writes[0].indices):
        return None
    forms = [form for i in data.indices if (form := linear(i)) is not None and bounds(i, block.ranges) is not None]
    alone = [form.terms[0][0] for form in forms if len(form.terms) == 1]
    if len(forms) < len(data.indices) or len(set(alone)) < len(alone):
        return None
    along, across = ({n for i in x.indices for n in variables(i)} for x in (data, kernel))
    spatial, reduced = ([i.name for i in iters if i.extent > 1] for iters in (block.spatial, block.reduction))
    rows = tuple(n for n in spatial if n not in across and _steps(data, n) is not None)
    columns = tuple(n for n in spatial if n not in along and _plainly(kernel, n))
    return Operands(data, kernel, rows, columns, tuple(n for n in reduced if _plainly(data, n) and _plainly(kernel, n)))


def _plainly(access: Load, name: str) -> bool:
    """Whether iterator `name` alone moves one index of `access`, and no other."""
    return [i for i in access.indices if name in variables(i)] == [Var(name)]


def _steps(access: Load, name: str) -> tuple[int, int] | None:
    """(the only index of `access` that iterator `name` moves, forwards by how much); or None."""
    dims = [d for d, i in enumerate(access.indices) if name in variables(i)]
    form = linear(access.indices[dims[0]]) if len(dims) == 1 else None
    if form is None or any(name in variables(x) for x, _ in form.terms if x != Var(name)):
        return None
    return (dims[0], step) if (step := form.coefficient(Var(name))) > 0 else None


def strassen_rule(task: Task, block: str, rows: str, columns: str, depth: str, levels: int) -> Task:
    """`task` with Block `block` computed by 7 ** levels products; `rows`, `columns` and `depth` are the iterators that
    are cut. Raises DoesNotApply."""
    anchor = task.block(block)
    matrices = operands(task, anchor)
    if matrices is None or not isinstance(anchor, Block):
        raise DoesNotApply(f"block {block} is no product of a matrix and a constant one")
    if levels not in LEVELS:
        raise DoesNotApply(f"matrices are cut in halves {levels} times; expected {' or '.join(map(str, LEVELS))}")
    parts = coefficients(levels).parts
    for name, allowed in ((rows, matrices.rows), (columns, matrices.columns), (depth, matrices.depth)):
        extent = anchor.ranges.get(name, 0)
        if name not in allowed or extent < parts or (name != rows and extent % parts):
            raise DoesNotApply(f"iterator {name} of block {block} cannot be cut {levels} times")
    consumer, read = sole_consumer(task, anchor)
    return _Strassen(task, anchor, matrices, (rows, columns, depth), levels).task(consumer, read)


@dataclass(frozen=True)
class _Dimension:
    """One of the data, and of its sums, which have an iterator `name` along it ("": they have a single element): at
    which `place` products read sums, and that an element of these is `step` times its number + `start` in the data."""

    name: str
    extent: int
    place: Expr
    step: int
    start: int

    def moved(self, distance: int) -> Expr:
        """Where the data are for a part that begins so many elements after the first."""
        at: Expr = Var(self.name) if self.name else Const(0)
        return op("add", op("mul", at, self.step), self.start + distance)


class _Strassen:
    """Writes out the Blocks of one application; the attributes are what they share."""

    def __init__(self, task: Task, anchor: Block, matrices: Operands, cut: tuple[str, str, str], levels: int):
        self.old, self.anchor, self.matrices = task, anchor, matrices
        self.rows, self.columns, self.depth = cut
        self.by = coefficients(levels)
        self.ranges = {n: -(-x // self.by.parts) if n in cut else x for n, x in anchor.ranges.items()}
        self.whole = anchor.ranges[self.rows]
        form = linear(matrices.data.indices[self.moving[0]])
        self.cyclic = form is not None and len(form.terms) == 1  # rows: no window slides along them
        self.product = unused("product", anchor.ranges)

    @property
    def moving(self) -> tuple[int, int]:
        """(the dimension of the data that rows move along, by how much)."""
        steps = _steps(self.matrices.data, self.rows)
        assert steps is not None
        return steps

    def position(self, name: str, part: Expr, at: Expr) -> Expr:
        """Which value of iterator `name`, before it was cut, is the one `at` of a part."""
        if name == self.rows and self.cyclic:
            return op("add", op("mul", at, self.by.parts), part)
        return op("add", op("mul", part, self.ranges[name]), at)

    def iters(self, names: Sequence[str], reduce: bool = False) -> tuple[Iter, ...]:
        return tuple(Iter(n, self.ranges[n], reduce) for n in names)

    def task(self, consumer: Block, read: Load) -> Task:
        old, anchor, data, by = self.old, self.anchor, self.matrices.data, self.by
        (write,) = anchor.writes
        source, target = old.buffer(data.buffer), old.buffer(write.buffer)
        dims = [self.dimension(d, index) for d, index in enumerate(data.indices)]
        place = [dim.place for dim in dims]
        at = [Var(dim.name) if dim.name else Const(0) for dim in dims]
        added, products, parts = (fresh(old, name) for name in ("added", "products", "parts"))
        dimension, step = self.moving
        apart = step * (1 if self.cyclic else self.ranges[self.rows])
        deep = data.indices.index(Var(self.depth))

        def part(i: int, k: int) -> Expr:
            """A part of the data, with zeros behind its last row."""
            distance = {dimension: apart * i, deep: k * self.ranges[self.depth]}
            indices = [dim.moved(distance.get(d, 0)) for d, dim in enumerate(dims)]
            value: Expr = Load(data.buffer, tuple(indices))
            for dim, index, extent in zip(dims, indices, source.shape, strict=True):
                limits = bounds(index, {dim.name: dim.extent})
                if limits is None or limits[1] >= extent:
                    value = select(op("lt", index, extent), value, Const(0.0, "float32"))
            return value

        sums = Block(
            fresh(old, "sums"),
            tuple(Iter(dim.name, dim.extent) for dim in dims if dim.name),
            tuple(Load(added, (Const(t), *at)) for t in range(by.products)),
            matrix_times(by.sums, [part(i, k) for i in range(by.parts) for k in range(by.parts)]),
        )
        spatial, reduced = ([i.name for i in iters] for iters in (anchor.spatial, anchor.reduction))
        number, spot = Var(self.product), write.indices
        factors = (
            Load(added, (number, *place)),
            Load(self.matrices.kernel.buffer, (number, *self.matrices.kernel.indices)),
        )
        product = Block(
            anchor.name,
            (
                Iter(self.product, by.products),
                *self.iters(spatial),
                *self.iters(reduced, True),
            ),
            (Load(products, (number, *spot)),),
            (op("mul", *factors),),
            "add",
        )
        every = [Load(products, (Const(t), *spot)) for t in range(by.products)]
        where = [(i, j) for i in range(by.parts) for j in range(by.parts)]
        combine = Block(
            fresh(old, "combine"),
            self.iters(spatial),
            tuple(Load(parts, (Const(i), Const(j), *spot)) for i, j in where),
            matrix_times(by.results, every),
        )
        kernel = old.buffer(self.matrices.kernel.buffer)
        shape, size = self.shape(self.matrices.kernel, kernel), self.shape(write, target)
        extents = tuple(dim.extent for dim in dims)
        over_parts = self.consumer(consumer, read, parts)
        return replaced(
            old,
            [over_parts if b is consumer else b for b in exchanged(old, anchor, sums, product, combine)],
            replace(kernel, shape=(by.products, *shape), layout=Layout()),
            Buffer(added, "float32", (by.products, *extents), _within(source.layout, 1, len(extents))),
            Buffer(products, "float32", (by.products, *size), _within(target.layout, 1, len(size))),
            Buffer(parts, "float32", (by.parts, by.parts, *size), _within(target.layout, 2, len(size))),
        )

    def shape(self, access: Load, buffer: Buffer) -> tuple[int, ...]:
        """The extents of `buffer`, which `access` indexes, where iterators are cut."""
        cut: dict[Expr, int] = {Var(n): self.ranges[n] for n in (self.rows, self.columns, self.depth)}
        return tuple(cut.get(i, extent) for i, extent in zip(access.indices, buffer.shape, strict=True))

    def dimension(self, dim: int, index: Expr) -> _Dimension:
        """What becomes of dimension `dim` of the data: one that a single iterator moves is that iterator's, one that a
        window slides along stays, as far as a part reaches."""
        form, limits = linear(index), bounds(index, self.ranges)
        assert form is not None and limits is not None
        if not form.terms:
            return _Dimension("", 1, Const(0), 1, form.constant)
        ((atom, step), *others) = form.terms
        if not others and isinstance(atom, Var) and step > 0:
            between = step * self.by.parts if self.cyclic and atom == Var(self.rows) else step
            return _Dimension(atom.name, self.ranges[atom.name], atom, between, form.constant)
        low, high = limits
        return _Dimension(
            unused(f"y{dim}", self.ranges), high - low + 1, simplify(op("sub", index, low), self.ranges), 1, low
        )

    def consumer(self, block: Block, read: Load, parts: str) -> Block:
        """The consumer over parts of rows and columns; rows behind the last are left out."""
        names = dict(zip(map(str, self.anchor.writes[0].indices), read.indices, strict=True))
        moved: dict[str, Expr] = {}
        iters: list[Iter] = []
        cut = {str(names[n]): (n, pair) for n, pair in ((self.rows, "i"), (self.columns, "j"))}
        numbers: dict[str, Expr] = {}
        for it in block.iters:
            if it.name not in cut:
                iters.append(it)
                continue
            original, pair = cut[it.name]
            number = f"{pair}_{it.name}"
            numbers[original] = Var(number)
            moved[it.name] = self.position(original, Var(number), Var(it.name))
            iters += [Iter(number, self.by.parts), Iter(it.name, self.ranges[original])]
        if len(numbers) < 2:
            raise DoesNotApply(f"block {block.name} does not read what it consumes by its own iterators")
        new = Load(parts, (numbers[self.rows], numbers[self.columns], *read.indices))
        mapped = reindexed(block, read, new, moved)
        if self.ranges[self.rows] * self.by.parts > self.whole:
            mapped = replace(mapped, where=(*mapped.where, op("lt", moved[str(names[self.rows])], self.whole)))
        return replace(mapped, iters=tuple(iters))


def _within(layout: Layout, outer: int, rank: int) -> Layout:
    """The order of dimensions of `layout` behind `outer` dimensions more."""
    order = layout.permutation or tuple(range(rank))
    return stored_in([*range(outer), *(d + outer for d in order)])


def summed_kernel(
    task: Task, name: str, data: NDArray[Any], block: str, rows: str, columns: str, depth: str, levels: int
) -> NDArray[Any] | Sums:
    """What constant `name` holds after strassen_rule(task, block, ...): for each product a sum of parts of the kernel,
    of shape (products, the kernel's with columns and depth cut); any other constant as it is."""
    matrices = operands(task, task.block(block))
    assert matrices is not None
    if matrices.kernel.buffer != name:
        return data
    by = coefficients(levels)
    deep, wide = (matrices.kernel.indices.index(Var(n)) for n in (depth, columns))

    def parts() -> NDArray[Any]:
        whole = data.reshape(task.buffer(name).shape)
        cut = (half for part in np.split(whole, by.parts, deep) for half in np.split(part, by.parts, wide))
        return np.stack([*cut])

    factors = by.kernel.reshape(by.products, -1).astype(np.float64)
    dtype = data.dtype.name
    return Sums(factors, (by.products,), (by.parts**2,), dtype, dtype, parts)


def error_bound(task: Task, block: str, rows: str, columns: str, depth: str, levels: int) -> float:
    """By how much an element may differ from the exact sum, times the largest input times the largest kernel element
    (magnitudes), in float32.

    To first order: every rounding is at most u = 2^-24 of what |C| [(|A| a) * (|B| b)] gives for a = b = 1, summed over
    the other reduction iterators. There are one for each term of each sum; the kernel is summed in float64, and rounded
    once."""
    anchor = task.block(block)
    assert isinstance(anchor, Block)
    by = coefficients(levels)
    summed = prod(i.extent for i in anchor.reduction) // by.parts
    data, kernel, result = (np.abs(x) for x in (by.data, by.kernel, by.result))
    grown = np.einsum("tij,t->ij", result, data.sum((1, 2)) * kernel.sum((1, 2)))
    terms = [int(np.count_nonzero(data, axis=(1, 2)).max()), int(np.count_nonzero(result, axis=0).max())]
    return float(grown.max() * summed * (sum(terms) + summed + 1) * 2.0**-24)
