"""Convolutions: one contraction Block each, then a Block for the bias."""

from __future__ import annotations

from math import prod

from modelc.ir.block import Block, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, op
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    accumulator,
    assign,
    fail,
    fold,
    given,
    grid,
    ints,
    known_ints,
    point,
    required,
    text,
    tidy,
    widened,
    within,
)
from modelc.ops.taps import single_taps
from modelc.ops.window import SPACE, TAPS, Window, spatial_rank, window


def finished(contraction: Block, output: Shape, dtype: str, summed: str, bias: bool, at: int = 2) -> Definition:
    """`contraction` (which writes `sum`), then input `at`, a number per channel, added; straight into `y0` if there is
    nothing to add or convert."""
    if not bias and summed == dtype:
        (write,) = contraction.writes
        direct = Block(
            contraction.name,
            contraction.iters,
            (Load("y0", write.indices),),
            contraction.body,
            contraction.aggregation,
            contraction.where,
        )
        return Definition((), (direct,))
    iters = grid(output, ("n", "o", *SPACE[len(output) - 2]))
    over = point(iters)
    body: Expr = Load("sum", over)
    if bias:
        body = body + widened(Load(f"x{at}", (Var("o"),)), dtype, summed)
    block = assign("bias" if bias else "round", iters, Load("y0", over), widened(body, summed, dtype))
    return Definition((Buffer("sum", summed, output),), (contraction, block))


# --- Conv ---------------------------------------------------------------------------------------------------------


def conv_geometry(node: Node, x: Value, w: Value) -> tuple[Window, int]:
    """The window and the number of groups; checks that input and weights fit."""
    spatial_rank(node, len(x.shape))
    if len(w.shape) != len(x.shape):
        fail(node, f"expected weights of {len(x.shape)} dimensions, found {list(w.shape)}")
    groups = int(node.attrs.get("group", 1))
    if groups < 1 or w.shape[0] % groups or w.shape[1] * groups != x.shape[1]:
        fail(
            node,
            f"expected {x.shape[1]} input channels in {groups} groups, found weights {list(w.shape)}",
        )
    if ints(node, "kernel_shape", w.shape[2:]) != w.shape[2:]:
        fail(node, f"expected kernel_shape {list(w.shape[2:])} as the weights, found {node.attrs['kernel_shape']}")
    return window(node, x.shape[2:], w.shape[2:]), groups


def conv_shape(node: Node, x: Value, w: Value) -> Shape:
    return (x.shape[0], w.shape[0], *conv_geometry(node, x, w)[0].output)


def conv_infer(node: Node, inputs: Inputs) -> Types:
    x, w, bias = required(node, inputs, 0), required(node, inputs, 1), given(inputs, 2)
    if bias is not None and bias.shape != (w.shape[0],):
        fail(node, f"expected a bias of {w.shape[0]} elements, found {list(bias.shape)}")
    return ((x.dtype, conv_shape(node, x, w)),)


def conv_block(node: Node, x: Value, w: Value, read: tuple[str, str] = ("x0", "x1")) -> Block:
    """The contraction into `sum`, with plain Loads of `read` as operands (callers may wrap them)."""
    win, groups = conv_geometry(node, x, w)
    rank = len(win.kernel)
    space, taps = SPACE[rank], TAPS[rank]
    per_group, channels = w.shape[0] // groups, w.shape[1]
    depthwise = groups > 1 and per_group == 1 and channels == 1
    if depthwise:
        outer, reduced = [Iter("c", groups)], []
        written: Expr = Var("c")
        channel: Expr = Var("c")
        weight: tuple[Expr, Expr] = (Var("c"), Const(0))
    else:
        outer = [Iter("g", groups)] * (groups > 1) + [Iter("o", per_group)]
        reduced = [Iter("c", channels, True)] if channels > 1 or groups == 1 else []
        inner: Expr = Var("c") if reduced else Const(0)
        written = Var("g") * per_group + Var("o") if groups > 1 else Var("o")
        channel = Var("g") * channels + inner if groups > 1 else inner
        weight = (written, inner)
    iters = (
        Iter("n", x.shape[0]),
        *outer,
        *(Iter(a, e) for a, e in zip(space, win.output, strict=True)),
        *reduced,
        *(Iter(a, e, True) for a, e in zip(taps, win.kernel, strict=True)),
    )
    ranges = {i.name: i.extent for i in iters}
    at = [tidy(win.index(k, a, t), iters) for k, (a, t) in enumerate(zip(space, taps, strict=True))]
    where = [c for index, extent in zip(at, win.input, strict=True) for c in within(index, extent, ranges)]
    data = Load(read[0], (Var("n"), channel, *at))
    weights = Load(read[1], (*weight, *point(taps)))
    return fold("add", "conv", iters, Load("sum", (Var("n"), written, *point(space))), data * weights, where)


