"""Models of half floats compute in float32 between their inputs and outputs."""

import numpy as np
from graph_to_onnx import random_feeds
from pass_graphs import graph, interpreted, nodes

from modelc.passes import Machine, run_passes
from modelc.passes.widen_halves import WidenHalves

CHAIN = """
    input X: float16[2, 3, 5, 5]
    const W: float16[4, 3, 1, 1] = [0.5, 1.0, 0.25, 0.5, 1.0, 0.25, 0.5, 1.0, 0.25, 2.0, 1.0, 1.0]
    a = Conv(X, W)
    b = Relu(a)
    c = Cast(b) to="float32"
    d = Cast(c) to="float16"
    Y = Neg(d)
    output b
    output Y"""


def test_a_chain_is_widened_between_inputs_and_outputs() -> None:
    before = graph(CHAIN)
    after = run_passes(before, ["widen_halves"])
    assert nodes(after) == [
        'X_wide = Cast(X) to="float32"',
        "a_wide = Conv(X_wide, W_wide)",
        "b_wide = Relu(a_wide)",
        "c = Identity(b_wide)",
        'd = Cast(c) to="float16"',  # the model itself rounds
        'd_wide = Cast(d) to="float32"',
        "Y_wide = Neg(d_wide)",
        'b = Cast(b_wide) to="float16"',
        'Y = Cast(Y_wide) to="float16"',
    ]
    assert after.value("W_wide").dtype == "float32" and "W" not in after.values
    assert [note for note in after.notes if "stored as float32" in note]
    feeds = random_feeds(before)
    for mine, theirs in zip(interpreted(after, feeds), interpreted(before, feeds), strict=True):
        assert mine.dtype == theirs.dtype == np.float16
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def test_what_adds_up_nothing_stays() -> None:
    before = graph("input X: float16[2, 3]\na = Exp(X)\nY = Transpose(a) perm=(1, 0)\noutput Y")
    assert WidenHalves()(before) == before


def test_a_matrix_that_streams_by_stays_in_half_floats() -> None:
    text = "input X: float16[{}, 3]\nconst W: float16[3, 2] = [0.5, 1.0, 2.0, 4.0, 0.25, 3.0]\n"
    text += "a = MatMul(X, W)\nY = Relu(a)\noutput Y"
    one, few = graph(text.format(1)), graph(text.format(8))
    half = [
        "a = MatMul(X, W)",
        'a_wide = Cast(a) to="float32"',
        "Y_wide = Relu(a_wide)",
        'Y = Cast(Y_wide) to="float16"',
    ]
    assert nodes(WidenHalves()(one)) == half
    assert nodes(WidenHalves()(few))[1] == "a_wide = MatMul(X_wide, W_wide)"
    assert nodes(WidenHalves(machine=Machine(kept_bytes=0))(few)) == half


def test_a_table_stays_in_half_floats() -> None:
    text = """
        input I: int64[2]
        const T: float16[3, 2] = [0.5, 1.0, 2.0, 4.0, 0.25, 3.0]
        const W: float16[2, 2] = [0.5, 1.0, 2.0, 4.0]
        a = Gather(T, I) axis=0
        Y = MatMul(a, W)
        output Y"""
    assert nodes(WidenHalves()(graph(text)))[:2] == ["a = Gather(T, I) axis=0", 'a_wide = Cast(a) to="float32"']
