"""Pairs of models of which the wrong one is what an importer would make of the right one if it misread an attribute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from layer_draft import LayerDraft
from layers_of_sums import affine, image, number, pick, reduced


def layer_norm_epsilon(d: LayerDraft, wrong: bool) -> None:
    n, epsilon = number(d, 8, 200), pick(d, 1e-5, 1e-3)
    x = d.input(4, n)
    d.output(d.op("LayerNormalization", x, *affine(d, n), epsilon=epsilon * (10 if wrong else 1)))


def instance_norm_epsilon(d: LayerDraft, wrong: bool) -> None:
    channels = number(d, 1, 12)
    x = image(d, channels, 8, 24)
    d.output(d.op("InstanceNormalization", x, *affine(d, channels), epsilon=1e-4 if wrong else 1e-5))


def batch_norm_epsilon(d: LayerDraft, wrong: bool) -> None:
    channels = number(d, 1, 12)
    x, variance = image(d, channels, 8, 24), d.weight(d.rng.uniform(0.3, 2, channels))
    parameters = (*affine(d, channels), d.normal(channels), variance)
    d.output(d.op("BatchNormalization", x, *parameters, epsilon=1e-3 if wrong else 1e-4))


def l2_epsilon(d: LayerDraft, wrong: bool) -> None:
    x = d.input(4, number(d, 4, 100))
    squares = reduced(d, "ReduceSumSquare", x, 1)
    d.output(d.op("Div", x, d.op("Sqrt", d.op("Add", squares, d.weight(1e-2 if wrong else 1e-3)))))


def selu(d: LayerDraft, wrong: bool) -> None:
    x, part = d.input(4, number(d, 8, 80)), pick(d, "gamma", "alpha")
    right = {"gamma": 1.0507, "alpha": 1.6733}
    d.output(d.op("Selu", x, **(right | {part: right[part] * 1.01} if wrong else right)))


def hard_sigmoid(d: LayerDraft, wrong: bool) -> None:
    x = d.input(4, number(d, 8, 80))
    d.output(d.op("HardSigmoid", x, alpha=0.2 if wrong else 1 / 6))


def slope(d: LayerDraft, wrong: bool) -> None:
    x, op = d.input(4, number(d, 8, 80)), pick(d, "LeakyRelu", "Elu", "ThresholdedRelu", "Celu")
    d.output(d.op(op, x, alpha=0.11 if wrong else 0.1))


def response_norm(d: LayerDraft, wrong: bool) -> None:
    size, part = int(pick(d, 3, 5)), pick(d, "size", "alpha", "beta")
    right = {"size": size, "alpha": 1e-2, "beta": 0.75, "bias": 1.0}
    other = right | {"size": {"size": size + 2}, "alpha": {"alpha": 2e-2}, "beta": {"beta": 0.7}}[part]
    d.output(d.op("LRN", image(d, number(d, 4, 12), 6, 16), **(other if wrong else right)))


def gelu(d: LayerDraft, wrong: bool) -> None:
    d.output(d.op("Gelu", d.input(4, number(d, 8, 80)), approximate="tanh" if wrong else "none"))


def coordinates(d: LayerDraft, wrong: bool) -> None:
    x, mode = image(d, number(d, 1, 4), 5, 12), pick(d, "linear", "cubic", "nearest")
    scales = d.weight((1, 1, pick(d, 1.5, 2), pick(d, 1.5, 2)))
    where = ("half_pixel", pick(d, "align_corners", "asymmetric"))[wrong]
    d.output(d.op("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=where))


def cubic_coefficient(d: LayerDraft, wrong: bool) -> None:
    x = image(d, number(d, 1, 4), 5, 12)
    d.output(d.op("Resize", x, "", d.weight((1, 1, 2, 2)), mode="cubic", cubic_coeff_a=-0.5 if wrong else -0.75))


def padded_average(d: LayerDraft, wrong: bool) -> None:
    x = image(d, number(d, 1, 8), 8, 20)
    d.output(d.op("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=int(not wrong)))


def padding(d: LayerDraft, wrong: bool) -> None:
    modes = pick(d, ("reflect", "edge"), ("edge", "reflect"), ("constant", "edge"))
    x = image(d, number(d, 1, 4), 6, 12)
    d.output(d.op("Pad", x, d.axes(0, 0, 1, 2, 0, 0, 2, 1), mode=modes[wrong]))


def reset_gate(d: LayerDraft, wrong: bool) -> None:
    features, hidden = number(d, 2, 10), number(d, 2, 10)
    shapes = ((1, 3 * hidden, features), (1, 3 * hidden, hidden), (1, 6 * hidden))
    weights = [d.normal(*shape, scale=0.5) for shape in shapes]
    x = d.input(4, 1, features)
    d.output(*d.ops("GRU", x, *weights, results=2, hidden_size=hidden, linear_before_reset=int(not wrong)))


def gate_order(d: LayerDraft, wrong: bool) -> None:
    """The forget gate for the output gate."""
    features, hidden = number(d, 2, 10), number(d, 2, 10)
    order = np.array([0, 2, 1, 3] if wrong else [0, 1, 2, 3])
    w, r = d.rng.standard_normal((4, hidden, features)), d.rng.standard_normal((4, hidden, hidden))
    weights = [d.weight(0.5 * p[order].reshape(1, 4 * hidden, -1)) for p in (w, r)]
    x = d.input(4, 1, features)
    d.output(*d.ops("LSTM", x, *weights, results=2, hidden_size=hidden))


def last_of_the_greatest(d: LayerDraft, wrong: bool) -> None:
    """Of equal numbers the last one for the first."""
    x = d.op("Round", d.input(3, number(d, 20, 100)))
    d.output(d.op(pick(d, "ArgMax", "ArgMin"), x, axis=1, select_last_index=int(wrong)))


def last_of_the_best(d: LayerDraft, wrong: bool) -> None:
    """The best of many, of equal ones the last."""
    n = number(d, 20, 100)
    x, k = d.op("Round", d.input(3, n)), d.axes(number(d, 2, 10))
    if not wrong:
        d.output(d.ops("TopK", x, k, results=2, axis=1)[1])
        return
    x = d.op("Slice", x, d.axes(-1), d.axes(-(n + 1)), d.axes(1), d.axes(-1))
    d.output(d.op("Sub", d.weight(n - 1, "int64"), d.ops("TopK", x, k, results=2, axis=1)[1]))


def axis(d: LayerDraft, wrong: bool) -> None:
    n = number(d, 3, 10)
    op = pick(d, "Softmax", "LogSoftmax", "CumSum", "LpNormalization")
    x, along = d.input(2, n, n), 1 if wrong else 2
    d.output(d.op(op, x, d.weight(along, "int64")) if op == "CumSum" else d.op(op, x, axis=along))


def transposed(d: LayerDraft, wrong: bool) -> None:
    n = number(d, 4, 40)
    d.output(d.op("Gemm", d.input(3, n), d.normal(n, n, scale=n**-0.5), transB=int(not wrong)))


def negative_index(d: LayerDraft, wrong: bool) -> None:
    """The last row, of which an index of -1 is, for the first."""
    rows, width = number(d, 3, 12), number(d, 2, 12)
    d.output(d.op("Mul", d.op("Gather", d.input(rows, width), d.axes(0 if wrong else -1)), d.weight(2.0)))


MISREADINGS: Mapping[str, Callable[[LayerDraft, bool], None]] = {
    "epsilon of LayerNormalization": layer_norm_epsilon,
    "epsilon of InstanceNormalization": instance_norm_epsilon,
    "epsilon of BatchNormalization": batch_norm_epsilon,
    "epsilon of an L2 norm": l2_epsilon,
    "Selu": selu,
    "HardSigmoid": hard_sigmoid,
    "slope": slope,
    "LRN": response_norm,
    "Gelu": gelu,
    "coordinates of Resize": coordinates,
    "coefficient of Resize": cubic_coefficient,
    "padded average": padded_average,
    "Pad": padding,
    "reset gate": reset_gate,
    "order of gates": gate_order,
    "last of the greatest": last_of_the_greatest,
    "last of the best": last_of_the_best,
    "axis": axis,
    "transposed weight": transposed,
    "negative index": negative_index,
}
