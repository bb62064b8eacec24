"""Normalisations: a sum, a sum of centred squares, and the element rewritten with both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from modelc.ir.block import AnyBlock, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    accumulator,
    aligned,
    assign,
    axis_of,
    broadcast,
    fail,
    fold,
    given,
    grid,
    names,
    normal_axes,
    point,
    required,
    same_type,
    widened,
)
from modelc.ops.pool import powered, rooted
from modelc.ops.reduce import kept_point
from modelc.ops.window import SPACE


def _scale(value: Value | None, k: int, index: Sequence[Expr], wide: str) -> Expr | None:
    return None if value is None else widened(Load(f"x{k}", tuple(index)), value.dtype, wide)


def _broadcast(value: Value | None, k: int, at: tuple[Expr, ...], shape: Shape, wide: str) -> Expr | None:
    return None if value is None else _scale(value, k, aligned(value.shape, at, shape), wide)


def _applied(e: Expr, scale: Expr | None, bias: Expr | None) -> Expr:
    e = e if scale is None else e * scale
    return e if bias is None else e + bias


@dataclass(frozen=True)
class _Statistics:
    """Blocks that give mean and inverse deviation of every row, and an element normalised with them."""

    locals: tuple[Buffer, ...]
    blocks: tuple[AnyBlock, ...]
    normal: Expr


def _statistics(
    dtype: str,
    iters: Sequence[Iter],
    each: Expr,
    rows: Sequence[str],
    epsilon: float,
    mean: Load | None = None,
    invstd: Load | None = None,
) -> _Statistics:
    """Statistics of `each` over the iterators that are not in `rows`. `mean` and `invstd` say where an output wants
    them; else they are locals."""
    wide = accumulator(dtype)
    outer = [i for i in iters if i.name in rows]
    inner = [Iter(i.name, i.extent, True) for i in iters if i.name not in rows]
    row, shape = point(outer), tuple(i.extent for i in outer)
    total, squares = Load("total", row), Load("squares", row)
    local = ["total", "squares"] + ["mean"] * (mean is None) + ["invstd"] * (invstd is None)
    mean, invstd = mean or Load("mean", row), invstd or Load("invstd", row)
    count, centred = const(prod(i.extent for i in inner), wide), each - mean
    deviation = op("sqrt", squares / count + const(epsilon, wide))
    blocks = (
        fold("add", "total", (*outer, *inner), total, each),
        assign("mean", outer, mean, total / count),
        fold("add", "squares", (*outer, *inner), squares, centred * centred),
        assign("invstd", outer, invstd, const(1, wide) / deviation),
    )
    return _Statistics(tuple(Buffer(b, wide, shape) for b in local), blocks, centred * invstd)


def _epsilon(node: Node) -> float:
    """What is added below a root."""
    epsilon = float(node.attrs.get("epsilon", 1e-5))
    if not 0 <= epsilon < inf:
        fail(node, f"expected an epsilon of at least 0, found {epsilon}")
    return epsilon


# --- LayerNormalization -------------------------------------------------------------------------------------------


def _layer_infer(node: Node, inputs: Inputs) -> Types:
    x, scale = required(node, inputs, 0), required(node, inputs, 1)
    axis = axis_of(node, len(x.shape), -1)
    _check_broadcast(node, x, (scale, given(inputs, 2)))
    row = (*x.shape[:axis], *[1] * (len(x.shape) - axis))
    wide = accumulator(x.dtype)
    return ((x.dtype, x.shape), (wide, row), (wide, row))[: len(node.outputs)]


def _check_broadcast(node: Node, x: Value, values: Sequence[Value | None]) -> None:
    for value in values:
        if value is not None and broadcast(node, value.shape, x.shape) != x.shape:
            fail(node, f"expected scale and bias to broadcast to {list(x.shape)}, found {list(value.shape)}")


def _rms_infer(node: Node, inputs: Inputs) -> Types:
    _check_broadcast(node, required(node, inputs, 0), (required(node, inputs, 1),))
    return same_type(node, inputs)


def _layer(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axis, wide = axis_of(node, rank, -1), accumulator(x.dtype)
    iters, at = grid(x.shape), point(names(rank))
    each = widened(Load("x0", at), x.dtype, wide)
    padded: tuple[Expr, ...] = (*at[:axis], *[Const(0)] * (rank - axis))
    mean, invstd = (Load(f"y{k}", padded) if k < len(outputs) and outputs[k] is not None else None for k in (1, 2))
    rows = [i.name for i in iters[:axis]]
    stats = _statistics(x.dtype, iters, each, rows, _epsilon(node), mean, invstd)
    scale, bias = (_broadcast(given(inputs, k), k, at, x.shape, wide) for k in (1, 2))
    final = assign("normal", iters, Load("y0", at), widened(_applied(stats.normal, scale, bias), wide, x.dtype))
    return Definition(stats.locals, (*stats.blocks, final))


def _rms(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axis, wide = axis_of(node, rank, -1), accumulator(x.dtype)
    iters, at = grid(x.shape), point(names(rank))
    each = widened(Load("x0", at), x.dtype, wide)
    row = at[:axis]
    squares, scale = Load("squares", row), required(node, inputs, 1)
    mean = squares / const(prod(x.shape[axis:]), wide) + const(_epsilon(node), wide)
    final = each * Load("invrms", row) * widened(Load("x1", aligned(scale.shape, at, x.shape)), scale.dtype, wide)
    blocks = (
        fold("add", "squares", grid(x.shape, reduce=range(axis, rank)), squares, each * each),
        assign("invrms", iters[:axis], Load("invrms", row), const(1, wide) / op("sqrt", mean)),
        assign("normal", iters, Load("y0", at), widened(final, wide, x.dtype)),
    )
    return Definition(tuple(Buffer(b, wide, x.shape[:axis]) for b in ("squares", "invrms")), blocks)


# --- per channel --------------------------------------------------------------------------------------------------


def _named(rank: int) -> tuple[str, ...]:
    return ("n", "c", *SPACE.get(rank - 2, tuple(f"i{k}" for k in range(rank - 2))))


def _instance(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    wide, named = accumulator(x.dtype), _named(len(x.shape))
    iters, at = grid(x.shape, named), point(named)
    each = widened(Load("x0", at), x.dtype, wide)
    stats = _statistics(x.dtype, iters, each, [i.name for i in iters[:2]], _epsilon(node))
    scale, bias = (_scale(given(inputs, k), k, (Var("c"),), wide) for k in (1, 2))
    final = assign("normal", iters, Load("y0", at), widened(_applied(stats.normal, scale, bias), wide, x.dtype))
    return Definition(stats.locals, (*stats.blocks, final))


def _group(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    groups = int(node.attrs.get("num_groups", 0))
    if groups < 1 or x.shape[1] % groups:
        fail(node, f"expected num_groups to divide {x.shape[1]} channels, found {groups}")
    wide, named = accumulator(x.dtype), _named(len(x.shape))
    shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    iters = grid(shape, ("n", "g", *named[1:]))
    channel = Var("g") * shape[2] + Var("c")
    at = (Var("n"), channel, *point(named[2:]))
    each = widened(Load("x0", at), x.dtype, wide)
    stats = _statistics(x.dtype, iters, each, [i.name for i in iters[:2]], _epsilon(node))
    scale, bias = (_scale(given(inputs, k), k, (channel,), wide) for k in (1, 2))
    final = assign("normal", iters, Load("y0", at), widened(_applied(stats.normal, scale, bias), wide, x.dtype))
    return Definition(stats.locals, (*stats.blocks, final))


def _batch_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    if node.attrs.get("training_mode", 0) or len([o for o in node.outputs if o]) > 1:
        fail(node, "expected a BatchNormalization for inference (training_mode=0, one output); export the model for it")
    for k in range(1, 5):
        if required(node, inputs, k).shape != x.shape[1:2]:
            fail(node, f"expected {x.shape[1:2]} elements in input {k}, found {list(required(node, inputs, k).shape)}")
    return ((x.dtype, x.shape),)


def _batch(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    wide, named = accumulator(x.dtype), _named(len(x.shape))[: len(x.shape)]
    at = point(named)
    channel = at[1:2]
    scale, bias, mean, variance = (_scale(given(inputs, k), k, channel, wide) for k in (1, 2, 3, 4))
    assert scale is not None and bias is not None and mean is not None and variance is not None
    deviation = op("sqrt", variance + const(_epsilon(node), wide))
    body = (widened(Load("x0", at), x.dtype, wide) - mean) * (scale / deviation) + bias
    return Definition((), (assign("batchnorm", grid(x.shape, named), Load("y0", at), widened(body, wide, x.dtype)),))


# --- the rest -----------------------------------------------------------------------------------------------------


def _mean_variance(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank = len(x.shape)
    axes = normal_axes(node, node.attrs.get("axes") or (0, 2, 3), rank)
    wide = accumulator(x.dtype)
    iters, at = grid(x.shape), point(names(rank))
    each = widened(Load("x0", at), x.dtype, wide)
    stats = _statistics(x.dtype, iters, each, [i.name for k, i in enumerate(iters) if k not in axes], 1e-18)
    final = assign("normal", iters, Load("y0", at), widened(stats.normal, wide, x.dtype))
    return Definition(stats.locals, (*stats.blocks, final))


def _lp(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x = required(node, inputs, 0)
    rank, p = len(x.shape), int(node.attrs.get("p", 2))
    if p not in (1, 2):
        fail(node, f"expected p 1 or 2, found {p}")
    axis, wide = axis_of(node, rank, -1), accumulator(x.dtype)
    at, row = point(names(rank)), kept_point(rank, (axis,), False)
    each = widened(Load("x0", at), x.dtype, wide)
    total = Load("total", row)
    norm = rooted(total, p, wide)
    zero = const(0, wide)
    body = op("select", op("eq", total, zero), zero, each / norm)
    blocks = (
        fold("add", "total", grid(x.shape, reduce=(axis,)), total, powered(each, p, wide)),
        assign("normal", grid(x.shape), Load("y0", at), widened(body, wide, x.dtype)),
    )
    return Definition((Buffer("total", wide, tuple(n for k, n in enumerate(x.shape) if k != axis)),), blocks)


def _lrn(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Local response: each element over the squares of its neighbours among the channels."""
    x = required(node, inputs, 0)
    size = int(node.attrs.get("size", 1))
    if size < 1:
        fail(node, f"expected a size of at least 1, found {size}")
    before, after = (min(reach, max(x.shape[1] - 1, 0)) for reach in ((size - 1) // 2, size // 2))
    alpha, beta, bias = (node.attrs.get(k, d) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    wide, named = accumulator(x.dtype), _named(len(x.shape))
    iters, at = grid(x.shape, named), point(named)
    channel = Var("c") + Var("r") - before
    neighbour = widened(Load("x0", (at[0], channel, *at[2:])), x.dtype, wide)
    where = (op("ge", channel, 0), op("lt", channel, x.shape[1]))
    base = const(bias, wide) + const(alpha / size, wide) * Load("squares", at)
    body = widened(Load("x0", at), x.dtype, wide) / op("pow", base, const(beta, wide))
    blocks = (
        fold(
            "add",
            "squares",
            (*iters, Iter("r", before + 1 + after, True)),
            Load("squares", at),
            neighbour * neighbour,
            where,
        ),
        assign("lrn", iters, Load("y0", at), widened(body, wide, x.dtype)),
    )
    return Definition((Buffer("squares", wide, x.shape),), blocks)


OPERATORS = (
    Operator("LayerNormalization", _layer_infer, _layer),
    Operator("RMSNormalization", _rms_infer, _rms),
    Operator("InstanceNormalization", same_type, _instance),
    Operator("GroupNormalization", same_type, _group),
    Operator("BatchNormalization", _batch_infer, _batch),
    Operator("MeanVarianceNormalization", same_type, _mean_variance),
    Operator("LpNormalization", same_type, _lp),
    Operator("LRN", same_type, _lrn),
)
