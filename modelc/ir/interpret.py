"""The reference meaning of Blocks, Tasks and Nests: NumPy over whole iteration grids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, Iter, OpaqueBlock
from modelc.ir.evaluate import Env, value_of, values_of
from modelc.ir.expr import (
    DTYPES,
    FLOATS,
    NARROW,
    Expr,
    Load,
    Op,
    conjunction,
    dtype_of,
    loads,
    variables,
)
from modelc.ir.nest import Alloc, Branch, Call, For, Leaf, Nest, Prefetch, Region, Stmt, without_hints
from modelc.ir.scalar import OPERATIONS

Array = NDArray[Any]
Buffers = MutableMapping[str, Array]
Meaning = Callable[..., tuple[Array, ...]]
GRID = 1 << 22  # points evaluated at once
DENSE = 8  # numbers for each that occurs among them, up to which a table of all is sooner made than sorted


# --- Blocks -------------------------------------------------------------------------------------------------------


@np.errstate(all="ignore")
def run_block(block: Block, buffers: Buffers) -> None:
    """Executes `block`, writing into `buffers` (arrays by name, logical shapes; the written ones must exist).

    Sums and products of floats are accumulated in float64 and rounded once. A point of a reduction whose element lies
    outside the buffer writes nothing: its conditions exclude all that it would add. Raises IndexError where an
    `assign` writes outside its buffer.
    """
    if not all(i.extent for i in block.spatial):
        return
    factors = _contraction(block, buffers)
    everything = frozenset(i.name for i in block.iters)
    grids = [everything] if factors is None else [*factors, everything - {i.name for i in block.reduction}]
    sizes = _piece_sizes(block.iters, grids)
    conditions = conjunction(block.where) if block.where else None
    for spatial in _pieces(block.spatial, sizes):
        if block.aggregation == "assign":
            env = _axes(spatial, [])
            _assign(block.writes, block.body, conditions, env, _extents(env), buffers)
            continue
        totals: list[Array] | None = None
        for reduced in _pieces(block.reduction, sizes):
            env = _axes(spatial, reduced)
            part = None if factors is None else _contract(block, env, len(spatial), buffers)
            if part is None:
                extents, kept = _extents(env), len(spatial)
                part = _reduced(block.aggregation, block.writes, block.body, conditions, env, extents, kept, buffers)
            totals = part if totals is None else _combined(block.aggregation, totals, part)
        assert totals is not None
        _put(block.writes, totals, _axes(spatial, []), buffers, outside=bool(block.where))


Piece = list[tuple[str, Array]]  # some of an iterator's values, for several iterators


def _piece_sizes(iters: tuple[Iter, ...], grids: Iterable[frozenset[str]]) -> dict[str, int]:
    """How many values of each iterator are taken at once so that no grid (over a set of iterators) has more than GRID
    points: the leading spatial iterators are cut first, reductions last."""
    sizes = {i.name: i.extent for i in iters}
    for it in sorted(iters, key=lambda i: i.reduce):
        for grid in grids:
            points = prod(sizes[name] for name in grid)
            if it.name in grid and points > GRID:
                sizes[it.name] = max(1, sizes[it.name] * GRID // points)
    return sizes


def _pieces(iters: Sequence[Iter], sizes: Mapping[str, int]) -> Iterable[Piece]:
    cuts = [
        [(i.name, np.arange(k, min(k + sizes[i.name], i.extent))) for k in range(0, i.extent, max(sizes[i.name], 1))]
        or [(i.name, np.arange(0))]
        for i in iters
    ]
    return map(list, product(*cuts))


def _axes(spatial: Piece, reduced: Piece) -> dict[str, Array]:
    """Each iterator's values along an axis of their own: the spatial ones first."""
    both = [*spatial, *reduced]
    return {name: v.reshape([-1 if d == k else 1 for d in range(len(both))]) for k, (name, v) in enumerate(both)}


def _extents(env: Env) -> list[int]:
    return [v.size for v in env.values()]


