"""The values of expressions: by any arithmetic, and in NumPy, over arrays of indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from modelc.ir.arithmetic import converted
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, children
from modelc.ir.scalar import OPERATIONS

Array = NDArray[Any]
T = TypeVar("T")
Env = Mapping[str, Array]


@np.errstate(all="ignore")
def evaluate(e: Expr, env: Env, buffers: Mapping[str, Array]) -> Array:
    """The value of `e` with every iterator bound to an array of indices; shapes broadcast.

    Indices outside a buffer are clamped: a condition (`where`, `select`) has to exclude them from the result.
    """
    return value_of(e, env, buffers)


def value_of(e: Expr, env: Env, buffers: Mapping[str, Array]) -> Array:
    """evaluate(), for who has silenced NumPy's warnings."""
    (value,) = values_of([e], env, buffers)
    return value


def values_of(body: Sequence[Expr], env: Env, buffers: Mapping[str, Array]) -> list[Array]:
    """The values of several expressions."""
    return walked(body, env, _constant, partial(_loaded, buffers), _operate)


def walked(
    roots: Sequence[Expr],
    env: Mapping[str, T],
    constant: Callable[[Const], T],
    load: Callable[[Load, list[T]], T],
    operate: Callable[[Op, list[T]], T],
    below: Callable[[Expr], tuple[Expr, ...]] = children,
) -> list[T]:
    """The values of expressions by any arithmetic, which says what constants, Loads and Ops come to; `below` names the
    operands. What occurs twice is computed once, and kept as long as something needs it."""
    values: dict[int, T] = {}
    steps, places = _in_order(roots, below)
    for place, (e, operands, last_used) in enumerate(steps):
        if isinstance(e, Var):
            values[place] = env[e.name]
        elif isinstance(e, Const):
            values[place] = constant(e)
        elif isinstance(e, Load):
            values[place] = load(e, [values[k] for k in operands])
        else:
            assert isinstance(e, Op), f"{e} is a size, and what is interpreted has numbers"
            values[place] = operate(e, [values[k] for k in operands])
        for k in last_used:
            del values[k]
    return [values[k] for k in places]


Step = tuple[Expr, list[int], list[int]]  # its operands' places among all steps; those that no later step reads


def _in_order(roots: Sequence[Expr], below: Callable[[Expr], tuple[Expr, ...]]) -> tuple[list[Step], list[int]]:
    """What `roots` are computed by, operands first, and the places of the roots; kept with the first of these."""
    order = getattr(roots[0], "_order", None)  # (below, roots, steps and places)
    if order is not None and order[0] is below and len(order[1]) == len(roots) and all(map(is_, order[1], roots)):
        return order[2]  # type: ignore[no-any-return]
    place: dict[int, int] = {}  # by an expression's identity
    equal: dict[object, int] = {}
    steps: list[Step] = []
    stack: list[tuple[Expr, tuple[Expr, ...] | None]] = [(e, None) for e in reversed(roots)]
    while stack:
        e, operands = stack.pop()
        if id(e) in place:
            continue
        if operands is None and (operands := below(e)):
            stack.append((e, operands))
            stack += [(x, None) for x in operands]
            continue
        reads = [place[id(x)] for x in operands]
        number = place[id(e)] = equal.setdefault(_content(e, reads), len(steps))
        if number == len(steps):
            steps.append((e, reads, []))
    places = [place[id(e)] for e in roots]
    needed = {*places}
    for _, reads, last_used in reversed(steps):
        last_used += [k for k in dict.fromkeys(reads) if k not in needed]
        needed.update(last_used)
    object.__setattr__(roots[0], "_order", (below, tuple(roots), (steps, places)))
    return steps, places


def _content(e: Expr, operands: list[int]) -> object:
    """What equal expressions have alike, whose operands are numbered."""
    if isinstance(e, Op):
        return e.name, e.dtype, *operands
    return (e.buffer, *operands) if isinstance(e, Load) else e


def _constant(e: Const) -> Array:
    return np.asarray(e.value, DTYPES[e.dtype])


def _loaded(buffers: Mapping[str, Array], e: Load, indices: list[Array]) -> Array:
    data = buffers[e.buffer]
    if not indices:
        return data
    inside = [np.minimum(np.maximum(i, 0), extent - 1) for i, extent in zip(indices, data.shape, strict=True)]
    return np.asarray(data[tuple(inside)])


def _operate(e: Op, args: list[Array]) -> Array:
    operation = OPERATIONS[e.name]
    if operation.result == "cast":
        assert e.dtype is not None
        if e.name == "bits":
            return np.asarray(args[0], order="C").view(DTYPES[e.dtype])
        return converted(args[0], DTYPES[e.dtype])
    result = operation.meaning(*args)
    dtype = np.dtype(np.bool_) if operation.result == "bool" else args[1 if operation.result == "select" else 0].dtype
    if isinstance(result, np.ndarray) and result.dtype == dtype:
        return result
    return np.asarray(result).astype(dtype, copy=False)
