"""Rows that are rounded by scales of their own become one node, whose numbers are the same."""

import numpy as np
import pytest
from graph_to_onnx import run_onnx, to_onnx
from pass_graphs import applied, graph, interpreted, nodes, ops

ROWS = """
    input X: float32[2, 3, 8]
    const axes: int64[1] = [AXIS]
    const least: float32[] = [1e-30]
    const step: float32[] = [0.007874016]
    const one: float32[] = [NUMERATOR]
    const zero: float32[] = [128.0]
    a = Abs(X)
    m = ReduceMax(a, axes) keepdims=1
    largest = Max(m, least)
    S = Mul(largest, step)
    inverse = Div(one, S)
    steps = Mul(X, inverse)
    whole = Round(steps)
    moved = Add(whole, zero)
    B = Cast(MOVED) to="DTYPE"
    output B
    output S
"""


def rows(axis: str = "-1", numerator: str = "1.0", moved: str = "moved", dtype: str = "uint8") -> str:
    text = ROWS.replace("AXIS", axis).replace("NUMERATOR", numerator)
    return text.replace("MOVED", moved).replace("DTYPE", dtype)


@pytest.mark.parametrize(("moved", "dtype"), [("moved", "uint8"), ("whole", "int8"), ("whole", "int16")])
def test_rows_are_rounded_in_one_node(moved: str, dtype: str) -> None:
    before = graph(rows(moved=moved, dtype=dtype))
    after = applied("quantize_rows", before, numbers=False)
    assert ops(after) == ["QuantizeRows"]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 8)).astype(np.float32)
    x[0, 1], x[1, 2, 3] = 0, 1e4
    for made, right in zip(interpreted(after, {"X": x}), run_onnx(to_onnx(before), {"X": x}), strict=True):
        assert made.dtype == right.dtype
        np.testing.assert_array_equal(made, right)


@pytest.mark.parametrize("other", [{"axis": "1"}, {"numerator": "2.0"}, {"dtype": "int32"}])
def test_other_rounding_stays(other: dict[str, str]) -> None:
    before = graph(rows(**other))
    assert nodes(applied("quantize_rows", before)) == nodes(before)