def _assign(
    writes: Sequence[Load],
    body: Sequence[Expr],
    condition: Expr | None,
    env: Env,
    extents: Sequence[int],
    buffers: Buffers,
) -> None:
    keep: Any = ... if condition is None else np.broadcast_to(value_of(condition, env, buffers), extents)
    values = [np.broadcast_to(value, extents)[keep] for value in values_of(body, env, buffers)]
    for write, value in zip(writes, values, strict=True):
        index = tuple(value_of(i, env, buffers) for i in write.indices)
        target = buffers[write.buffer]
        if condition is not None or not _inside(index, target.shape).all():
            index = tuple(np.broadcast_to(i, extents)[keep] for i in index)
            if not _inside(index, target.shape).all():
                raise IndexError(f"{write} is written outside its shape {list(target.shape)}")
        if index:
            target[_full(index, value.shape)] = value
        elif value.size:
            target[()] = value.ravel()[-1]


def _full(index: tuple[Array, ...], shape: tuple[int, ...]) -> tuple[Array, ...]:
    """An index with as many places as there are values of that shape: NumPy broadcasts its parts by itself, unless none
    of them goes along an axis."""
    if np.broadcast_shapes(*(i.shape for i in index)) == shape:
        return index
    return tuple(np.broadcast_to(i, shape) for i in index)


def _inside(index: tuple[Array, ...], shape: tuple[int, ...]) -> Array:
    checks = ((i >= 0) & (i < extent) for i, extent in zip(index, shape, strict=True))
    return reduce(np.logical_and, checks, np.asarray(True))


def _put(writes: Sequence[Load], values: Sequence[Array], env: Env, buffers: Buffers, outside: bool = False) -> None:
    """Writes the results of a reduction, one per point of `env`."""
    extents = _extents(env)
    for write, value in zip(writes, values, strict=True):
        target = buffers[write.buffer]
        index = tuple(np.broadcast_to(value_of(i, env, buffers), extents) for i in write.indices)
        inside = _inside(index, target.shape)
        if not inside.all():
            if not outside:
                raise IndexError(f"{write} is written outside its shape {list(target.shape)}")
            index, value = tuple(i[inside] for i in index), value[inside]
        target[index] = value.astype(target.dtype) if index else value.astype(target.dtype).reshape(())


def _reduced(
    name: str,
    writes: Sequence[Load],
    body: Sequence[Expr],
    condition: Expr | None,
    env: Env,
    extents: Sequence[int],
    kept: int,
    buffers: Buffers,
) -> list[Array]:
    """The body's values, over a grid of `extents`, combined over all axes but the first `kept`; sums and products of
    floats in float64."""
    dtypes = tuple(buffers[w.buffer].dtype.name for w in writes)
    identities = [np.asarray(c.value, DTYPES[c.dtype]) for c in AGGREGATIONS[name].identity(dtypes)]
    values = [np.broadcast_to(value, extents) for value in values_of(body, env, buffers)]
    if condition is not None:
        mask = value_of(condition, env, buffers)
        values = [np.where(mask, v, identity) for v, identity in zip(values, identities, strict=True)]
    axes = tuple(range(kept, len(extents)))
    combining = _combining(name)
    if combining is None:
        return _fold(name, values, kept, identities)
    (value,), (identity,) = values, identities
    if name in ("add", "mul") and dtypes[0] in FLOATS:
        value, identity = value.astype(np.float64), identity.astype(np.float64)
    return [np.asarray(combining.reduce(value, axis=axes, initial=identity, dtype=identity.dtype))]


def _combining(aggregation: str) -> np.ufunc | None:
    """NumPy's function where a scalar operation is the aggregation."""
    row = OPERATIONS.get(aggregation)
    return row.meaning if row is not None and row.aggregates else None  # type: ignore[return-value]


