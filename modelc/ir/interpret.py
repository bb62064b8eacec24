"""The reference meaning of Blocks, Tasks: evaluated with NumPy over whole iteration grids."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AGGREGATIONS, Block
from modelc.ir.expr import DTYPES, OPERATIONS, Const, Expr, Load, Op, Var, conjunction

Array = NDArray[Any]
Buffers = MutableMapping[str, Array]
GRID = 1 << 22  # points evaluated at once


def evaluate(e: Expr, env: Mapping[str, Array], buffers: Mapping[str, Array]) -> Array:
    """The value of `e` with every iterator bound to an array of indices; shapes broadcast.

    Indices outside a buffer are clamped: a condition (`where`, `select`) has to exclude them from the result.
    """
    if isinstance(e, Var):
        return env[e.name]
    if isinstance(e, Const):
        return np.asarray(e.value, DTYPES[e.dtype])
    if isinstance(e, Load):
        data = buffers[e.buffer]
        if not e.indices:
            return data
        found = [evaluate(i, env, buffers) for i in e.indices]
        return data[tuple(np.clip(i, 0, extent - 1) for i, extent in zip(found, data.shape, strict=True))]
    args = [evaluate(a, env, buffers) for a in e.args]
    with np.errstate(all="ignore"):
        return _operate(e, args)


def _operate(e: Op, args: list[Array]) -> Array:
    operation = OPERATIONS[e.name]
    if operation.result == "cast":
        assert e.dtype is not None
        return _cast(args[0], e.dtype)
    result = operation.meaning(*args)
    if operation.result == "bool":
        return np.asarray(result, np.bool_)
    return np.asarray(result).astype(args[1 if operation.result == "select" else 0].dtype, copy=False)


def _cast(x: Array, dtype: str) -> Array:
    return x.astype(DTYPES[dtype])


def run_block(block: Block, buffers: Buffers) -> None:
    """Executes `block`, writing into `buffers` (arrays by name, logical shapes; the written ones must exist).

    Sums and products of floats are accumulated in float64 and rounded once.
    """
    if all(i.extent for i in block.spatial):
        for env in _chunks(block):
            _run_grid(block, env, buffers)


def _chunks(block: Block) -> list[dict[str, Array]]:
    """The iteration space as pieces of at most about GRID points, cut along the leading spatial iterators."""
    rank = len(block.iters)

    def axis(k: int, values: Array) -> Array:
        return values.reshape([-1 if d == k else 1 for d in range(rank)])

    pieces: list[dict[str, Array]] = [{}]
    rest = prod(i.extent for i in block.iters)
    order = sorted(range(rank), key=lambda k: block.iters[k].reduce)
    for k in order:
        it = block.iters[k]
        rest = rest // max(it.extent, 1)
        steps = it.extent if rest >= GRID else min(it.extent, -(-it.extent * rest // GRID)) or 1
        if it.reduce:
            steps = 1
        parts = np.array_split(np.arange(it.extent, dtype=np.int64), max(steps, 1))
        pieces = [{**piece, it.name: axis(k, part)} for piece in pieces for part in parts]
        rest = max(rest, 1)
        if steps > 1:
            rest = min(rest, GRID)
    return pieces


def _run_grid(block: Block, env: dict[str, Array], buffers: Buffers) -> None:
    rank = len(block.iters)
    extents = [env[i.name].size for i in block.iters]
    spatial = [k for k, i in enumerate(block.iters) if not i.reduce]
    mask = None
    if block.where:
        mask = np.broadcast_to(evaluate(conjunction(block.where), env, buffers), extents)
    aggregation = AGGREGATIONS[block.aggregation]
    dtypes = tuple(buffers[w.buffer].dtype.name for w in block.writes)
    values = [np.broadcast_to(evaluate(b, env, buffers), extents) for b in block.body]
    if block.aggregation == "assign":
        for write, value in zip(block.writes, values, strict=True):
            target = buffers[write.buffer]
            where = [np.broadcast_to(evaluate(i, env, buffers), extents) for i in write.indices]
            keep = ... if mask is None else mask
            flat = [w[keep].ravel() for w in where]
            target[tuple(flat)] = value[keep].ravel() if flat else value.reshape(())
        return
    if mask is not None:
        identities = aggregation.identity(dtypes)
        values = [
            np.where(mask, v, np.asarray(c.value, DTYPES[c.dtype])) for v, c in zip(values, identities, strict=True)
        ]
    reduced = [k for k in range(rank) if k not in spatial]
    results = _reduce(block.aggregation, values, tuple(reduced), dtypes)
    point = {i.name: env[i.name].reshape([-1 if d == k else 1 for d in range(rank)]) for k, i in enumerate(block.iters)}
    shape = [extents[k] if k in spatial else 1 for k in range(rank)]
    for write, result in zip(block.writes, results, strict=True):
        target = buffers[write.buffer]
        index = tuple(np.broadcast_to(evaluate(i, point, buffers), shape) for i in write.indices)
        values_ = result.reshape(shape)
        inside = _inside(index, target.shape)
        if not inside.all():  # points without an element: a `where` condition excludes all they would add
            index, values_ = tuple(i[inside] for i in index), values_[inside]
        target[index] = values_ if index else result.reshape(())


def _inside(index: tuple[Array, ...], shape: tuple[int, ...]) -> Array:
    checks = [(i >= 0) & (i < extent) for i, extent in zip(index, shape, strict=True)]
    return np.logical_and.reduce(checks) if checks else np.asarray(True)


def _reduce(name: str, values: list[Array], axes: tuple[int, ...], dtypes: tuple[str, ...]) -> list[Array]:
    simple = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    if name in simple:
        (value,), (dtype,) = values, dtypes
        if name in ("add", "mul") and dtype in ("float32", "float16", "bfloat16"):
            value = value.astype(np.float64)
        elif name in ("max", "min"):
            (start,) = AGGREGATIONS[name].identity(dtypes)
            initial = np.asarray(start.value, DTYPES[dtype])
            return [np.asarray(simple[name].reduce(value, axis=axes, initial=initial)).astype(DTYPES[dtype])]
        with np.errstate(all="ignore"):
            return [np.asarray(simple[name].reduce(value, axis=axes)).astype(DTYPES[dtype])]
    return _fold(name, values, axes, dtypes)


def _fold(name: str, values: list[Array], axes: tuple[int, ...], dtypes: tuple[str, ...]) -> list[Array]:
    """A reduction over tuples, by halving."""
    aggregation = AGGREGATIONS[name]
    kept = [k for k in range(values[0].ndim) if k not in axes]
    flat = [np.transpose(v, (*kept, *axes)).reshape(*[v.shape[k] for k in kept], -1) for v in values]
    flat = [f.astype(DTYPES[d]) for f, d in zip(flat, dtypes, strict=True)]
    names = [(f"a{i}", f"b{i}") for i in range(len(flat))]
    combined = aggregation.combine(tuple(Load(a, ()) for a, _ in names), tuple(Load(b, ()) for _, b in names))
    while flat[0].shape[-1] > 1:
        half = flat[0].shape[-1] // 2
        env: dict[str, Array] = {}
        for (a, b), f in zip(names, flat, strict=True):
            env[a], env[b] = f[..., :half], f[..., half : 2 * half]
        rest = [f[..., 2 * half :] for f in flat]
        flat = [
            np.concatenate([evaluate(c, {}, env).astype(f.dtype), r], axis=-1)
            for c, f, r in zip(combined, flat, rest, strict=True)
        ]
    return [f[..., 0] for f in flat]
