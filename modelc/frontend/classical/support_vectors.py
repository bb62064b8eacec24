"""Support vectors (domain ai.onnx.ml) in ONNX's own words: regression; classes, their votes and probabilities."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.bodies import Body, emit_control
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.formula import Formula
from modelc.frontend.classical.linear import (
    ML,
    best,
    both,
    cast,
    chosen,
    floats,
    number,
    refuse_strings,
    rows,
    transformed,
)
from modelc.ir.graph import Value

LEAST_SHARE = 1e-7  # of a probability of one class against another
MOST_ITERATIONS = 100  # in which probabilities of all classes are found from those of pairs
NEAR = 0.005  # over the number of classes: what they may be off


def _kernel(b: Builder, n: OnnxNode, x: str, vectors: NDArray[np.float32]) -> str:
    """The kernel of every sample with every support vector."""
    kind = str(n.attrs.get("kernel_type", "LINEAR"))
    gamma, coef, degree = (*floats(n, "kernel_params").tolist(), 0.0, 0.0, 0.0)[:3]
    width = b.shape(x)[1]
    if kind == "RBF":
        samples = b.reshape(n, x, (b.shape(x)[0], 1, width))
        apart = b.emit(n, "Sub", (samples, number(b, n, vectors[None], "float32")))
        axes = b.constant(np.array([2], np.int64), f"{n.outputs[0]}_axes")
        square = b.emit(n, "ReduceSumSquare", (apart, axes), {"keepdims": 0})
        return b.emit(n, "Exp", (b.emit(n, "Mul", (square, number(b, n, -gamma, "float32"))),))
    product = b.emit(n, "Gemm", (x, number(b, n, vectors, "float32")), {"transB": 1})
    if kind == "LINEAR":
        return product
    scaled = b.emit(n, "Mul", (product, number(b, n, gamma, "float32")))
    scaled = b.emit(n, "Add", (scaled, number(b, n, coef, "float32")))
    if kind == "POLY":
        return b.emit(n, "Pow", (scaled, number(b, n, degree, "float32")))
    if kind == "SIGMOID":
        return b.emit(n, "Tanh", (scaled,))
    raise n.fail(f"expected kernel_type LINEAR, POLY, RBF or SIGMOID, found {kind!r}")


def _svm_regressor(b: Builder, n: OnnxNode) -> None:
    x = rows(b, n, cast(b, n, n.inputs[0], "float32"))
    count, weights, rho = int(n.attrs.get("n_supports", 0)), floats(n, "coefficients"), floats(n, "rho")
    width = b.shape(x)[1]
    if count and floats(n, "support_vectors").size != count * width:
        raise n.fail(f"expected {count} x {width} numbers in support_vectors, found another number")
    if weights.size != (count or width) or rho.size != 1:
        raise n.fail(f"expected {count or width} coefficients and one rho, found {weights.size} and {rho.size}")
    if count:
        x = _kernel(b, n, x, floats(n, "support_vectors").reshape(count, width))
    scores = b.emit(n, "MatMul", (x, number(b, n, weights.reshape(-1, 1), "float32")))
    scores = b.emit(n, "Add", (scores, number(b, n, rho, "float32")))
    if n.attrs.get("one_class", 0):
        hit = b.emit(n, "Greater", (scores, number(b, n, 0, "float32")))
        b.emit(n, "Where", (hit, number(b, n, 1, "float32"), number(b, n, -1, "float32")), {}, n.outputs)
        return
    transformed(b, n, scores, str(n.attrs.get("post_transform", "NONE")), n.outputs[0])


# --- classes ----------------------------------------------------------------------------------------------------------


def _svm_classifier(b: Builder, n: OnnxNode) -> None:
    """Linear scores of every class; or with support vectors a vote for each pair of classes, scores of the pairs, and
    where these have probabilities, those of the classes."""
    refuse_strings(n, "classlabels_strings")
    labels = np.asarray(n.attrs.get("classlabels_ints") or (), np.int64)
    counts = tuple(int(k) for k in n.attrs.get("vectors_per_class") or ())
    total: int = sum(counts)
    if len(labels) < 2 or (total and len(counts) != len(labels)):
        raise n.fail(f"expected two labels or more, and vectors of each, found {len(labels)} and {len(counts)}")
    x = rows(b, n, cast(b, n, n.inputs[0], "float32"))
    transform = str(n.attrs.get("post_transform", "NONE"))
    if not total:
        _by_linear_scores(b, n, x, labels, transform)
        return
    scores = _pairs(b, n, x, counts)
    if n.wants(0):
        chosen(b, n, best(b, n, _votes(b, n, scores, len(labels))), labels, n.outputs[0])
    if not n.wants(1):
        return
    if floats(n, "prob_a").size:
        transformed(b, n, _probabilities(b, n, scores, len(labels)), transform, n.outputs[1])
    elif len(labels) == 2:
        both(b, n, scores, transform, n.outputs[1], signed=transform == "NONE")
    else:
        transformed(b, n, scores, transform, n.outputs[1])


def _by_linear_scores(b: Builder, n: OnnxNode, x: str, labels: NDArray[np.int64], transform: str) -> None:
    f, weights, rho = Formula(b, n), floats(n, "coefficients"), floats(n, "rho")
    width, count = b.shape(x)[1], len(labels)
    if weights.size != count * width or not rho.size:
        raise n.fail(f"expected {count} x {width} coefficients and a rho, found {weights.size} and {rho.size}")
    product = f("Gemm", x, f.constant(weights.reshape(count, width)), transB=1)
    scores = f("Add", product, f.constant(rho[0]))
    if n.wants(0):
        at = best(b, n, scores)
        if count == 2:  # where the greater score is high enough it is the second class, whichever has it
            most = f("ReduceMax", scores, f.constant([1], "int64"), keepdims=0)
            positive = bool((weights >= 0).all())
            high = f("GreaterOrEqual" if positive else "Greater", most, f.constant(0.5 if positive else 0.0))
            at = f("Where", high, f.constant(1, "int64"), at)
        chosen(b, n, at, labels, n.outputs[0])
    if n.wants(1):
        transformed(b, n, scores, transform, n.outputs[1])


def _pairs(b: Builder, n: OnnxNode, x: str, counts: tuple[int, ...]) -> str:
    """Scores [samples, pairs of classes]: the vectors of both classes of a pair take part, each with its coefficient
    for the other class."""
    total, width, classes = sum(counts), b.shape(x)[1], len(counts)
    pairs, rho = list(combinations(range(classes), 2)), floats(n, "rho")
    vectors, weights = floats(n, "support_vectors"), floats(n, "coefficients")
    if min(counts) < 0 or vectors.size != total * width or weights.size != total * (classes - 1):
        raise n.fail(
            f"expected {total} x {width} numbers in support_vectors and {classes - 1} x {total} coefficients, found "
            f"{vectors.size} and {weights.size}"
        )
    if rho.size != len(pairs):
        raise n.fail(f"expected {len(pairs)} numbers in rho, found {rho.size}")
    weights, bounds = weights.reshape(classes - 1, total), np.cumsum([0, *counts])
    dense = np.zeros((len(pairs), total), np.float32)
    for k, (i, j) in enumerate(pairs):
        first, second = (slice(bounds[c], bounds[c + 1]) for c in (i, j))
        dense[k, first], dense[k, second] = weights[j - 1, first], weights[i, second]
    kernel = _kernel(b, n, x, vectors.reshape(total, width))
    f = Formula(b, n)
    return f("Gemm", kernel, f.constant(dense), f.constant(rho), transB=1)


def _votes(b: Builder, n: OnnxNode, scores: str, classes: int) -> str:
    """How many of the pairs [samples, pairs] are for each class: the first of a pair where its score is above 0."""
    f, pairs = Formula(b, n), list(combinations(range(classes), 2))
    table = np.zeros((2, len(pairs), classes), np.float32)
    for k, (i, j) in enumerate(pairs):
        table[0, k, i], table[1, k, j] = 1, 1
    first = f.cast(f("Greater", scores, f.constant(0)), "float32")
    return f("Gemm", first, f.constant(table[0] - table[1]), f.constant(table[1].sum(0)))


def _probabilities(b: Builder, n: OnnxNode, scores: str, classes: int) -> str:
    """Those of the classes [samples, classes] that agree best with those of pairs, by Wu, Lin and Weng (2004), method
    2: p is moved class by class until no class is off by NEAR."""
    f, a, c = Formula(b, n), floats(n, "prob_a"), floats(n, "prob_b")
    pairs = list(combinations(range(classes), 2))
    if a.size != len(pairs) or c.size != len(pairs):
        raise n.fail(f"expected {len(pairs)} numbers in prob_a and prob_b, found {a.size} and {c.size}")
    table, base = np.zeros((len(pairs), classes, classes), np.float32), np.zeros((classes, classes), np.float32)
    for k, (i, j) in enumerate(pairs):
        table[k, i, j], table[k, j, i], base[j, i] = 1, -1, 1
    share = f("Sigmoid", f("Neg", f("Add", f("Mul", scores, f.constant(a)), f.constant(c))))
    share = f("Clip", share, f.constant(LEAST_SHARE), f.constant(1 - LEAST_SHARE))
    samples = f.shape(scores)[0]
    flat = f("Gemm", share, f.constant(table.reshape(len(pairs), -1)), f.constant(base.reshape(-1)))
    r = f.reshaped(flat, samples, classes, classes)  # of the first class against the second
    turned = f.transposed(r, 0, 2, 1)
    squares = f("ReduceSum", f("Mul", turned, turned), f.constant([2], "int64"), keepdims=1)
    q = f("Sub", f("Mul", squares, f.constant(np.eye(classes)[None])), f("Mul", turned, r))
    start = f.constant(np.full((samples, classes), 1 / classes))
    return _repeated(f, start, lambda p: _moved(f, q, p))


def _moved(f: Formula, q: str, p: str) -> tuple[str, str]:
    """Whether any sample is still off, and p [samples, classes] after one round."""
    samples, classes = f.shape(p)
    last, unit = f.constant([1], "int64"), f.constant(1)
    qp = f("ReduceSum", f("Mul", q, f.reshaped(p, samples, 1, classes)), f.constant([2], "int64"), keepdims=0)
    pqp = f("ReduceSum", f("Mul", p, qp), last, keepdims=1)
    off = f("ReduceMax", f("Abs", f("Sub", qp, pqp)), last, keepdims=1)
    done = f("Less", off, f.constant(NEAR / classes))
    new = p
    for t in range(classes):
        row = f.reshaped(f.part(q, 1, t, t + 1), samples, classes)
        own, here = f.part(row, 1, t, t + 1), f.part(qp, 1, t, t + 1)
        step = f("Div", f("Sub", pqp, here), own)
        norm = f("Add", unit, step)
        new = f("Div", f("Add", new, f("Mul", step, f.constant(np.eye(classes)[t : t + 1]))), norm)
        twice = f("Add", f("Mul", step, own), f("Mul", f.constant(2), here))
        pqp = f("Div", f("Div", f("Add", pqp, f("Mul", step, twice)), norm), norm)
        qp = f("Div", f("Add", qp, f("Mul", step, row)), norm)
    axes = f.constant([0, 1], "int64")
    going = f("ReduceMax", f.cast(f("Not", done), "int32"), axes, keepdims=0)
    return f.cast(going, "bool"), f("Where", done, p, new)


def _repeated(f: Formula, start: str, body: Callable[[str], tuple[str, str]]) -> str:
    """`start` after `body` was applied to it while that says so, MOST_ITERATIONS times at the most."""
    b, n = f.b, f.n
    number_of, state = (b.fresh(f"{n.outputs[0]}_{name}") for name in ("number", "state"))
    b.values |= {number_of: Value(number_of, "int64", ()), state: Value(state, *_type(b, start))}
    outside, b.nodes = b.nodes, []
    try:
        results = body(state)
        made = Body(tuple(b.nodes), (number_of, state), results, results)
    finally:
        b.nodes = outside
    attrs = {"counted": 0, "asked": 0, "asks": 1, "states": 1, "parts": 0, "limit": MOST_ITERATIONS}
    result = b.fresh(f"{n.outputs[0]}_repeated")
    emit_control(b, n, "Loop", (start,), (made,), attrs, (result,))
    return result


def _type(b: Builder, x: str) -> tuple[str, tuple[int, ...]]:
    return b.value(x).dtype, b.shape(x)


SUPPORT_VECTORS: dict[tuple[str, str], Callable[[Builder, OnnxNode], None]] = {
    (ML, "SVMRegressor"): _svm_regressor,
    (ML, "SVMClassifier"): _svm_classifier,
}