def _combined(name: str, a: Sequence[Array], b: Sequence[Array]) -> list[Array]:
    """Two partial results as one."""
    combining = _combining(name)
    if combining is not None:
        return [combining(a[0], b[0])]
    left, right = [f"a{i}" for i in range(len(a))], [f"b{i}" for i in range(len(b))]
    combine = AGGREGATIONS[name].combine(*(tuple(Load(n, ()) for n in names) for names in (left, right)))
    env = dict(zip([*left, *right], [*a, *b], strict=True))
    return [value_of(c, {}, env).astype(x.dtype) for c, x in zip(combine, a, strict=True)]


def _fold(name: str, values: list[Array], kept: int, identities: list[Array]) -> list[Array]:
    """A reduction over tuples, by halving."""
    flat = [v.astype(i.dtype).reshape(*v.shape[:kept], -1) for v, i in zip(values, identities, strict=True)]
    if not flat[0].shape[-1]:
        return [np.full(f.shape[:-1], i) for f, i in zip(flat, identities, strict=True)]
    while (n := flat[0].shape[-1]) > 1:
        half = n // 2
        pairs = _combined(name, [f[..., :half] for f in flat], [f[..., half : 2 * half] for f in flat])
        flat = [np.concatenate([p, f[..., 2 * half :]], axis=-1) for p, f in zip(pairs, flat, strict=True)]
    return [f[..., 0] for f in flat]


# --- contractions -------------------------------------------------------------------------------------------------


def _contraction(block: Block, buffers: Mapping[str, Array]) -> list[frozenset[str]] | None:
    """The iterators of each factor of a sum of products that a matrix product can compute; None for other Blocks."""
    if block.aggregation != "add" or not isinstance(block.body[0], Op) or block.body[0].name != "mul":
        return None
    if dtype_of(block.body[0], {k: v.dtype.name for k, v in buffers.items()}) not in ("float32", "float64", "int32"):
        return None
    a, b = (frozenset(variables(factor)) for factor in block.body[0].args)
    guarded = variables(conjunction(block.where)) if block.where else set()
    points = [prod(block.ranges[name] for name in names) for names in (a, b)]
    useful = max(points) < block.points() and (guarded <= a or guarded <= b)
    return [a, b] if useful else None


def _contract(block: Block, env: Env, kept: int, buffers: Buffers) -> list[Array] | None:
    """A sum of products over a piece as batched matrix products in float64; None where that would not be exact."""
    assert isinstance(block.body[0], Op)
    rank = len(env)
    factors = [value_of(f, env, buffers) for f in block.body[0].args]
    factors = [f.reshape((1,) * (rank - f.ndim) + f.shape) for f in factors]
    if block.where:
        if not all(np.isfinite(f).all() for f in factors):
            return None  # what a condition excludes must not become 0 * inf
        mask = value_of(conjunction(block.where), env, buffers)
        mask = mask.reshape((1,) * (rank - mask.ndim) + mask.shape)
        target = 0 if np.broadcast_shapes(mask.shape, factors[0].shape) == factors[0].shape else 1
        factors[target] = np.where(mask, factors[target], factors[target].dtype.type(0))
    a, b = (f.astype(np.float64) for f in factors)
    reduced = prod(_extents(env)[kept:])
    if factors[0].dtype.kind == "i" and reduced * np.abs(a).max(initial=0) * np.abs(b).max(initial=0) >= 2**53:
        return None
    axes = range(rank)
    lone = [k for k in axes[kept:] if (a.shape[k] == 1) != (b.shape[k] == 1)]
    a = a.sum(axis=tuple(k for k in lone if b.shape[k] == 1), keepdims=True)
    b = b.sum(axis=tuple(k for k in lone if a.shape[k] == 1), keepdims=True)
    both = [k for k in axes[:kept] if a.shape[k] > 1 and b.shape[k] > 1]
    rows = [k for k in axes[:kept] if k not in both and a.shape[k] > 1]
    columns = [k for k in axes[:kept] if k not in both and k not in rows]
    inner = [k for k in axes[kept:] if k not in lone]

    def matrix(f: Array, *groups: list[int]) -> Array:
        skipped = [k for k in axes if not any(k in g for g in groups)]
        moved = np.transpose(f, [k for g in groups for k in g] + skipped)
        return moved.reshape([prod(f.shape[k] for k in g) for g in groups])

    result = np.matmul(matrix(a, both, rows, inner), matrix(b, both, inner, columns))
    order = [*both, *rows, *columns]
    extents = _extents(env)
    unfolded = result.reshape([extents[k] if k in both or k in rows or k in columns else 1 for k in order])
    back = np.transpose(unfolded, np.argsort(order))
    return [back if factors[0].dtype.kind == "f" else back.astype(np.int64)]


