"""Right layers that compute element by element, move, round or choose: activations, softmax, resizing, quantization,
whole numbers, the best of many, long chains."""

from __future__ import annotations

import numpy as np
from layer_draft import LayerDraft, whole
from layers_of_sums import Builder, behind, chance, image, number, pick, positive

TAME = ("Tanh", "Sigmoid", "Neg", "Abs", "Sin", "Cos", "Softsign", "Atan", "Erf", "Relu", "HardSigmoid")
CHAIN, LONG_CHAIN = 100, 1000


def anywhere(d: LayerDraft) -> str:
    return behind(d, d.input(*(number(d, 1, 24) for _ in range(int(d.rng.integers(1, 4))))))


# --- activations ----------------------------------------------------------------------------------------------------


def softmax(d: LayerDraft) -> None:
    x = d.input(number(d, 1, 8), number(d, 1, 3000))
    x = d.op("Mul", x, d.weight(pick(d, 0.01, 1.0, 10.0, 100.0)))
    d.output(d.op(pick(d, "Softmax", "LogSoftmax"), x, axis=pick(d, -1, -1, 0)))


def gelu(d: LayerDraft) -> None:
    x, form = anywhere(d), pick(d, "erf", "tanh", "none", "approximate")
    if form in ("none", "approximate"):
        d.output(d.op("Gelu", x, approximate="tanh" if form == "approximate" else "none"))
    elif form == "erf":
        inner = d.op("Add", d.op("Erf", d.op("Div", x, d.weight(2**0.5))), d.weight(1))
        d.output(d.op("Mul", d.op("Mul", x, inner), d.weight(0.5)))
    else:
        cubic = d.op("Mul", d.op("Pow", x, d.weight(3)), d.weight(0.044715))
        inner = d.op("Tanh", d.op("Mul", d.op("Add", x, cubic), d.weight((2 / np.pi) ** 0.5)))
        d.output(d.op("Mul", d.op("Mul", x, d.weight(0.5)), d.op("Add", inner, d.weight(1))))


def activation(d: LayerDraft) -> None:
    x, op = anywhere(d), pick(d, "silu", "HardSwish", "Mish", "Softplus", "Selu", "Elu", "Celu", "Tanh", "Clip")
    if op == "silu":
        d.output(d.op("Mul", x, d.op("Sigmoid", x)))
    elif op == "Clip":
        d.output(d.op("Clip", x, d.weight(0), d.weight(6)))
    else:
        d.output(d.op(op, x))


def powers(d: LayerDraft) -> None:
    """Exponentials, logarithms, roots and powers, one behind the other; what they take is never below 1e-3."""
    x = d.op("Add", d.op("Abs", anywhere(d)), d.weight(1e-3))
    for _ in range(int(d.rng.integers(1, 5))):
        op = pick(d, "Exp", "Log", "Sqrt", "Pow", "Reciprocal")
        if op == "Exp":
            x = d.op("Exp", d.op("Min", x, d.weight(20)))
        elif op == "Log":
            x = d.op("Log", d.op("Add", x, d.weight(1.5)))
        elif op == "Pow":
            x = d.op("Pow", d.op("Min", x, d.weight(1e4)), d.weight(pick(d, 2, 3, 0.5, -0.5, 1.7)))
        elif op == "Reciprocal":
            x = d.op("Reciprocal", d.op("Add", x, d.weight(1e-3)))
        else:
            x = d.op("Sqrt", x)
    d.output(x)


def chain(d: LayerDraft, length: int = CHAIN) -> None:
    """Functions of one number, none of which makes errors larger. (Elu is not among them, for LLVM takes minutes for a
    dozen of it between sines.)"""
    x = d.input(number(d, 1, 40))
    for _ in range(length):
        x = d.op(TAME[int(d.rng.integers(len(TAME)))], x)
    d.output(x)


def long_chain(d: LayerDraft) -> None:
    chain(d, LONG_CHAIN)


# --- images ---------------------------------------------------------------------------------------------------------