def conv_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, w = required(node, inputs, 0), required(node, inputs, 1)
    block = in_accumulator(single_taps(conv_block(node, x, w)), x.dtype)
    return finished(block, conv_shape(node, x, w), x.dtype, accumulator(x.dtype), given(inputs, 2) is not None)


def in_accumulator(block: Block, dtype: str) -> Block:
    """Half floats are widened before they are multiplied."""
    wide = accumulator(dtype)
    if wide == dtype:
        return block
    return block.mapped(lambda e: cast(wide, e) if isinstance(e, Load) else None)


# --- ConvTranspose ------------------------------------------------------------------------------------------------


def _transposed_window(node: Node, x: Value, w: Value) -> Window:
    """`output` is the transposed convolution's output, `before` what is cut off at its front."""
    rank = spatial_rank(node, len(x.shape))
    space, kernel = x.shape[2:], w.shape[2:]
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    extra = ints(node, "output_padding", [0] * rank)
    full = [strides[k] * (space[k] - 1) + extra[k] + (kernel[k] - 1) * dilations[k] + 1 for k in range(rank)]
    mode = text(node, "auto_pad", "NOTSET")
    shape = tuple(node.attrs.get("output_shape") or ())[-rank:]
    if not shape and mode in ("SAME_UPPER", "SAME_LOWER"):
        shape = tuple(n * s for n, s in zip(space, strides, strict=True))
    if shape:
        totals = [max(full[k] - shape[k], 0) for k in range(rank)]
        less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
        output = tuple(int(n) for n in shape)
    else:
        pads = ints(node, "pads", [0] * 2 * rank) if mode == "NOTSET" else (0,) * 2 * rank
        before, after = pads[:rank], pads[rank:]
        output = tuple(full[k] - before[k] - after[k] for k in range(rank))
    if min(output) < 1:
        fail(node, f"expected an output of at least one element per dimension, found {list(output)}")
    return Window(space, kernel, strides, dilations, before, after, output)


def transposed_infer(node: Node, inputs: Inputs) -> Types:
    x, w = required(node, inputs, 0), required(node, inputs, 1)
    spatial_rank(node, len(x.shape))
    groups = int(node.attrs.get("group", 1))
    if len(w.shape) != len(x.shape) or w.shape[0] != x.shape[1] or x.shape[1] % groups:
        fail(node, f"expected weights for {x.shape[1]} input channels in {groups} groups, found {list(w.shape)}")
    return ((x.dtype, (x.shape[0], w.shape[1] * groups, *_transposed_window(node, x, w).output)),)