# --- Tasks --------------------------------------------------------------------------------------------------------


def run_blocks(blocks: Iterable[AnyBlock], buffers: Buffers, opaque: Mapping[str, Meaning]) -> None:
    """Executes `blocks` in order over `buffers` (arrays of logical shapes by name; the written ones must exist).
    `opaque` meanings are called with the attributes and inputs, and give the outputs (perhaps more than are named)."""
    for block in blocks:
        if isinstance(block, OpaqueBlock):
            _call(block, buffers, opaque)
        else:
            run_block(block, buffers)


def _call(called: OpaqueBlock | Call, buffers: Buffers, opaque: Mapping[str, Meaning]) -> None:
    results = opaque[called.meaning](dict(called.attrs), *(buffers[name] for name in called.inputs))
    for name, result in zip(called.outputs, results, strict=False):
        buffers[name][...] = result


# --- Nests --------------------------------------------------------------------------------------------------------


def garbage(shape: tuple[int, ...], dtype: str) -> Array:
    """What uninitialised storage holds: values that are noticed in a result."""
    if dtype in NARROW:
        return np.full(shape, 1, np.uint8).view(DTYPES[dtype])
    value = np.nan if dtype in FLOATS else dtype == "bool" or np.iinfo(DTYPES[dtype]).max // 3
    return np.full(shape, value, DTYPES[dtype])


def view(region: Region, array: Array) -> Array:
    """A Region over `array`: flat storage, viewed by the Region's strides, or an array of its shape, taken as it is."""
    if array.dtype != DTYPES[region.dtype]:
        raise ValueError(f"{region}: expected an array of {region.dtype}, found {array.dtype}")
    if array.shape == region.shape:
        return array
    if array.ndim != 1 or array.nbytes < region.bytes or not array.flags.c_contiguous:
        raise ValueError(f"{region}: expected an array of its shape or flat storage, found {list(array.shape)}")
    return as_strided(array, region.shape, [s * array.itemsize for s in region.stride])


@np.errstate(all="ignore")
def run_nest(nest: Nest, buffers: Mapping[str, Array], opaque_meanings: Mapping[str, Meaning] | None = None) -> None:
    """Executes a Nest on its params' arrays, by name: of the Region's shape, or flat storage viewed by its strides.

    Storage that is allocated inside holds garbage until it is written. `parallel` loops run backwards: their
    iterations must not depend on one another.
    """
    storage = {p.name: view(p, buffers[p.name]) for p in nest.params}
    storage |= {t.name: garbage(t.shape, t.dtype) for t in nest.temporaries}
    for phase in nest.phases:
        _run_body(without_hints(phase), {}, storage, opaque_meanings or {})


def _run_body(body: tuple[Stmt, ...], env: Env, storage: Buffers, meanings: Mapping[str, Meaning]) -> None:
    storage = dict(storage) if any(isinstance(s, Alloc) for s in body) else storage
    for stmt in body:
        if isinstance(stmt, Alloc):
            storage[stmt.region.name] = garbage(stmt.region.shape, stmt.region.dtype)
        elif isinstance(stmt, For):
            if not _run_grid(stmt, env, storage):
                values = range(stmt.extent)
                for value in reversed(values) if stmt.tag == "parallel" else values:
                    _run_body(stmt.body, {**env, stmt.var: np.asarray(value)}, storage, meanings)
        elif isinstance(stmt, Branch):
            _run_body(stmt.then if value_of(stmt.condition, env, storage) else stmt.otherwise, env, storage, meanings)
        elif isinstance(stmt, Call):
            _call(stmt, storage, meanings)
        elif not isinstance(stmt, Prefetch):
            _run_leaf(stmt, [], env, storage)


