"""Quantised operators: whole numbers stand for (number - zero point) * scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from modelc.ir.block import Block, Buffer
from modelc.ir.expr import DTYPES, NARROW_FLOATS, Const, Expr, Load, Var, cast, const, op, select
from modelc.ir.graph import Node, Value
from modelc.ops.conv import conv_block, conv_shape
from modelc.ops.matmul import matmul_block, matmul_shape
from modelc.ops.narrow import decoded, encoded, is_narrow, limits_of, wide_of
from modelc.ops.operator import (
    FLOATS,
    Definition,
    Inputs,
    Operator,
    Shape,
    Types,
    accumulator,
    assign,
    axis_of,
    clamped,
    fail,
    fold,
    given,
    grid,
    names,
    point,
    renamed_output,
    required,
    scalar,
    widened,
)
from modelc.ops.window import SPACE

Outputs = tuple[Value | None, ...]
BYTES = ("int8", "uint8")


def real_of(*values: Value) -> str:
    """What whole numbers are scaled and rounded in: float32, but in a graph of float64."""
    return "float64" if any(v.dtype == "float64" for v in values) else "float32"


def saturated(e: Expr, of: str, to: str, zero: Expr | None = None) -> Expr:
    """A float that was rounded, and `zero` added, clamped to what the integer dtype `to` holds, NaN the least of that:
    it is cast to 0, so that signed numbers are moved before and after."""
    if is_narrow(to):
        return _saturated_narrow(_plus(e, zero), of, to)
    limits = np.iinfo(DTYPES[to])
    if limits.min == 0 or limits.bits > 16:  # larger floats, moved, lose digits
        return clamped(_plus(e, zero), of, to)
    unsigned, least = f"u{to}", const(int(limits.min), of)
    if isinstance(zero, Const):  # both are small: a float that loses digits by their difference is clamped anyway
        moved = const(float(zero.value) - float(least.value), of)
        e = e if moved.value == 0 else e + moved
    else:
        e = _plus(e, zero) - least
    return cast(to, clamped(e, of, unsigned) - const(-int(limits.min), unsigned))


def _plus(e: Expr, zero: Expr | None) -> Expr:
    return e if zero is None else e + zero


def _saturated_narrow(e: Expr, of: str, to: str) -> Expr:
    """Floats saturate as they are encoded."""
    if to in NARROW_FLOATS:
        return encoded(e, of, to)
    least, largest = (const(limit, of) for limit in limits_of(to))
    return encoded(op("min", op("max", e, least), largest), of, to)


def zero_point(inputs: Inputs, k: int, at: Sequence[Expr], to: str) -> Expr | None:
    """The zero point that input `k` holds at `at`, as `to`; None if it is absent or known to be zero."""
    value = given(inputs, k)
    if value is None or (value.data is not None and not value.data.astype(np.float64).any()):
        return None
    per_tensor = value.shape == (1,) or not value.shape  # whatever shape the scale of one number has
    number = scalar(value) or Load(f"x{k}", (Const(0),) * len(value.shape) if per_tensor else tuple(at))
    return cast(to, decoded(number, value.dtype) if is_narrow(value.dtype) else number)


# --- QuantizeLinear, DequantizeLinear -------------------------------------------------------------------------------


def _per(node: Node, x: Value, scale: Value, over: Sequence[Expr]) -> tuple[Expr, ...]:
    """Indices into scale and zero point: one for all, one per index of `axis`, or one per block along it."""
    if len(scale.shape) == 0 or scale.shape == (1,):
        return (Const(0),) * len(scale.shape)
    axis, block = axis_of(node, len(x.shape), 1), int(node.attrs.get("block_size", 0))
    if len(scale.shape) == 1 and scale.shape[0] == x.shape[axis]:
        return (over[axis],)
    if block and len(scale.shape) == len(x.shape):
        return tuple(i // block if k == axis else i for k, i in enumerate(over))
    fail(node, f"expected scales for axis {axis} of {list(x.shape)}, found {list(scale.shape)}")


def _quantize_infer(node: Node, inputs: Inputs) -> Types:
    x, zero = required(node, inputs, 0), given(inputs, 2)
    dtype = zero.dtype if zero is not None else node.attrs.get("output_dtype") or "uint8"
    if dtype in FLOATS or dtype not in DTYPES:
        fail(node, f"expected to quantise to whole numbers, or to floats of 8 or 4 bits, found {dtype}")
    return ((str(dtype), x.shape),)


def _quantize(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, scale = required(node, inputs, 0), required(node, inputs, 1)
    ((dtype, shape),) = _quantize_infer(node, inputs)
    over, real = point(names(len(shape))), real_of(x, scale)
    at = _per(node, x, scale, over)
    body = widened(Load("x0", over), x.dtype, real)
    if scale.data is None or (scale.data != 1).any():
        body = body / widened(Load("x1", at), scale.dtype, real)
    body = body if dtype in NARROW_FLOATS else op("round", body)
    zero, limits = zero_point(inputs, 2, at, real), node.attrs.get("limits")
    if dtype in NARROW_FLOATS:
        body = encoded(_plus(body, zero), real, dtype, bool(node.attrs.get("saturate", 1)))
    elif limits is not None:  # which passes set: numbers that were bytes once (passes/written_as_read.py)
        least, largest = (const(int(limit), real) for limit in limits)
        body = cast(dtype, op("min", op("max", _plus(body, zero), least), largest))
    else:
        body = saturated(body, real, dtype, zero)
    return Definition((), (assign("quantize", grid(shape), Load("y0", over), body),))


def _dequantize_infer(node: Node, inputs: Inputs) -> Types:
    scale = required(node, inputs, 1)
    return ((str(node.attrs.get("output_dtype") or scale.dtype), required(node, inputs, 0).shape),)


def _dequantize(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x, scale = required(node, inputs, 0), required(node, inputs, 1)
    ((dtype, shape),) = _dequantize_infer(node, inputs)
    wide = accumulator(dtype)
    over = point(names(len(shape)))
    at = _per(node, x, scale, over)
    number: Expr = Load("x0", over)
    between = "int32"
    if is_narrow(x.dtype):
        number, between = decoded(number, x.dtype), wide_of(x.dtype)
    zero = zero_point(inputs, 2, at, between)
    number = cast(between, number) - zero if zero is not None else number
    body = cast(wide, number) * widened(Load("x1", at), scale.dtype, wide)
    return Definition((), (assign("dequantize", grid(shape), Load("y0", over), widened(body, wide, dtype)),))


def _table_infer(node: Node, inputs: Inputs) -> Types:
    x, dtype, table = required(node, inputs, 0), node.attrs.get("to"), node.attrs.get("table", ())
    if x.dtype not in BYTES or dtype not in BYTES or len(table) != 256:
        fail(node, f"expected bytes, and 256 of int8 or uint8 that stand for them, found {x.dtype} and {len(table)}")
    return ((str(dtype), x.shape),)


def _table(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    """Entry b of the attribute `table`, from 0 to 255, is what the byte of these bits becomes, less the least of the
    dtype `to`."""
    ((dtype, shape),) = _table_infer(node, inputs)
    over, least = point(names(len(shape))), np.iinfo(DTYPES[dtype]).min
    words = np.array(node.attrs["table"], np.uint8).view("<i4")
    byte = op("lookup", cast("int32", Load("x0", over)), *(const(int(word), "int32") for word in words))
    body = cast(dtype, byte if least == 0 else byte + const(int(least), "int32"))
    return Definition((), (assign("table", grid(shape), Load("y0", over), body),))


def _dynamic_infer(node: Node, inputs: Inputs) -> Types:
    x = required(node, inputs, 0)
    return (("uint8", x.shape), (real_of(x), ()), ("uint8", ()))


def _dynamic(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    x = required(node, inputs, 0)
    shape, t = x.shape, real_of(x)
    over, reducing, zero = point(names(len(shape))), grid(shape, reduce=range(len(shape))), const(0.0, t)
    low, high = op("min", Load("low", ()), zero), op("max", Load("high", ()), zero)
    scale, point_ = Load("y1", ()), Load("y2", ())
    blocks = (
        fold("min", "low", reducing, Load("low", ()), Load("x0", over)),
        fold("max", "high", reducing, Load("high", ()), Load("x0", over)),
        assign("scale", (), scale, select(op("eq", low, high), const(1.0, t), (high - low) / const(255.0, t))),
        assign("zero", (), point_, saturated(op("round", op("neg", low) / scale), t, "uint8")),
        assign(
            "quantize",
            grid(shape),
            Load("y0", over),
            saturated(op("round", Load("x0", over) / scale), t, "uint8", cast(t, point_)),
        ),
    )
    return Definition((Buffer("low", t, ()), Buffer("high", t, ())), blocks)


# --- contractions of whole numbers --------------------------------------------------------------------------------


def centred(block: Block, inputs: Inputs, zeros: dict[str, tuple[int, Callable[[Load], tuple[Expr, ...]]]]) -> Block:
    """The contraction in int32, each operand less its zero point: `zeros` says for each operand which input holds it,
    and at which indices."""

    def visit(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.buffer not in zeros:
            return None
        k, indices = zeros[e.buffer]
        zero = zero_point(inputs, k, indices(e), "int32")
        return cast("int32", e) if zero is None else cast("int32", e) - zero

    return block.mapped(visit)


def _one_or(value: Value | None, at: Callable[[Load], tuple[Expr, ...]]) -> Callable[[Load], tuple[Expr, ...]]:
    """Indices into a scalar, or into one number per row, column or channel."""
    if value is None or value.shape in ((), (1,)):
        return lambda load: (Const(0),) * (0 if value is None else len(value.shape))
    return at


def _tail(value: Value | None, keep: int) -> Callable[[Load], tuple[Expr, ...]]:
    """Indices of a matrix operand for its zero point: per row (keep=-2) or per column (keep=-1)."""
    rank = 0 if value is None else len(value.shape)

    def at(load: Load) -> tuple[Expr, ...]:
        if rank == 1:
            return (load.indices[keep],)
        return tuple(i if n != 1 else Const(0) for i, n in zip(load.indices, value.shape, strict=True))  # type: ignore[union-attr]

    return _one_or(value, at)


def bounded(node: Node, inputs: Inputs, block: Block) -> Block:
    """The contraction with activations and weights clamped between numbers that the attributes `activations_within` and
    `within` give, which passes set where they are so: some instructions multiply no others exactly
    (modelc/target/intrinsics.py), and numbers that are small can be added up before they are multiplied."""
    bounds = {"x0": node.attrs.get("activations_within"), "x1": node.attrs.get("within")}
    dtypes = {"x0": inputs[0], "x1": inputs[1]}

    def visit(e: Expr) -> Expr | None:
        bound, value = (bounds.get(e.buffer), dtypes.get(e.buffer)) if isinstance(e, Load) else (None, None)
        if bound is None or value is None:
            return None
        least, largest = (const(int(number), value.dtype) for number in bound)
        return op("min", op("max", e, least), largest)

    return block.mapped(visit) if any(bounds.values()) else block


def _contracted(node: Node, inputs: Inputs, place: int) -> Block:
    """The contraction of input 0 and input `place`; their zero points are inputs 2 and `place` + 2."""
    names, zeros = ("x0", f"x{place}"), (given(inputs, 2), given(inputs, place + 2))
    x, w = required(node, inputs, 0), required(node, inputs, place)
    if "Conv" in node.op:
        at = _one_or(zeros[0], lambda load: load.indices[1:2]), _one_or(zeros[1], lambda load: load.indices[:1])
        block = conv_block(node, x, w, names)
    else:
        at = _tail(zeros[0], -2), _tail(zeros[1], -1)
        block = matmul_block(node, x, w, names)
    return centred(block, inputs, {names[0]: (2, at[0]), names[1]: (place + 2, at[1])})


def _contracted_shape(node: Node, inputs: Inputs, place: int) -> Shape:
    shape = conv_shape if "Conv" in node.op else matmul_shape
    return shape(node, required(node, inputs, 0), required(node, inputs, place))


def _integer_infer(node: Node, inputs: Inputs) -> Types:
    return (("int32", _contracted_shape(node, inputs, 1)),)


def _integer(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    block = _contracted(node, inputs, 1)
    return Definition((), (renamed_output(bounded(node, inputs, block), "y0"),))


def _scale_at(inputs: Inputs, k: int, at: Sequence[Expr], real: str) -> Expr:
    value = inputs[k]
    assert value is not None
    indices = (Const(0),) * len(value.shape) if value.shape in ((), (1,)) else tuple(at)
    return widened(Load(f"x{k}", indices), value.dtype, real)


def _linear_infer(node: Node, inputs: Inputs) -> Types:
    return ((required(node, inputs, 7).dtype, _contracted_shape(node, inputs, 3)),)


def _linear(node: Node, inputs: Inputs, outputs: Outputs) -> Definition:
    """The sum in int32, and that as the output's whole numbers: inputs 1, 4, 6 are the scales, 7 the output's zero
    point, 8 a convolution's bias."""
    ((dtype, shape),), block = _linear_infer(node, inputs), _contracted(node, inputs, 3)
    conv, at = node.op == "QLinearConv", block.writes[0].indices
    x = required(node, inputs, 0)
    named = ("n", "o", *SPACE[len(x.shape) - 2]) if conv else tuple(v.name for v in at if isinstance(v, Var))
    rows, columns = ((), (Var("o"),)) if conv else (at[-2:-1], at[-1:])
    total: Expr = Load("sum", point(named))
    if conv and given(inputs, 8) is not None:
        total = total + Load("x8", columns)
    real = real_of(*(v for v in (inputs[1], inputs[4], inputs[6]) if v is not None))
    scale = _scale_at(inputs, 1, rows, real) * _scale_at(inputs, 4, columns, real) / _scale_at(inputs, 6, (), real)
    zero = zero_point(inputs, 7, [Const(0)] * len(inputs[7].shape if inputs[7] else ()), real)
    body = saturated(op("round", cast(real, total) * scale), real, dtype, zero)
    final = assign("requantize", grid(shape, named), Load("y0", point(named)), body)
    return Definition((Buffer("sum", "int32", shape),), (block, final))


OPERATORS = (
    Operator("QuantizeLinear", _quantize_infer, _quantize),
    Operator("DequantizeLinear", _dequantize_infer, _dequantize),
    Operator("ByteTable", _table_infer, _table, elementwise=True),
    Operator("DynamicQuantizeLinear", _dynamic_infer, _dynamic),
    Operator("ConvInteger", _integer_infer, _integer),
    Operator("MatMulInteger", _integer_infer, _integer),
    Operator("QLinearConv", _linear_infer, _linear),
    Operator("QLinearMatMul", _linear_infer, _linear),
)