def _phases(win: Window, k: int) -> tuple[list[Iter], list[Iter], Expr, Expr, Expr, list[Expr]]:
    """One dimension of a transposed convolution as a gather: spatial and reduction iterators, the index written, the
    index read, the kernel index, and conditions. Without dilation it goes over the phases of the stride (output
    p = stride*q + phase), so that every kernel tap visited is used; with dilation, by a congruence condition."""
    rank = len(win.kernel)
    at, tap = SPACE[rank][k], TAPS[rank][k]
    stride, dilation, before, kernel = win.strides[k], win.dilations[k], win.before[k], win.kernel[k]
    output = win.output[k]
    if stride == 1 or dilation > 1:
        spatial, reduced = [Iter(at, output)], [Iter(tap, kernel, True)]
        scaled: Expr = Var(at) + before - Var(tap) * dilation
        if stride == 1:
            return spatial, reduced, Var(at), scaled, Var(tap), []
        return spatial, reduced, Var(at), scaled // stride, Var(tap), [op("eq", scaled % stride, 0)]
    quotient, phase, tap_quotient = Var(f"{at}q"), Var(f"p{at}"), Var(f"{tap}q")
    spatial = [Iter(quotient.name, -(-output // stride)), Iter(phase.name, stride)]
    reduced = [Iter(tap_quotient.name, -(-kernel // stride), True)]
    shifted = phase + before
    written = quotient * stride + phase
    weight = tap_quotient * stride + shifted % stride
    conditions = [op("lt", weight, kernel)] if kernel % stride else []
    conditions += [op("lt", written, output)] if output % stride else []
    return spatial, reduced, written, quotient + shifted // stride - tap_quotient, weight, conditions


def transposed_define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    x, w = required(node, inputs, 0), required(node, inputs, 1)
    ((dtype, output),) = transposed_infer(node, inputs)
    win, groups = _transposed_window(node, x, w), int(node.attrs.get("group", 1))
    parts = [_phases(win, k) for k in range(len(win.kernel))]
    channels, per_group = x.shape[1] // groups, w.shape[1]
    if groups > 1 and channels == per_group == 1:
        outer, reduced = [Iter("c", groups)], []
        written: Expr = Var("c")
        channel: Expr = Var("c")
        weight: tuple[Expr, Expr] = (Var("c"), Const(0))
    else:
        outer = [Iter("g", groups)] * (groups > 1) + [Iter("o", per_group)]
        reduced = [Iter("c", channels, True)]
        written = Var("g") * per_group + Var("o") if groups > 1 else Var("o")
        channel = Var("g") * channels + Var("c") if groups > 1 else Var("c")
        weight = (channel, Var("o"))
    iters = (
        Iter("n", x.shape[0]),
        *outer,
        *(i for p in parts for i in p[0]),
        *reduced,
        *(i for p in parts for i in p[1]),
    )
    ranges = {i.name: i.extent for i in iters}
    at = [tidy(p[3], iters) for p in parts]
    where = [c for p in parts for c in p[5]]
    where += [c for index, extent in zip(at, win.input, strict=True) for c in within(index, extent, ranges)]
    data = Load("x0", (Var("n"), channel, *at))
    weights = Load("x1", (*weight, *(tidy(p[4], iters) for p in parts)))
    write = Load("sum", (Var("n"), written, *(p[2] for p in parts)))
    block = single_taps(fold("add", "convtranspose", iters, write, data * weights, where))
    return finished(in_accumulator(block, dtype), output, dtype, accumulator(dtype), given(inputs, 2) is not None)


# --- Col2Im -------------------------------------------------------------------------------------------------------


def _columns(node: Node, inputs: Inputs) -> tuple[Window, Shape]:
    """The window that slid over the image (`output` counts its places), and the image's shape."""
    x = required(node, inputs, 0)
    image, kernel = known_ints(node, inputs, 1, "image_shape"), known_ints(node, inputs, 2, "block_shape")
    if image is None or kernel is None or len(image) != len(kernel) or len(image) not in SPACE:
        fail(node, f"expected image and block of 1 to 3 dimensions, found {image} and {kernel}")
    win = window(node, image, kernel)
    if len(x.shape) != 3 or x.shape[1] % prod(kernel) or x.shape[2] != prod(win.output):
        fail(node, f"expected columns of {prod(win.output)} blocks of {prod(kernel)} elements, found {list(x.shape)}")
    return win, (x.shape[0], x.shape[1] // prod(kernel), *image)


def _col2im(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Every pixel sums the blocks that cover it."""
    x = required(node, inputs, 0)
    win, shape = _columns(node, inputs)
    rank = len(win.kernel)
    space, taps = SPACE[rank], TAPS[rank]
    iters = (
        *grid(shape, ("n", "c", *space)),
        *(Iter(t, e, True) for t, e in zip(taps, win.kernel, strict=True)),
    )
    ranges = {i.name: i.extent for i in iters}
    row: Expr = Var("c")
    column: Expr = Const(0)
    where: list[Expr] = []
    for k, (at, tap) in enumerate(zip(space, taps, strict=True)):
        scaled = Var(at) + win.before[k] - Var(tap) * win.dilations[k]
        place = tidy(scaled // win.strides[k], iters)
        where += [op("eq", scaled % win.strides[k], 0)] if win.strides[k] > 1 else []
        where += within(place, win.output[k], ranges)
        row, column = row * win.kernel[k] + Var(tap), column * win.output[k] + place
    over = point(("n", "c", *space))
    block = fold("add", "col2im", iters, Load("sum", over), Load("x0", (Var("n"), row, column)), where)
    return finished(in_accumulator(block, x.dtype), shape, x.dtype, accumulator(x.dtype), False)


OPERATORS = (
    Operator("Conv", conv_infer, conv_define),
    Operator("Col2Im", lambda node, inputs: ((required(node, inputs, 0).dtype, _columns(node, inputs)[1]),), _col2im),
    Operator("ConvTranspose", transposed_infer, transposed_define),
)
