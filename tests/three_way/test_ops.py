"""Every operator's meaning, run with NumPy, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import CASES, Case, check, defined, f, i, reference

from modelc.errors import ModelError
from modelc.ir.graph import Node, Value
from modelc.ops import OPERATORS, evaluate_node
from modelc.ops.elementwise import UNARY
from modelc.ops.interval import ANY


@pytest.mark.parametrize("case", CASES, ids=[f"{c.op}-{k}" for k, c in enumerate(CASES)])
def test_against_onnxruntime(case: Case) -> None:
    check(case)


SPECIAL = np.asarray(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -1.0, 0.3, -0.7, 20, -20, 1e-30, 3.0, -3.0],
    np.float32,
)


@pytest.mark.parametrize("op", [x.name for x in UNARY if x.name not in ("Not", "BitwiseNot", "Swish")])
def test_unary_on_special_values(op: str) -> None:
    check(Case(op, (SPECIAL,)))


@pytest.mark.parametrize("op", ["Max", "Min", "Add", "Mul", "Div", "Pow", "Greater", "Equal", "PRelu"])
def test_binary_on_special_values(op: str) -> None:
    check(Case(op, (np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL)))))


def test_every_operator_has_a_case() -> None:
    covered = {x.op for x in CASES} | {x.name for x in UNARY}
    elsewhere = {"NonZero", "HannWindow", "HammingWindow", "BlackmanWindow", "CumProd", "CenterCropPad", "Scatter"}
    elsewhere |= {"LSTMStep", "GRUStep", "RNNStep", "StepsWithin"}  # test_recurrent.py
    elsewhere |= {"BitCast"}  # test_narrow.py
    elsewhere |= {"RandomKey", "RandomNormal", "RandomUniform"}  # test_random.py
    elsewhere |= {
        "PackedMatMul",
        "PackedDot",
        "QuantizeBlocks",
        "RoundBlocks",
    }  # test_packed_weights.py
    elsewhere |= {"ByteTable"}  # test_byte_tables.py
    elsewhere |= {"Trees"}  # test_classical.py
    elsewhere |= {"SuppressBoxes", "ListBoxes", "Unique"}  # test_sizes.py
    elsewhere |= {"Bound"}  # test_bounds.py
    elsewhere |= {"If", "Loop"}  # test_control.py, test_control_loops.py
    elsewhere |= {"DeformConv", "Det", "RoiAlign", "TensorScatter"}  # test_composed.py
    assert set(OPERATORS) - covered - elsewhere == set()


def test_folding() -> None:
    """Constants alone: what constant folding does."""
    for case in CASES[:: len(CASES) // 60]:
        found = evaluate_node(case.node, case.values(constant=True))
        for got, wanted in zip(found, reference(case), strict=True):
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), 2e-3, 1e-4)


def test_rows_say_what_operators_do() -> None:
    """Where results lie, and which numbers they hold."""
    for case in CASES:
        row, (result, *_) = OPERATORS[case.op], evaluate_node(case.node, case.values(constant=True))
        arrays = [np.zeros(0) if x is None else x for x in case.inputs]
        if not result.size or any(x.dtype.kind not in "biuf" for x in (result, *arrays)):
            continue
        operands = [(float(x.min()), float(x.max())) if x.size else ANY for x in arrays]
        low, high = row.bounded(case.node, case.values(constant=True), operands)
        assert low <= result.min() and result.max() <= high, case
        if row.numbers:
            sources = arrays if row.numbers == "joins" else arrays[:1]
            assert {*result.flat} <= {y for x in sources for y in x.flat}, case
        if row.numbers == "moves":
            assert {*result.flat} == {*arrays[0].flat}, case


# --- the form that the scheduler relies on -------------------------------------------------------------------------


def shown(case: Case) -> str:
    return "\n".join(map(str, defined(case)[0].blocks))


def test_convolution_is_one_contraction() -> None:
    case = Case("Conv", (f(1, 64, 56, 56)[:, :2], f(4, 2, 3, 3), f(4)), {"pads": [1, 1, 1, 1]})
    assert shown(case) == (
        "block conv [n:1 o:4 h:56 w:56 | c:2 r:3 s:3] add\n"
        "  where h + r - 1 >= 0 and h + r - 1 < 56 and w + s - 1 >= 0 and w + s - 1 < 56\n"
        "  sum[n, o, h, w] += x0[n, c, h + r - 1, w + s - 1] * x1[o, c, r, s]\n"
        "block bias [n:1 o:4 h:56 w:56] assign\n"
        "  y0[n, o, h, w] = sum[n, o, h, w] + x2[o]"
    )


def test_depthwise_convolution_has_no_channel_reduction() -> None:
    assert shown(Case("Conv", (f(1, 6, 5, 5), f(6, 1, 3, 3)), {"group": 6})) == (
        "block conv [n:1 c:6 h:3 w:3 | r:3 s:3] add\n  y0[n, c, h, w] += x0[n, c, h + r, w + s] * x1[c, 0, r, s]"
    )


def test_transposed_convolution_gathers_over_phases() -> None:
    case = Case("ConvTranspose", (f(1, 2, 4, 4), f(2, 3, 4, 4)), {"strides": [2, 2], "pads": [1, 1, 1, 1]})
    text = shown(case)
    assert "[n:1 o:3 hq:4 ph:2 wq:4 pw:2 | c:2 rq:2 sq:2]" in text
    assert "y0[n, o, hq * 2 + ph, wq * 2 + pw] +=" in text


def test_batched_matmul() -> None:
    assert shown(Case("MatMul", (f(2, 3, 4, 5), f(1, 3, 5, 6)))) == (
        "block matmul [b:2 h:3 m:4 n:6 | k:5] add\n  y0[b, h, m, n] += x0[b, h, m, k] * x1[0, h, k, n]"
    )


def test_reshape_splits_and_merges_plainly() -> None:
    split = Case("Reshape", (f(2, 6, 20), i(2, 6, 4, 5)), {}, (1,))
    assert "x0[n, c, h * 5 + w]" in shown(split)
    assert "x0[b, m, n // 5, n % 5]" in shown(Case("Reshape", (f(2, 6, 4, 5), i(2, 6, 20)), {}, (1,)))


def test_nearest_resize_is_quasi_affine() -> None:
    case = Case("Resize", (f(1, 2, 4, 4), None, np.asarray([1, 1, 2, 2], np.float32)), {"mode": "nearest"}, (2,))
    assert "x0[n, c, h // 2, w // 2]" in shown(case)


# --- properties ---------------------------------------------------------------------------------------------------


@st.composite
def broadcastable(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = draw(st.lists(st.integers(1, 4), max_size=5))
    pair = []
    for _ in range(2):
        cut = draw(st.integers(0, len(shape)))
        pair.append(tuple(n if draw(st.booleans()) else 1 for n in shape[cut:]))
    return pair[0], pair[1]


@settings(max_examples=30, deadline=None)
@given(broadcastable())
def test_broadcasting_is_numpys(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (np.arange(np.prod(s), dtype=np.float32).reshape(s) for s in shapes)
    node = Node("Sub", "n", ("a", "b"), ("y",))
    (y,) = evaluate_node(node, (Value("a", "float32", a.shape, a), Value("b", "float32", b.shape, b)))
    np.testing.assert_array_equal(y, a - b)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9), st.integers(-12, 12), st.integers(-12, 12), st.integers(-4, 4).filter(bool))
def test_slicing_is_numpys(extent: int, start: int, stop: int, step: int) -> None:
    x = np.arange(extent, dtype=np.int64)
    steer = [
        Value(k, "int64", (1,), np.asarray([v], np.int64)) for k, v in zip("seat", (start, stop, 0, step), strict=True)
    ]
    (y,) = evaluate_node(Node("Slice", "n", tuple("xseat"), ("y",)), (Value("x", "int64", x.shape, x), *steer))
    stop_ = None if step < 0 and stop < -extent else stop
    start = max(start, -extent) if step < 0 else start  # backwards, ONNX begins with the first element
    np.testing.assert_array_equal(y, x[start:stop_:step])


@settings(max_examples=50, deadline=None)
@given(st.permutations([2, 3, 4, 5]), st.integers(0, 3), st.integers(1, 4), st.data())
def test_reshaping_is_numpys(shape: list[int], cut: int, count: int, data: st.DataObject) -> None:
    """Any product of the same primes is a shape of the same size."""
    factors = data.draw(st.permutations([2, 3, 2, 2, 5]))
    marks = sorted(data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)))
    target = [int(np.prod(factors[a:b])) for a, b in zip([0, *marks], [*marks, 5], strict=True)]
    x = np.arange(120).reshape(shape)
    wanted = Value("s", "int64", (len(target),), np.asarray(target))
    (y,) = evaluate_node(Node("Reshape", "n", ("x", "s"), ("y",)), (Value("x", "int64", x.shape, x), wanted))
    np.testing.assert_array_equal(y, x.reshape(target))


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (Case("Conv", (f(1, 3, 5, 5), f(4, 2, 3, 3))), "expected 3 input channels in 1 groups"),
        (Case("MatMul", (f(2, 3), f(4, 5))), "expected operands that multiply"),
        (Case("Add", (f(2, 3), f(4))), "expected shapes that broadcast"),
        (Case("Reshape", (f(2, 3), i(6))), "expected a constant as shape, found 'in1'"),
        (Case("Transpose", (f(2, 3),), {"perm": [0, 0]}), "expected perm to permute 2 dimensions"),
        (Case("ArgMax", (f(2, 3),), {"keepdims": 16}), "expected keepdims of 0 or 1, found 16"),
        (Case("NonZero", (f(2, 3),)), "expected bools of one dimension at least, found float32[2, 3]"),
    ],
)
def test_errors_are_sentences(case: Case, sentence: str) -> None:
    with pytest.raises(ModelError, match="node 'node'") as error:
        OPERATORS[case.op].infer(case.node, case.values())
    assert sentence in str(error.value)
