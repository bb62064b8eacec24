"""What ONNX Runtime's quantizers emit (domain com.microsoft) in ONNX's own words.

Whole numbers stay whole: contractions become MatMulInteger and Conv of whole numbers, sums are int32, and real numbers
are rounded where ONNX Runtime rounds them, in units of what is written, so that a number at a tie falls the same way.
"""

from __future__ import annotations

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.formula import Formula
from modelc.frontend.operators.form import Fused, plain
from modelc.frontend.operators.sums import softmax
from modelc.frontend.operators.windows import windowed

MOST_EXACT = (1 << 24) // 255  # bytes whose sum float32 has exactly
SOFTMAX_SINCE = 13  # operator set from which Softmax is over one axis


# --- scales and zero points -------------------------------------------------------------------------------------------


def _real(f: Formula, k: int, scale: str, zero: int) -> str:
    """Input `k` less its zero point, input `zero`, times `scale`."""
    at = f.n.input(zero)
    return f("DequantizeLinear", f.n.inputs[k], scale, f.scalar(zero, "zero point") if at else "")


def _dequantized(f: Formula, k: int) -> str:
    """Input `k`, of which the next two are scale and zero point."""
    return _real(f, k, f.scalar(k + 1, "scale"), k + 2)


def _zero(f: Formula, k: int, like: str) -> str:
    """The zero point that is input `k`, or 0."""
    return f.scalar(k, "zero point") if f.n.input(k) else f.constant(0, f.dtype(like))


def _quantized(f: Formula, real: str, scale: int, outputs: tuple[str, ...]) -> str:
    """`real` by the scale that is input `scale` and the zero point after it."""
    zero = _zero(f, scale + 1, f.n.inputs[0])
    return f("QuantizeLinear", real, f.scalar(scale, "scale"), zero, outputs=outputs)


def _rounded(f: Formula, steps: str, zero: int) -> None:
    """The output: a real number of its steps rounded, and then its zero point, input `zero`, added."""
    f("QuantizeLinear", steps, f.constant(1), _zero(f, zero, f.n.inputs[0]), outputs=f.n.outputs)


def _moved_and_rounded(f: Formula, steps: str, zero: int, outputs: tuple[str, ...]) -> None:
    """`outputs`: a real number of its steps to which the zero point is added before it is rounded."""
    by = _zero(f, zero, f.n.inputs[0])
    moved = f("Add", steps, f.cast(by, "float32"))
    f("QuantizeLinear", moved, f.constant(1), f.constant(0, f.dtype(by)), outputs=outputs)


def _over(f: Formula, over: int, *scales: int) -> str:
    """The product of input scales over that of the output."""
    product = f.scalar(scales[0], "scale")
    for k in scales[1:]:
        product = f("Mul", product, f.scalar(k, "scale"))
    return f("Div", product, f.scalar(over, "scale"))


# --- element by element -----------------------------------------------------------------------------------------------


