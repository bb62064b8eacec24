"""Data movement: one assign Block over the output, reading the input at another index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from modelc.ir.addresses import claim
from modelc.ir.affine import simplify
from modelc.ir.block import Block
from modelc.ir.expr import Const, Expr, Load, Var, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    aligned,
    assign,
    axis_of,
    broadcast,
    check_known,
    fail,
    given,
    grid,
    known_ints,
    names,
    normal_axes,
    point,
    required,
    same_type,
    text,
    tidy,
)

Outputs = tuple[Value | None, ...]
LAST = (2**31 - 1, 2**63 - 1)  # an end that ONNX Runtime takes for that of the dimension, backwards too


def _moved(
    name: str,
    shape: Callable[[Node, Inputs], Shape],
    index: Callable[[Node, Inputs, tuple[Var, ...], Shape], tuple[Expr, ...]],
    **facts: Any,
) -> Operator:
    """An operator whose output is its input, read at `index(output point)`."""

    def infer(node: Node, inputs: Inputs) -> Types:
        return ((required(node, inputs, 0).dtype, shape(node, inputs)),)

    def define(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
        extents = shape(node, inputs)
        iters, over = grid(extents), point(names(len(extents)))
        at = tuple(tidy(i, iters) for i in index(node, inputs, over, extents))
        return Definition((), (assign(name.lower(), iters, Load("y0", over), Load("x0", at)),))

    return Operator(name, infer, define, **{"numbers": "moves", **facts})


# --- Transpose ----------------------------------------------------------------------------------------------------


def _permutation(node: Node, inputs: Inputs) -> tuple[int, ...]:
    rank = len(required(node, inputs, 0).shape)
    perm = tuple(node.attrs.get("perm") or reversed(range(rank)))
    if sorted(perm) != list(range(rank)):
        fail(node, f"expected perm to permute {rank} dimensions, found {perm}")
    return perm


def _transposed_shape(node: Node, inputs: Inputs) -> Shape:
    shape = required(node, inputs, 0).shape
    return tuple(shape[p] for p in _permutation(node, inputs))


def _transposed(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    perm = _permutation(node, inputs)
    return tuple(over[perm.index(k)] for k in range(len(perm)))


# --- reshapes -----------------------------------------------------------------------------------------------------


def reshaped(source: Shape, target: Shape, over: tuple[Var, ...]) -> tuple[Expr, ...]:
    """Indices into a tensor of shape `source` that is seen as `target`, at the point `over`. Runs of dimensions of
    equal product are matched first, so that what does not change is a plain iterator."""
    if 0 in target:
        return tuple(Const(0) for _ in source)
    ranges = {v.name: e for v, e in zip(over, target, strict=True)}
    result: list[Expr] = []
    i = j = 0
    while i < len(source):
        start_i, start_j = i, j
        i, size_in, size_out = i + 1, source[i], 1
        if size_in == 1:
            result.append(Const(0))
            continue
        while size_in != size_out:
            if size_out < size_in:
                size_out, j = size_out * target[j], j + 1
            else:
                size_in, i = size_in * source[i], i + 1
        flat: Expr = Const(0)
        for k in range(start_j, j):
            if target[k] > 1:
                flat = flat * target[k] + over[k]
        group: list[Expr] = []
        for extent in reversed(source[start_i + 1 : i]):
            group.append(simplify(flat % extent, ranges))
            flat = simplify(flat // extent, ranges)
        result += [simplify(flat, ranges), *reversed(group)]
    return tuple(result)


def _reshape_index(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    return reshaped(required(node, inputs, 0).shape, shape, over)


def _reshape_shape(node: Node, inputs: Inputs) -> Shape:
    source = required(node, inputs, 0).shape
    wanted = known_ints(node, inputs, 1, "shape")
    if wanted is None:
        fail(node, "expected a shape, found none")
    keep = not node.attrs.get("allowzero", 0)
    if keep and any(n == 0 and k >= len(source) for k, n in enumerate(wanted)):
        fail(node, f"expected zeros only among the first {len(source)} entries of the shape, found {list(wanted)}")
    target = [source[k] if n == 0 and keep else n for k, n in enumerate(wanted)]
    if target.count(-1) == 1:
        stated = prod(n for n in target if n != -1)
        target[target.index(-1)] = prod(source) // stated if stated else 0
    if any(n < 0 for n in target) or prod(target) != prod(source):
        fail(node, f"expected a shape of {prod(source)} elements, found {list(wanted)}")
    return tuple(target)


def _flatten_shape(node: Node, inputs: Inputs) -> Shape:
    source = required(node, inputs, 0).shape
    axis = axis_of(node, len(source), 1, extra=1)
    return prod(source[:axis]), prod(source[axis:])


def _squeeze_shape(node: Node, inputs: Inputs) -> Shape:
    source = required(node, inputs, 0).shape
    axes = known_ints(node, inputs, 1, "axes")
    if axes is None:
        return tuple(n for n in source if n != 1)
    axes = normal_axes(node, axes, len(source))
    if wrong := [a for a in axes if source[a] != 1]:
        fail(node, f"expected to squeeze dimensions of one element, found {source[wrong[0]]} at axis {wrong[0]}")
    return tuple(n for k, n in enumerate(source) if k not in axes)


def _unsqueeze_shape(node: Node, inputs: Inputs) -> Shape:
    source = required(node, inputs, 0).shape
    axes = known_ints(node, inputs, 1, "axes")
    if axes is None:
        fail(node, "expected axes, found none")
    rank = len(source) + len(axes)
    axes = normal_axes(node, axes, rank)
    extents = iter(source)
    return tuple(1 if k in axes else next(extents) for k in range(rank))


# --- repetition ---------------------------------------------------------------------------------------------------


def _expand_shape(node: Node, inputs: Inputs) -> Shape:
    wanted = known_ints(node, inputs, 1, "shape")
    if wanted is None:
        fail(node, "expected a shape, found none")
    return broadcast(node, required(node, inputs, 0).shape, wanted)


def _expand_index(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    return aligned(required(node, inputs, 0).shape, over, shape)


def _tile_shape(node: Node, inputs: Inputs) -> Shape:
    source = required(node, inputs, 0).shape
    repeats = known_ints(node, inputs, 1, "repeats")
    if repeats is None or len(repeats) != len(source):
        fail(node, f"expected {len(source)} repeats, found {repeats}")
    return tuple(n * r for n, r in zip(source, repeats, strict=True))


def _tile_index(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    source = required(node, inputs, 0).shape
    return tuple(
        i if extent == n else i % n if n > 1 else Const(0) for i, n, extent in zip(over, source, shape, strict=True)
    )


# --- Slice --------------------------------------------------------------------------------------------------------


def sliced(node: Node, inputs: Inputs) -> list[tuple[int, int, int]]:
    """Start, step and count of every dimension."""
    source = required(node, inputs, 0).shape
    starts, ends = known_ints(node, inputs, 1, "starts"), known_ints(node, inputs, 2, "ends")
    if starts is None or ends is None or len(starts) != len(ends):
        fail(node, f"expected as many starts as ends, found {starts} and {ends}")
    axes = known_ints(node, inputs, 3, "axes")
    axes = tuple(range(len(starts))) if axes is None else normal_axes(node, axes, len(source))
    steps = known_ints(node, inputs, 4, "steps") or (1,) * len(starts)
    if 0 in steps or len(steps) != len(starts) or len(axes) != len(starts):
        fail(node, f"expected {len(starts)} axes and steps other than zero, found {axes} and {steps}")
    result = [(0, 1, n) for n in source]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        last = None if step < 0 and end in LAST else end
        begin, stop, step = slice(start, last, step).indices(source[axis])
        if source[axis]:
            begin = max(begin, 0)  # backwards, ONNX begins with the first element where NumPy has gone past it
        result[axis] = (begin, step, len(range(begin, stop, step)))
    return result


def _slice_index(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    return tuple(i * step + start for i, (start, step, _) in zip(over, sliced(node, inputs), strict=True))


# --- depth and space ----------------------------------------------------------------------------------------------


def _blocksize(node: Node) -> int:
    size = int(node.attrs.get("blocksize", 0))
    if size < 1:
        fail(node, f"expected a blocksize of at least 1, found {size}")
    return size


def _to_space_shape(node: Node, inputs: Inputs) -> Shape:
    x, b = required(node, inputs, 0), _blocksize(node)
    if len(x.shape) != 4 or x.shape[1] % (b * b):
        fail(node, f"expected four dimensions and channels divisible by {b * b}, found {list(x.shape)}")
    n, c, h, w = x.shape
    return n, c // (b * b), h * b, w * b


def _to_space_index(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    b, (n, c, h, w) = _blocksize(node), over
    if text(node, "mode", "DCR") == "CRD":
        channel = c * (b * b) + h % b * b + w % b
    else:
        channel = h % b * (b * shape[1]) + w % b * shape[1] + c
    return n, channel, h // b, w // b


def _to_depth_shape(node: Node, inputs: Inputs) -> Shape:
    x, b = required(node, inputs, 0), _blocksize(node)
    if len(x.shape) != 4 or x.shape[2] % b or x.shape[3] % b:
        fail(node, f"expected four dimensions and a plane divisible by {b}, found {list(x.shape)}")
    n, c, h, w = x.shape
    return n, c * b * b, h // b, w // b


def _to_depth_index(node: Node, inputs: Inputs, over: tuple[Var, ...], shape: Shape) -> tuple[Expr, ...]:
    b, (n, c, h, w) = _blocksize(node), over
    channels = required(node, inputs, 0).shape[1]
    if text(node, "mode", "DCR") == "CRD":
        return n, c // (b * b), h * b + c % (b * b) // b, w * b + c % b
    return n, c % channels, h * b + c // channels // b, w * b + c // channels % b


# --- Concat and Split ---------------------------------------------------------------------------------------------


def _concat_infer(node: Node, inputs: Inputs) -> Types:
    values = [required(node, inputs, k) for k in range(len(inputs))]
    rank = len(values[0].shape)
    if "axis" not in node.attrs:
        fail(node, "expected the attribute axis, found none")
    axis = axis_of(node, rank)
    for v in values:
        others = [n for k, n in enumerate(v.shape) if k != axis]
        if len(v.shape) != rank or others != [n for k, n in enumerate(values[0].shape) if k != axis]:
            fail(node, f"expected shapes that differ in axis {axis} alone, found {[list(v.shape) for v in values]}")
    total = sum(v.shape[axis] for v in values)
    return ((values[0].dtype, (*values[0].shape[:axis], total, *values[0].shape[axis + 1 :])),)


def _concat(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    _concat_infer(node, inputs)
    axis, offset, blocks = axis_of(node, len(required(node, inputs, 0).shape)), 0, []
    for k, value in enumerate(inputs):
        assert value is not None
        iters, over = grid(value.shape), point(names(len(value.shape)))
        to = (*over[:axis], over[axis] + offset, *over[axis + 1 :])
        if prod(value.shape):
            blocks.append(assign(f"part{k}", iters, Load("y0", to), Load(f"x{k}", over)))
        offset += value.shape[axis]
    return Definition((), tuple(blocks))


def _split_sizes(node: Node, inputs: Inputs) -> tuple[int, ...]:
    x = required(node, inputs, 0)
    axis = axis_of(node, len(x.shape))
    sizes, extent = known_ints(node, inputs, 1, "split"), x.shape[axis]
    if sizes is None:
        count = int(node.attrs.get("num_outputs", len(node.outputs)))
        each = -(-extent // count)
        sizes = tuple(max(min(each, extent - k * each), 0) for k in range(count))
    if sum(sizes) != extent or len(sizes) < len(node.outputs):
        fail(node, f"expected {len(node.outputs)} parts of {extent} elements in all, found {list(sizes)}")
    return sizes


def _split_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    axis = axis_of(node, len(x.shape))
    sizes = _split_sizes(node, inputs)[: len(node.outputs)]
    return tuple((x.dtype, (*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in sizes)


def _split(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    axis, offset, blocks = axis_of(node, len(required(node, inputs, 0).shape)), 0, []
    for k, (_, shape) in enumerate(_split_infer(node, inputs)):
        iters, over = grid(shape), point(names(len(shape)))
        at = (*over[:axis], over[axis] + offset, *over[axis + 1 :])
        blocks.append(assign(f"part{k}", iters, Load(f"y{k}", over), Load("x0", at)))
        offset += shape[axis]
    return Definition((), tuple(blocks))


# --- ReverseSequence, Dropout -----------------------------------------------------------------------------------------


def _reverse(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    time, batch = axis_of(node, len(x.shape), 0, "time_axis"), axis_of(node, len(x.shape), 1, "batch_axis")
    iters, over = grid(x.shape), point(names(len(x.shape)))
    lengths = required(node, inputs, 1)
    check_known(node, lengths, lengths.data, 0, x.shape[time])
    length = claim(Load("x1", (over[batch],)), 0, x.shape[time])
    at = list[Expr](over)
    at[time] = select(op("lt", over[time], length), length - 1 - over[time], over[time])
    return Definition((), (assign("reverse", iters, Load("y0", over), Load("x0", tuple(at))),))


def _dropout_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    training = given(inputs, 2)
    if training is not None and (training.data is None or training.data.any()):
        ratio = given(inputs, 1)
        if ratio is None or ratio.data is None or ratio.data.any():
            fail(node, "expected a Dropout for inference (training_mode false); export the model for it")
    return ((x.dtype, x.shape), ("bool", x.shape))[: len(node.outputs)]


def _dropout(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    iters, over = grid(x.shape), point(names(len(x.shape)))
    blocks: list[Block] = [assign("identity", iters, Load("y0", over), Load("x0", over))]
    blocks += [assign("mask", iters, Load("y1", over), Const(True, "bool"))] * (len(outputs) > 1)
    return Definition((), tuple(blocks))


OPERATORS = (
    _moved("Transpose", _transposed_shape, _transposed),
    _moved("Reshape", _reshape_shape, _reshape_index, steers={1: "the shape"}, sizes=(1,)),
    _moved("Flatten", _flatten_shape, _reshape_index),
    _moved("Squeeze", _squeeze_shape, _reshape_index, steers={1: "the axes"}),
    _moved("Unsqueeze", _unsqueeze_shape, _reshape_index, steers={1: "the axes"}),
    _moved("Expand", _expand_shape, _expand_index, steers={1: "the shape"}, sizes=(1,)),
    _moved("Tile", _tile_shape, _tile_index, steers={1: "the repeats"}, sizes=(1,)),
    _moved(
        "Slice",
        lambda node, inputs: tuple(n for _, _, n in sliced(node, inputs)),
        _slice_index,
        steers={1: "the starts", 2: "the ends", 3: "the axes", 4: "the steps"},
        sizes=(1, 2),
        numbers="selects",
    ),
    _moved("DepthToSpace", _to_space_shape, _to_space_index, wraps=True),
    _moved("SpaceToDepth", _to_depth_shape, _to_depth_index, wraps=True),
    Operator("Dropout", _dropout_infer, _dropout, steers={2: "the training mode"}, numbers="moves", elementwise=True),
    Operator("Concat", _concat_infer, _concat, numbers="joins"),
    Operator("Split", _split_infer, _split, steers={1: "the sizes"}, numbers="selects"),
    Operator("ReverseSequence", same_type, _reverse, addresses=(1,), wraps=True),
)