def resize(d: LayerDraft) -> None:
    channels, mode = number(d, 1, 6), pick(d, "nearest", "linear", "cubic")
    x = behind(d, image(d, channels, 4, 20))
    where = pick(d, "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    more = {"nearest_mode": pick(d, "floor", "round_prefer_floor")} if mode == "nearest" else {}
    scales = d.weight((1, 1, *(pick(d, 0.5, 1.5, 2, 3) for _ in range(2))))
    d.output(d.op("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=where, **more))


# --- whole numbers --------------------------------------------------------------------------------------------------


def quantized(d: LayerDraft) -> None:
    """To bytes and back, through a product of them or not; with scales of powers of 2, numbers lie at ties."""
    n, scale = number(d, 2, 60), pick(d, 0.5, 0.25, 0.1, 0.037)
    s, z = d.weight(scale), d.weight(pick(d, 0, 128, 100), "uint8")
    x = d.op("Mul", d.input(number(d, 1, 6), n), d.weight(pick(d, 1.0, 5.0)))
    x = d.op("QuantizeLinear", x, s, z)
    if chance(d, 0.3):
        d.output(x)
        return
    x = d.op("DequantizeLinear", x, s, z)
    if chance(d):
        w = d.weight(d.rng.integers(-127, 128, (n, number(d, 1, 20))), "int8")
        w = d.op("DequantizeLinear", w, d.weight(0.02), d.weight(0, "int8"))
        x = d.op("MatMul", x, w)
        s = d.weight(pick(d, 0.5, 0.3))
        x = d.op("DequantizeLinear", d.op("QuantizeLinear", x, s, z), s, z)
    d.output(x)


def rounded(d: LayerDraft) -> None:
    x = d.op("Mul", anywhere(d), d.weight(pick(d, 1.0, 2.0, 0.5)))
    x = d.op(pick(d, "Round", "Floor", "Ceil", "Sign"), x)
    d.output(d.op("Cast", x, to=pick(d, 6, 7)) if chance(d) else x)


def integers(d: LayerDraft) -> None:
    """Sums, products, quotients, remainders and shifts that stay within their dtype."""
    dtype = pick(d, "int32", "int64")
    most = 30_000 if dtype == "int32" else 2_000_000_000
    shape = (number(d, 1, 8), number(d, 1, 30))
    a, b = (d.input(*shape, dtype=dtype, sampler=whole(shape, -most, most, dtype)) for _ in range(2))
    op = pick(d, "Add", "Sub", "Mul", "Div", "Mod", "Max", "Less", "Where", "ReduceSum", "ReduceMax")
    divisor = d.weight(pick(d, 2, 3, 7, -5, 1000), dtype)
    if op in ("Div", "Mod"):
        y = d.op(op, a, divisor)
    elif op == "Where":
        y = d.op("Where", d.op("Greater", a, b), a, d.op("Neg", b))
    elif op.startswith("Reduce"):
        y = d.op(op, d.op("Min", a, b), d.axes(1))
    else:
        y = d.op(op, a, b)
    d.output(d.op("Add", y, divisor) if op in ("Add", "Max", "Div") else y)


def best(d: LayerDraft) -> None:
    """The best of many, with ties: of equal ones the first."""
    n = number(d, 2, 300)
    x = d.op(pick(d, "Round", "Relu", "Ceil"), d.input(number(d, 1, 6), n))
    if chance(d):
        d.output(d.op(pick(d, "ArgMax", "ArgMin"), x, axis=1, keepdims=int(chance(d))))
        return
    k = d.axes(number(d, 1, n))
    d.output(*d.ops("TopK", x, k, results=2, axis=1, largest=int(chance(d))))


def embedded(d: LayerDraft) -> None:
    """Rows of a table, and what is added to them."""
    rows, width, count = number(d, 2, 500), number(d, 1, 64), number(d, 1, 30)
    index = d.input(1, count, dtype="int64", sampler=whole((1, count), 0, rows - 1))
    x = d.op("Gather", d.weight(d.rng.standard_normal((rows, width)) * positive(d, width, 0.01, 10)), index, axis=0)
    d.output(d.op("Add", x, d.normal(count, width)) if chance(d) else x)


KINDS: dict[str, Builder] = {
    "softmax": softmax,
    "gelu": gelu,
    "activation": activation,
    "powers": powers,
    "chain": chain,
    "long chain": long_chain,
    "resize": resize,
    "quantized": quantized,
    "rounded": rounded,
    "integers": integers,
    "best": best,
    "embedded": embedded,
}
