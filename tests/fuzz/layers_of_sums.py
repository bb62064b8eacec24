"""Right layers that add many terms: normalisations, averages, sums, products, attention. Their parameters are ordinary,
or extreme in the way that trained ones are at times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from layer_draft import Array, LayerDraft

Builder = Callable[[LayerDraft], None]


def pick(d: LayerDraft, *options: Any) -> Any:
    return options[int(d.rng.integers(len(options)))]


def number(d: LayerDraft, low: int, high: int) -> int:
    """A whole number, as often within every octave."""
    return int(np.exp(d.rng.uniform(np.log(low), np.log(high + 1))))


def chance(d: LayerDraft, share: float = 0.5) -> bool:
    return bool(d.rng.random() < share)


def positive(d: LayerDraft, size: int, low: float, high: float) -> Array:
    """Numbers of which every power of ten is as likely."""
    return np.exp(d.rng.uniform(np.log(low), np.log(high), size))


def reduced(d: LayerDraft, op: str, x: str, *axes: int, keepdims: int = 1) -> str:
    return d.op(op, x, d.axes(*axes), keepdims=keepdims)


def behind(d: LayerDraft, x: str) -> str:
    """What activations leave: numbers of either sign, of one sign, between 0 and 1, or nearly equal ones."""
    kind = pick(d, "", "Relu", "Sigmoid", "HardSwish", "Abs", "near")
    if kind == "near":
        level = pick(d, 0.3, 1.0, 5.0, -40.0)
        apart = abs(level) * positive(d, 1, 1e-3, 0.3)
        return d.op("Add", d.op("Mul", x, d.weight(apart)), d.weight(level))
    return d.op(kind, x) if kind else x


def image(d: LayerDraft, channels: int, least: int = 7, most: int = 33) -> str:
    return d.input(1, channels, number(d, least, most), number(d, least, most))


def normalised(d: LayerDraft, x: str, channels: int) -> str:
    """BatchNormalization with ordinary or extreme parameters."""
    if chance(d):
        variance, mean = positive(d, channels, 0.3, 3), d.rng.standard_normal(channels)
        scale, shift = d.rng.uniform(0.7, 1.3, channels), 0.1 * d.rng.standard_normal(channels)
    else:
        variance = positive(d, channels, 1e-6, 1e4)
        mean = d.rng.standard_normal(channels) * positive(d, channels, 1e-2, 10) * np.sqrt(variance)
        scale, shift = (
            positive(d, channels, 1e-2, 10) * d.rng.choice((-1, 1), channels),
            d.rng.standard_normal(channels),
        )
    if chance(d, 0.3):  # numbers around a mean that is large beside the deviation: what is added cancels the product
        level = positive(d, channels, 10, 300)
        mean = np.sqrt(variance) * (level + d.rng.standard_normal(channels))
        deviation, level = (p.reshape(-1, 1, 1) for p in (np.sqrt(variance), np.sqrt(variance) * level))
        x = d.op("Relu", d.op("Add", d.op("Mul", x, d.weight(deviation)), d.weight(level)))
    parameters = (d.weight(p) for p in (scale, shift, mean, variance))
    return d.op("BatchNormalization", x, *parameters, epsilon=pick(d, 1e-5, 1e-3))


# --- normalisations -------------------------------------------------------------------------------------------------


def batch_norm(d: LayerDraft) -> None:
    channels = number(d, 4, 256)
    x = image(d, channels, 7, 56)
    y = normalised(d, behind(d, x) if chance(d) else x, channels)
    d.output(d.op("Relu", y) if chance(d, 0.7) else y)


def rows(d: LayerDraft, least: int = 4, most: int = 1024) -> tuple[str, int]:
    """Rows of numbers around a level that is up to 30 times as large as what they differ by."""
    n = number(d, least, most)
    x = behind(d, d.input(1, number(d, 1, 20), n))
    return (d.op("Add", x, d.weight(pick(d, 3.0, 30.0))), n) if chance(d, 0.3) else (x, n)


def affine(d: LayerDraft, n: int) -> tuple[str, str]:
    return d.weight(positive(d, n, 0.1, 10)), d.normal(n, scale=pick(d, 0.1, 3))


def layer_norm(d: LayerDraft) -> None:
    x, n = rows(d)
    epsilon = pick(d, 1e-12, 1e-6, 1e-5)
    d.output(d.op("LayerNormalization", x, *affine(d, n), axis=-1, epsilon=epsilon))


def decomposed_layer_norm(d: LayerDraft) -> None:
    x, n = rows(d)
    scale, shift = affine(d, n)
    centred = d.op("Sub", x, reduced(d, "ReduceMean", x, -1))
    squares = d.op("Pow", centred, d.weight(2.0)) if chance(d) else d.op("Mul", centred, centred)
    deviation = d.op("Sqrt", d.op("Add", reduced(d, "ReduceMean", squares, -1), d.weight(pick(d, 1e-12, 1e-5))))
    normal = d.op("Div", centred, deviation) if chance(d) else d.op("Mul", centred, d.op("Reciprocal", deviation))
    d.output(d.op("Add", d.op("Mul", normal, scale), shift))


def rms_norm(d: LayerDraft) -> None:
    x, n = rows(d)
    mean = reduced(d, "ReduceMean", d.op("Mul", x, x), -1)
    root = d.op("Sqrt", d.op("Add", mean, d.weight(pick(d, 1e-6, 1e-5))))
    d.output(d.op("Mul", d.op("Div", x, root), affine(d, n)[0]))


def instance_norm(d: LayerDraft) -> None:
    channels = number(d, 1, 16)
    x = behind(d, image(d, channels))
    d.output(d.op("InstanceNormalization", x, *affine(d, channels), epsilon=1e-5))


def group_norm(d: LayerDraft) -> None:
    groups, each = number(d, 1, 8), number(d, 1, 4)
    channels = groups * each
    x = behind(d, image(d, channels))
    scale, shift = affine(d, channels)
    if chance(d):
        d.output(d.op("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=1e-5))
        return
    flat = d.op("Reshape", x, d.axes(0, groups, -1))  # as torch writes it below opset 18
    ones, zeros = d.weight(np.ones(groups)), d.weight(np.zeros(groups))
    normal = d.op("Reshape", d.op("InstanceNormalization", flat, ones, zeros, epsilon=1e-5), d.op("Shape", x))
    scale, shift = (d.op("Reshape", p, d.axes(channels, 1, 1)) for p in (scale, shift))
    d.output(d.op("Add", d.op("Mul", normal, scale), shift))


def l2_norm(d: LayerDraft) -> None:
    x, _ = rows(d)
    if chance(d):
        d.output(d.op("LpNormalization", x, axis=-1, p=pick(d, 1, 2)))
        return
    length = d.op("Max", reduced(d, "ReduceL2", x, -1), d.weight(1e-12))
    d.output(d.op("Div", x, length))


# --- averages -------------------------------------------------------------------------------------------------------


def global_average(d: LayerDraft) -> None:
    x = behind(d, image(d, number(d, 4, 100), 7, 64))
    d.output(d.op("GlobalAveragePool", x) if chance(d) else reduced(d, "ReduceMean", x, 2, 3))


def average_pool(d: LayerDraft) -> None:
    size, padded = number(d, 2, 7), int(chance(d))
    attrs = {"kernel_shape": [size] * 2, "strides": [number(d, 1, size)] * 2, "pads": [size // 2 * padded] * 4}
    x = behind(d, image(d, number(d, 1, 12), 8, 30))
    d.output(d.op("AveragePool", x, count_include_pad=int(chance(d)), **attrs))


def reduce_mean(d: LayerDraft) -> None:
    x = behind(d, d.input(number(d, 1, 6), number(d, 1, 300), number(d, 1, 40)))
    axes = pick(d, (1,), (2,), (0, 1), (0, 1, 2))
    d.output(reduced(d, pick(d, "ReduceMean", "ReduceSum"), x, *axes, keepdims=int(chance(d))))


def squeeze_and_excite(d: LayerDraft) -> None:
    channels, middle = number(d, 4, 24), number(d, 2, 8)
    x = behind(d, image(d, channels, 7, 56))
    y = d.op("GlobalAveragePool", x) if chance(d) else reduced(d, "ReduceMean", x, 2, 3)
    y = d.op("Conv", y, d.normal(middle, channels, 1, 1, scale=channels**-0.5), d.normal(middle, scale=0.1))
    y = d.op("Mul", y, d.op("Sigmoid", y)) if chance(d) else d.op("Relu", y)
    y = d.op("Conv", y, d.normal(channels, middle, 1, 1, scale=middle**-0.5), d.normal(channels, scale=0.1))
    y = d.op("Sigmoid", y) if chance(d) else d.op("HardSigmoid", y, alpha=1 / 6)
    d.output(d.op("Mul", x, y))


# --- sums and products ----------------------------------------------------------------------------------------------


def reduce_sum(d: LayerDraft) -> None:
    x = behind(d, d.input(number(d, 1, 4), number(d, 100, 8192)))
    if chance(d, 0.3):  # what cancels
        x = d.op("Sub", x, reduced(d, "ReduceMean", x, 1))
    op = pick(d, "ReduceSum", "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare")
    d.output(reduced(d, op, x, 1, keepdims=0))


def product(d: LayerDraft) -> None:
    """MatMul of up to 8,192 terms, of one sign or of both."""
    k, n = number(d, 1, 8192), number(d, 1, 24)
    x = behind(d, d.input(number(d, 1, 6), k))
    w = d.rng.standard_normal((k, n)) * k**-0.5
    y = d.op("MatMul", x, d.weight(np.abs(w) if chance(d) else w))
    d.output(d.op("Add", y, d.normal(n)) if chance(d) else y)


def conv_block(d: LayerDraft) -> None:
    """Convolution, BatchNormalization, activation and what the block was given."""
    channels, kernel = number(d, 2, 24), pick(d, 1, 3, 3, 5)
    group = channels if chance(d, 0.3) else 1
    x = image(d, channels, 7, 24)
    w = d.normal(channels, channels // group, kernel, kernel, scale=(2 * group / channels) ** 0.5 / kernel)
    y = d.op("Conv", x, w, pads=[kernel // 2] * 4, group=group)
    y = normalised(d, y, channels)
    op = pick(d, "Relu", "HardSwish", "silu")
    y = d.op("Mul", y, d.op("Sigmoid", y)) if op == "silu" else d.op(op, y)
    d.output(d.op("Add", x, y))


def attention(d: LayerDraft) -> None:
    heads, tokens, size = number(d, 1, 4), number(d, 2, 64), number(d, 4, 64)
    q, k, v = (d.input(1, heads, tokens, size) for _ in range(3))
    scores = d.op("MatMul", q, d.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = d.op("Mul", scores, d.weight(size**-0.5 * pick(d, 1, 1, 8)))
    if chance(d):
        scores = d.op("Add", scores, d.weight(np.where(np.tri(tokens), 0, np.finfo(np.float32).min)))
    d.output(d.op("MatMul", d.op("Softmax", scores, axis=-1), v))


def cumulative_sum(d: LayerDraft) -> None:
    x = behind(d, d.input(number(d, 1, 4), number(d, 2, 1000)))
    d.output(d.op("CumSum", x, d.weight(1, "int64"), reverse=int(chance(d)), exclusive=int(chance(d))))


def recurrent(d: LayerDraft) -> None:
    op, gates = pick(d, ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    steps, features, hidden = number(d, 1, 8), number(d, 1, 16), number(d, 1, 16)
    directions = 1 + int(chance(d))
    weights = (
        d.normal(directions, gates * hidden, features, scale=features**-0.5),
        d.normal(directions, gates * hidden, hidden, scale=hidden**-0.5),
        d.normal(directions, 2 * gates * hidden, scale=0.1),
    )
    attrs = {"linear_before_reset": int(chance(d))} if op == "GRU" else {}
    direction = ("forward", "bidirectional")[directions - 1]
    x = d.input(steps, 1, features)
    d.output(*d.ops(op, x, *weights, results=2, hidden_size=hidden, direction=direction, **attrs))


KINDS: dict[str, Builder] = {
    "batch norm": batch_norm,
    "layer norm": layer_norm,
    "decomposed layer norm": decomposed_layer_norm,
    "rms norm": rms_norm,
    "instance norm": instance_norm,
    "group norm": group_norm,
    "l2 norm": l2_norm,
    "global average": global_average,
    "average pool": average_pool,
    "mean": reduce_mean,
    "squeeze and excite": squeeze_and_excite,
    "sum": reduce_sum,
    "product": product,
    "conv block": conv_block,
    "attention": attention,
    "cumulative sum": cumulative_sum,
    "recurrent": recurrent,
}