def _run_grid(loop: For, env: Env, storage: Buffers) -> bool:
    """Runs loops that lead to a lone Leaf as one grid. False, with nothing done, where that is not what they are, or
    where the order of iterations may matter."""
    loops = [loop]
    while len(loops[-1].body) == 1 and isinstance(loops[-1].body[0], For):
        loops.append(loops[-1].body[0])
    leaf = loops[-1].body[0] if len(loops[-1].body) == 1 else None
    if not isinstance(leaf, Leaf) or prod(x.extent for x in loops) > GRID:
        return False
    written = {w.buffer for w in leaf.writes}
    if any(read.buffer in written for e in (*leaf.body, *leaf.where) for read in loads(e)):
        return False
    return _run_leaf(leaf, loops, env, storage)


def _run_leaf(leaf: Leaf, loops: Sequence[For], env: Env, storage: Buffers) -> bool:
    """Executes `leaf` over the grid of `loops`. An `update` reduces over those that its writes do not mention; False,
    with nothing done, where two points of the others write one element."""
    written = {name for w in leaf.writes for i in w.indices for name in variables(i)}
    kept = [x for x in loops if leaf.part != "update" or x.var in written]
    pieces = [[(x.var, np.arange(x.extent)) for x in group] for group in (kept, [x for x in loops if x not in kept])]
    condition = conjunction(leaf.where) if leaf.where else None
    axes, shape = _axes(pieces[0], pieces[1]), tuple(x.extent for x in kept)
    grid, extents = {**env, **axes}, _extents(axes)
    if leaf.part != "update":
        _assign(leaf.writes, leaf.body, condition, grid, extents, storage)
        return True
    points = {**env, **_axes(pieces[0], [])}
    places = [_full(tuple(value_of(i, points, storage) for i in w.indices), shape) for w in leaf.writes]
    if kept and not all(map(_distinct, places)):
        return False
    parts = _reduced(leaf.aggregation, leaf.writes, leaf.body, condition, grid, extents, len(kept), storage)
    inside = [_inside(index, storage[w.buffer].shape) for index, w in zip(places, leaf.writes, strict=True)]
    if not all(i.all() for i in inside):
        if condition is None:
            shape = storage[leaf.writes[0].buffer].shape
            raise IndexError(f"{leaf.writes[0]} is written outside its shape {list(shape)}")
        taken = np.broadcast_to(np.logical_and.reduce(inside), shape)
        places = [tuple(np.broadcast_to(i, shape)[taken] for i in index) for index in places]
        parts = [part[taken] for part in parts]
    before = [np.asarray(storage[w.buffer][place]) for w, place in zip(leaf.writes, places, strict=True)]
    after = _combined(leaf.aggregation, [b.astype(p.dtype) for b, p in zip(before, parts, strict=True)], parts)
    for w, place, value in zip(leaf.writes, places, after, strict=True):
        storage[w.buffer][place] = value.astype(storage[w.buffer].dtype) if place else value.reshape(-1)[0]
    return True


def _distinct(index: tuple[Array, ...]) -> bool:
    """Whether no two points have the same index."""
    if not index:
        return False
    points = prod(np.broadcast_shapes(*(i.shape for i in index)))
    if points < 2:
        return True
    code, span = np.zeros((), np.int64), 1  # the index as one number
    for i in index:
        low, high = int(i.min()), int(i.max())
        code, span = code * (high - low + 1) + (i - low), span * (high - low + 1)
    if span >= 2**62:
        raise ValueError(f"an index goes over {span} elements: no buffer has as many")
    if span > DENSE * points:
        return len(np.unique(code)) == points
    present = np.zeros(span, np.bool_)
    present[code] = True
    return int(np.count_nonzero(present)) == points