def _qlinear_add(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    total = f("Add", _real(f, 0, _over(f, 6, 1), 2), _real(f, 3, _over(f, 6, 4), 5))
    _moved_and_rounded(f, total, 7, n.outputs)


def _qlinear_mul(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    unit = f.constant(1)
    product = f("Mul", _real(f, 0, unit, 2), _real(f, 3, unit, 5))
    _moved_and_rounded(f, f("Mul", product, _over(f, 6, 1, 4)), 7, n.outputs)


def _qlinear_sigmoid(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    _quantized(f, f("Sigmoid", _dequantized(f, 0)), 3, n.outputs)


def _qlinear_leaky_relu(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    _quantized(f, f("LeakyRelu", _dequantized(f, 0), alpha=n.attrs.get("alpha", 0.01)), 3, n.outputs)


def _qlinear_where(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    chosen = f("Where", n.inputs[0], _dequantized(f, 1), _dequantized(f, 4))
    f("QuantizeLinear", chosen, f.scalar(7, "scale"), f.scalar(8, "zero point"), outputs=n.outputs)


def _qlinear_concat(b: Builder, n: OnnxNode) -> None:
    """Each part in the steps of the whole; one that is in them stays as it is."""
    f = Formula(b, n)
    if len(n.inputs) < 5 or (len(n.inputs) - 2) % 3:
        raise n.fail(f"expected scale, zero point and then three inputs for each part, found {len(n.inputs)} inputs")
    parts = []
    for k in range(2, len(n.inputs), 3):
        real = _dequantized(f, k)
        parts.append(f("QuantizeLinear", real, f.scalar(0, "scale"), f.scalar(1, "zero point")))
    f("Concat", *parts, axis=n.attrs["axis"], outputs=n.outputs)


# --- reductions and windows -------------------------------------------------------------------------------------------


def _qlinear_softmax(b: Builder, n: OnnxNode) -> None:
    """Multiplied by as many whole steps as there are in 1."""
    f = Formula(b, n)
    x, shape = _dequantized(f, 0), b.shape(n.inputs[0])
    last = int(n.attrs["opset"]) >= SOFTMAX_SINCE
    real = b.fresh(f"{n.outputs[0]}_softmax")
    attrs = {"axis": n.attrs.get("axis", -1 if last else 1)} if shape else {}
    node = OnnxNode("Softmax", "", n.attrs["opset"], n.name, (x,), (real,), attrs, n.source)
    softmax(b, node)
    steps = f("Floor", f("Div", f.constant(1), f.scalar(3, "scale")))
    _rounded(f, f("Mul", real, steps), 4)


def _channels_first(f: Formula, x: str) -> str:
    rank = len(f.shape(x))
    return f.transposed(x, 0, rank - 1, *range(1, rank - 1))


def _channels_last(f: Formula, x: str, outputs: tuple[str, ...]) -> str:
    rank = len(f.shape(x))
    return f("Transpose", x, perm=(0, *range(2, rank), 1), outputs=outputs)


def _qlinear_global_average_pool(b: Builder, n: OnnxNode) -> None:
    """A sum of whole numbers, scaled once."""
    f = Formula(b, n)
    last, shape = n.attrs.get("channels_last", 0), b.shape(n.inputs[0])
    axes = range(1, len(shape) - 1) if last else range(2, len(shape))
    count = int(np.prod([shape[a] for a in axes], dtype=np.int64))
    if count <= MOST_EXACT:
        total = f("ReduceSum", _real(f, 0, f.constant(1), 2), f.constant(list(axes), "int64"), keepdims=1)
    else:
        whole = f("Sub", f.cast(n.inputs[0], "int32"), f.cast(f.scalar(2, "zero point"), "int32"))
        total = f.cast(f("ReduceSum", whole, f.constant(list(axes), "int64"), keepdims=1), "float32")
    step = f("Div", f.scalar(1, "scale"), f("Mul", f.scalar(3, "scale"), f.constant(count)))
    _rounded(f, f("Mul", total, step), 4)


def _windowed(b: Builder, n: OnnxNode, op: str, inputs: tuple[str, ...], output: str) -> None:
    """A Conv or pool of real numbers or whole ones, its windows as ONNX says them."""
    attrs = {k: v for k, v in n.attrs.items() if k not in ("channels_last",)}
    windowed(b, OnnxNode(op, "", 11, n.name, inputs, (output,), attrs, n.source))


def _qlinear_average_pool(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    last, x = n.attrs.get("channels_last", 0), _dequantized(f, 0)
    pooled = b.fresh(f"{n.outputs[0]}_pool")
    _windowed(b, n, "AveragePool", (_channels_first(f, x) if last else x,), pooled)
    steps = f("Div", pooled, f.scalar(3, "scale"))
    if not last:
        _moved_and_rounded(f, steps, 4, n.outputs)
        return
    first = b.fresh(f"{n.outputs[0]}_first")
    _moved_and_rounded(f, steps, 4, (first,))
    _channels_last(f, first, n.outputs)


def _nhwc_max_pool(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    pooled = b.fresh(f"{n.outputs[0]}_pool")
    _windowed(b, n, "MaxPool", (_channels_first(f, n.inputs[0]),), pooled)
    _channels_last(f, pooled, n.outputs)


def _qlinear_conv(b: Builder, n: OnnxNode) -> None:
    """That of ONNX, with the channels last if it says so; weights are as in ONNX."""
    f = Formula(b, n)
    last = n.attrs.get("channels_last", 0)
    inputs = (_channels_first(f, n.inputs[0]) if last else n.inputs[0], *n.inputs[1:])
    output = b.fresh(f"{n.outputs[0]}_conv") if last else n.outputs[0]
    attrs = {k: v for k, v in n.attrs.items() if k != "channels_last"}
    b.emit(n, "QLinearConv", inputs, attrs, (output,))
    if last:
        _channels_last(f, output, n.outputs)


# --- matrix products --------------------------------------------------------------------------------------------------


def _scaled(f: Formula, total: str, scale: str, bias: str, outputs: tuple[str, ...] | None = None) -> str:
    """A sum of whole numbers times `scale`, plus `bias`."""
    real = f.cast(total, "float32")
    if not bias:
        return f("Mul", real, scale, outputs=outputs)
    return f("Add", f("Mul", real, scale), bias, outputs=outputs)


def _by_column(f: Formula, k: int) -> str:
    """A scale or zero point of weights: one number, or one for each column."""
    x = f.n.input(k)
    return f.reshaped(x) if x and f.shape(x) == (1,) else x


def _dynamic_quantize_matmul(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    whole, scale, zero = (b.fresh(f"{n.outputs[0]}_{name}") for name in ("quantized", "scale", "zero"))
    f("DynamicQuantizeLinear", n.inputs[0], outputs=(whole, scale, zero))
    total = f("MatMulInteger", whole, n.inputs[1], zero, _by_column(f, 3))
    _scaled(f, total, f("Mul", scale, _by_column(f, 2)), n.input(4), n.outputs)


def _matmul_integer_to_float(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    zero = f.scalar(4, "zero point") if n.input(4) else ""
    total = f("MatMulInteger", n.inputs[0], n.inputs[1], zero, _by_column(f, 5))
    _scaled(f, total, f("Mul", f.scalar(2, "scale"), _by_column(f, 3)), n.input(6), n.outputs)


def _qgemm(b: Builder, n: OnnxNode) -> None:
    """Of whole numbers with an int32 bias; real numbers come out where no output scale is given."""
    f = Formula(b, n)
    x = f.transposed(n.inputs[0], 1, 0) if n.attrs.get("transA", 0) else n.inputs[0]
    w = f.transposed(n.inputs[3], 1, 0) if n.attrs.get("transB", 0) else n.inputs[3]
    total = f("MatMulInteger", x, w, f.scalar(2, "zero point"), _by_column(f, 5))
    if n.input(6):
        total = f("Add", total, n.inputs[6])
    scale = f("Mul", f("Mul", f.constant(n.attrs.get("alpha", 1.0)), f.scalar(1, "scale")), _by_column(f, 4))
    if not n.input(7):
        _scaled(f, total, scale, "", n.outputs)
        return
    steps = _scaled(f, total, f("Div", scale, f.scalar(7, "scale")), "")
    _rounded(f, steps, 8)


_WINDOW = "auto_pad:STRING dilations:INTS kernel_shape:INTS pads:INTS strides:INTS"
_POOL = "auto_pad:STRING ceil_mode:INT kernel_shape:INTS! pads:INTS strides:INTS"
_TWO = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
_ONE = "X X_scale X_zero_point? Y_scale Y_zero_point?"
QUANTIZED = (
    Fused("QuantizeLinear", plain, "x y_scale y_zero_point?", attributes="axis:INT"),
    Fused("DequantizeLinear", plain, "x x_scale x_zero_point?", attributes="axis:INT"),
    Fused("QLinearAdd", _qlinear_add, _TWO),
    Fused("QLinearMul", _qlinear_mul, _TWO),
    Fused("QLinearSigmoid", _qlinear_sigmoid, _ONE),
    Fused("QLinearLeakyRelu", _qlinear_leaky_relu, _ONE, attributes="alpha:FLOAT"),
    Fused(
        "QLinearWhere", _qlinear_where, "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point"
    ),
    Fused("QLinearConcat", _qlinear_concat, "Y_scale Y_zero_point inputs*", attributes="axis:INT!"),
    Fused("QLinearSoftmax", _qlinear_softmax, _ONE, attributes="axis:INT opset:INT!"),
    Fused(
        "QLinearGlobalAveragePool",
        _qlinear_global_average_pool,
        "X x_scale x_zero_point y_scale y_zero_point",
        attributes="channels_last:INT",
    ),
    Fused(
        "QLinearAveragePool", _qlinear_average_pool, _ONE, attributes=f"{_POOL} channels_last:INT count_include_pad:INT"
    ),
    Fused("NhwcMaxPool", _nhwc_max_pool, "x", attributes=f"{_POOL} dilations:INTS"),
    Fused(
        "QLinearConv",
        _qlinear_conv,
        "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?",
        attributes=f"{_WINDOW} group:INT channels_last:INT",
    ),
    Fused("DynamicQuantizeMatMul", _dynamic_quantize_matmul, "A B b_scale b_zero_point? bias?"),
    Fused("MatMulIntegerToFloat", _matmul_integer_to_float, "A B a_scale b_scale a_zero_point? b_zero_point? bias?"),
    Fused(
        "QGemm",
        _qgemm,
        "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?",
        attributes="alpha:FLOAT transA:INT transB:INT",
    ),
)
