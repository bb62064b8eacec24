"""Kinds of pairs of models: a right one, and one that is slightly another. A builder writes both: it is called twice,
with equal random numbers, and what differs is where it is told that the model is `wrong`.

The kinds are not those of mutants.py, which change the code of a package and not its model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from layer_draft import Array, LayerDraft, Rng, Sampler
from layers_of_sums import chance, image, number, pick, reduced
from onnx import TensorProto, helper
from pairs_of_misreadings import MISREADINGS
from pairs_of_whole_numbers import WHOLE_NUMBERS

Builder = Callable[[LayerDraft, bool], None]


@dataclass(frozen=True)
class Kind:
    """`rounded`: the manifest says, set by hand, that all outputs are computed through 16-bit floats."""

    build: Builder
    rounded: bool = False


# --- constants ------------------------------------------------------------------------------------------------------


def _changed(d: LayerDraft, numbers: Array, wrong: bool, factor: float = 3.0) -> Array:
    """The numbers, of which one is multiplied where the model is wrong; the same one in both models of a pair."""
    place = int(d.rng.integers(numbers.size))
    changed = np.array(numbers, np.float64)
    if wrong:
        changed.reshape(-1)[place] = changed.reshape(-1)[place] * factor + (0.1 if changed.size < 100 else 0)
    return changed


def middle_weight(d: LayerDraft, wrong: bool) -> None:
    """One weight of four products of 256 x 256 with Relu."""
    layer, factor = int(d.rng.integers(1, 3)), pick(d, 1.1, 3.0)
    x = d.input(1, 256)
    for k in range(4):
        w = d.rng.standard_normal((256, 256)) * (2 / 256) ** 0.5
        x = d.op("MatMul", x, d.weight(_changed(d, w, wrong and k == layer, factor)))
        x = d.op("Relu", x) if k < 3 else x
    d.output(x)


def convolution_weight(d: LayerDraft, wrong: bool) -> None:
    channels = number(d, 4, 48)
    x = image(d, channels, 8, 20)
    for k in range(3):
        w = d.rng.standard_normal((channels, channels, 3, 3)) * (2 / channels / 9) ** 0.5
        x = d.op("Conv", x, d.weight(_changed(d, w, wrong and k == 1)), pads=[1] * 4)
        x = d.op("Relu", x) if k < 2 else x
    d.output(x)


def folded_constant(d: LayerDraft, wrong: bool) -> None:
    """A weight that is computed from constants, of which an element is wrong."""
    n = number(d, 16, 200)
    w, scale = d.normal(n, n, scale=n**-0.5), d.weight(_changed(d, d.rng.uniform(0.5, 2, n), wrong, 1.01))
    x = d.op("MatMul", d.input(1, n), d.op("Mul", w, scale))
    d.output(d.op("Tanh", x))


def embedding(d: LayerDraft, wrong: bool) -> None:
    rows, width, count = number(d, 500, 5000), number(d, 4, 32), number(d, 64, 512)
    index = d.input(1, count, dtype="int64", sampler=_every_row(rows, count))
    table = d.rng.standard_normal((rows, width))
    row = int(d.rng.integers(rows))
    if wrong:
        table[row] *= 1.5
    x = d.op("Gather", d.weight(table), index, axis=0)
    d.output(d.op("Add", x, d.normal(width)))


def _every_row(rows: int, count: int) -> Sampler:
    """Indices that come by every row within enough samples."""
    begun = [0]

    def sample(rng: Rng) -> Array:
        indices = (begun[0] + np.arange(count)) % rows
        begun[0] += count
        return indices.reshape(1, count)

    return sample


def bias(d: LayerDraft, wrong: bool) -> None:
    n, out = number(d, 8, 200), number(d, 8, 400)
    numbers = d.rng.standard_normal(out)
    numbers = _changed(d, numbers, wrong, 1.01) if chance(d) else _changed(d, numbers, wrong, -1)
    x = d.op("Gemm", d.input(4, n), d.normal(n, out, scale=n**-0.5), d.weight(numbers))
    d.output(d.op("Sigmoid", x) if chance(d) else x)


def trees(d: LayerDraft, wrong: bool) -> None:
    """Full trees of three levels: a threshold, a leaf or a feature is wrong."""
    count, features, inner, leaves = number(d, 5, 60), number(d, 2, 12), 7, 8
    nodes, feature, threshold, modes, left, right, ids = [], [], [], [], [], [], []
    target, weights = [], []
    for tree in range(count):
        for k in range(inner + leaves):
            leaf = k >= inner
            ids.append(tree)
            nodes.append(k)
            feature.append(0 if leaf else int(d.rng.integers(features)))
            threshold.append(0.0 if leaf else float(np.float32(d.rng.standard_normal())))
            modes.append("LEAF" if leaf else "BRANCH_LEQ")
            left.append(0 if leaf else 2 * k + 1)
            right.append(0 if leaf else 2 * k + 2)
            if leaf:
                target.append((tree, k))
                weights.append(float(np.float32(d.rng.standard_normal())))
    tree, part = int(d.rng.integers(count)), pick(d, "threshold", "leaf", "feature")
    node = tree * (inner + leaves) + int(d.rng.integers(inner))
    leaf = tree * leaves + int(d.rng.integers(leaves))
    if wrong and part == "threshold":
        threshold[node] += 0.3
    elif wrong and part == "feature":
        feature[node] = (feature[node] + 1) % features
    elif wrong:
        weights[leaf] *= 1.5
    made = d.op(
        "TreeEnsembleRegressor",
        d.input(8, features),
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_treeids=ids,
        nodes_nodeids=nodes,
        nodes_featureids=feature,
        nodes_values=threshold,
        nodes_modes=modes,
        nodes_truenodeids=left,
        nodes_falsenodeids=right,
        target_treeids=[t for t, _ in target],
        target_nodeids=[k for _, k in target],
        target_ids=[0] * len(target),
        target_weights=weights,
    )
    d.output(made)


def rounded_manifest(d: LayerDraft, wrong: bool) -> None:
    """A layer that is off by half a percent, in a package whose manifest says that it computes in bfloat16."""
    n, out = number(d, 16, 128), number(d, 4, 64)
    w = d.rng.standard_normal((n, out)) * n**-0.5
    d.output(d.op("Relu", d.op("MatMul", d.input(2, n), d.weight(w * (1.005 if wrong else 1)))))


# --- ties -----------------------------------------------------------------------------------------------------------


def _quarters(*shape: int) -> Sampler:
    return lambda rng: (rng.integers(-40, 41, shape) / 4).astype(np.float32)


def _tied(d: LayerDraft) -> str:
    shape = (number(d, 1, 8), number(d, 4, 60))
    return d.input(*shape, sampler=_quarters(*shape))


def half_up(d: LayerDraft, x: str) -> str:
    return d.op("Floor", d.op("Add", x, d.weight(0.5)))


def rounds_half_up(d: LayerDraft, wrong: bool) -> None:
    x = d.op("Mul", _tied(d), d.weight(pick(d, 1.0, 2.0)))
    d.output(half_up(d, x) if wrong else d.op("Round", x))


def quantizes_half_up(d: LayerDraft, wrong: bool) -> None:
    x, scale, zero = _tied(d), pick(d, 0.5, 1.0), int(pick(d, 0, 128))
    if not wrong:
        x = d.op("QuantizeLinear", x, d.weight(scale), d.weight(zero, "uint8"))
    else:
        x = d.op("Add", half_up(d, d.op("Div", x, d.weight(scale))), d.weight(zero))
        x = d.op("Cast", d.op("Clip", x, d.weight(0), d.weight(255)), to=TensorProto.UINT8)
    d.output(d.op("DequantizeLinear", x, d.weight(scale), d.weight(zero, "uint8")) if chance(d) else x)


def truncates(d: LayerDraft, wrong: bool) -> None:
    """A cast that rounds."""
    x = _tied(d)
    d.output(d.op("Cast", d.op("Round", x) if wrong else x, to=TensorProto.INT32))


# --- ranges that ordinary numbers hardly reach ----------------------------------------------------------------------


def _plain(d: LayerDraft) -> str:
    return d.input(number(d, 1, 6), number(d, 16, 200))


def clips(d: LayerDraft, wrong: bool) -> None:
    x, top = _plain(d), pick(d, 6.0, 5.0)
    d.output(d.op("Clip", x, d.weight(0), d.weight(top * pick(d, 1.002, 1.1) if wrong else top)))


def beyond(d: LayerDraft, wrong: bool) -> None:
    """Where beyond 4.5."""
    x, limit = _plain(d), pick(d, 4.5, 6.0)
    large = d.op("Where", d.op("Greater", x, d.weight(limit)), d.op("Mul", x, d.weight(0.5)), x)
    d.output(d.op("Tanh", d.op("Mul", x if wrong else large, d.weight(0.1))))


def saturates(d: LayerDraft, wrong: bool) -> None:
    """An exponential that saturates at 8, a logarithm or root with another floor."""
    x, op = _plain(d), pick(d, "Exp", "Elu", "Softplus")
    if op == "Exp":
        d.output(d.op("Exp", d.op("Min", x, d.weight(8.0 if wrong else 60.0))))
    else:
        d.output(d.op(op, d.op("Max", x, d.weight(-5.0)) if wrong else x))


def suppresses(d: LayerDraft, wrong: bool) -> None:
    """NonMaxSuppression at 0.5 or 0.55, of boxes that overlap."""
    n = number(d, 20, 80)

    def boxes(rng: Rng) -> Array:
        corner = np.repeat(rng.uniform(0, 50, (n // 4 + 1, 2)), 4, 0)[:n] + rng.uniform(0, 4, (n, 2))
        return np.concatenate([corner, corner + rng.uniform(8, 12, (n, 2))], 1)[None].astype(np.float32)

    b = d.input(1, n, 4, sampler=boxes)
    s = d.input(1, 1, n, sampler=lambda rng: rng.random((1, 1, n)).astype(np.float32))
    threshold = d.weight(0.55 if wrong else 0.5)
    d.output(d.op("NonMaxSuppression", b, s, d.axes(n), threshold))


def loops(d: LayerDraft, wrong: bool) -> None:
    """A loop of one iteration fewer: its body shrinks what it carries."""
    n, count = number(d, 4, 24), int(d.rng.integers(2, 8))
    carried, made, again, kept, product, step = (d.named(word) for word in ("a", "b", "go", "kept", "p", "i"))
    w = d.normal(n, n, scale=n**-0.5)
    info = helper.make_tensor_value_info
    given = [info(step, TensorProto.INT64, []), info(again, TensorProto.BOOL, [])]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", [carried, w], [product], product),
            helper.make_node("Tanh", [product], [made], made),
            helper.make_node("Identity", [again], [kept], kept),
        ],
        "body",
        [*given, info(carried, TensorProto.FLOAT, [1, n])],
        [info(kept, TensorProto.BOOL, []), info(made, TensorProto.FLOAT, [1, n])],
    )
    x = d.input(1, n)
    trips, go = d.weight(count - wrong, "int64"), d.weight(True, "bool")
    d.output(d.op("Loop", trips, go, x, body=body))


def small_outputs(d: LayerDraft, wrong: bool) -> None:
    """Outputs that are all wrong, and small beside the tolerance."""
    n, scale = number(d, 8, 64), pick(d, 1e-6, 1e-8)
    x = d.op("MatMul", d.input(2, n), d.normal(n, number(d, 2, 20), scale=scale))
    d.output(d.op("Neg", x) if wrong else d.op("Identity", x))


def softmax_of_old(d: LayerDraft, wrong: bool) -> None:
    """Operator set 11: all dimensions from the axis on are one."""
    d.opset = 11
    x = d.input(2, number(d, 2, 8), number(d, 2, 8))
    d.output(d.op("Softmax", x, axis=2 if wrong else 1))


def mean_of_all(d: LayerDraft, wrong: bool) -> None:
    """A mean that is over one term fewer."""
    n = number(d, 20, 200)
    x = d.op("Abs", d.input(3, n))
    total = reduced(d, "ReduceSum", x, 1)
    d.output(d.op("Div", total, d.weight(n - wrong)))


CONSTANTS: Mapping[str, Kind] = {
    "weight of a middle layer": Kind(middle_weight),
    "weight of a convolution": Kind(convolution_weight),
    "constant folded wrongly": Kind(folded_constant),
    "row of an embedding": Kind(embedding),
    "table of trees": Kind(trees),
    "bias": Kind(bias),
    "rounded by hand": Kind(rounded_manifest, rounded=True),
}
WHOLE: Mapping[str, Kind] = {name: Kind(build) for name, build in WHOLE_NUMBERS.items()}
TIES: Mapping[str, Kind] = {
    "Round half up": Kind(rounds_half_up),
    "QuantizeLinear half up": Kind(quantizes_half_up),
    "Cast that rounds": Kind(truncates),
}
RANGES: Mapping[str, Kind] = {
    "Clip": Kind(clips),
    "Where beyond a limit": Kind(beyond),
    "saturation": Kind(saturates),
    "NonMaxSuppression": Kind(suppresses),
}
READINGS: Mapping[str, Kind] = {
    "Loop": Kind(loops),
    "small outputs": Kind(small_outputs),
    "Softmax of operator set 11": Kind(softmax_of_old),
    "terms of a mean": Kind(mean_of_all),
    **{name: Kind(build) for name, build in MISREADINGS.items()},
}
KINDS: Mapping[str, Kind] = {**CONSTANTS, **WHOLE, **TIES, **RANGES, **READINGS}
