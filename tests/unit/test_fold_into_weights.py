"""Arithmetic that goes into weights: batch norm, attention scales, products and sums with constants."""

import pytest
from graph_to_onnx import random_feeds, run_onnx, to_onnx
from pass_graphs import applied, graph, nodes, ops, weights

from modelc.passes import run_passes


def test_arithmetic_that_changes_nothing_goes():
    text = """
        input X: float32[2, 3]
        const zero: float32[3] = [0.0, 0.0, 0.0]
        const one: float32[] = [1.0]
        const wide: float32[1, 2, 3] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
        const two: float32[] = [2.0]
        a = Add(zero, X)
        b = Sub(a, zero)
        c = Mul(b, one)
        d = Div(c, one)
        e = Pow(d, one)
        f = Mul(e, two)
        g = Mul(f, two)
        Y = Mul(g, wide)
        output Y"""
    after = run_passes(graph(text), ["clean_arithmetic"])
    assert nodes(after) == ["g = Mul(X, two_product)", "Y = Mul(g, wide)"]
    applied("clean_arithmetic", text)


NORM = "\n".join(weights(n, 4) for n in ("scale", "bias", "mean")) + "\n" + weights("var", 4, low=0.5)
LINEAR = {
    "Conv": ("float32[1, 3, 6, 6]", f"{weights('W', 4, 3, 3, 3)}\n{weights('b', 4)}", "pads=(1, 1, 1, 1)"),
    "depthwise Conv": ("float32[1, 4, 6, 6]", f"{weights('W', 4, 1, 3, 3)}\n{weights('b', 4)}", "group=4"),
    "ConvTranspose": ("float32[1, 3, 6, 6]", f"{weights('W', 3, 4, 3, 3)}\n{weights('b', 4)}", "strides=(2, 2)"),
    "grouped ConvTranspose": ("float32[1, 6, 6, 6]", f"{weights('W', 6, 2, 3, 3)}\n{weights('b', 4)}", "group=2"),
    "Gemm": ("float32[5, 3]", f"{weights('W', 3, 4)}\n{weights('b', 4)}", "alpha=0.5 beta=2.0"),
    "transposed Gemm": ("float32[5, 3]", f"{weights('W', 4, 3)}\n{weights('b', 1, 4)}", "transB=1"),
}


@pytest.mark.parametrize("bias", [", b", ""])
@pytest.mark.parametrize("name", LINEAR)
def test_batch_norm_goes_into_weights(name, bias):
    x, constants, attrs = LINEAR[name]
    op = name.split()[-1]
    text = f"""
        input X: {x}
        {constants}
        {NORM}
        t = {op}(X, W{bias}) {attrs}
        Y = BatchNormalization(t, scale, bias, mean, var) epsilon=0.001
        output Y"""
    assert ops(applied("fold_batch_norm", text)) == [op]


@pytest.mark.parametrize("form", ["Mul(t, s)\nY = Add(u, o)", "Mul(s, t)\nY = Sub(u, o)", "Div(t, s)\nY = Add(o, u)"])
def test_batch_norm_as_arithmetic_goes_into_weights(form):
    text = f"""
        input X: float32[1, 3, 6, 6]
        {weights("W", 4, 3, 3, 3)}
        {weights("s", 1, 4, 1, 1, low=0.5)}
        {weights("o", 4, 1, 1)}
        t = Conv(X, W)
        u = {form}
        output Y"""
    assert ops(applied("fold_batch_norm", text)) == ["Conv"]


def test_batch_norm_alone_becomes_arithmetic():
    text = f"""
        input X: float32[2, 4, 3]
        {NORM}
        Y = BatchNormalization(X, scale, bias, mean, var)
        output Y"""
    assert ops(applied("fold_batch_norm", text)) == ["Mul", "Add"]


def test_weights_that_something_else_reads_are_left():
    text = f"""
        input X: float32[1, 3, 6, 6]
        {weights("W", 4, 3, 3, 3)}
        {weights("per_channel", 4, 1, 1)}
        {weights("per_row", 4, 1)}
        t = Conv(X, W)
        a = Mul(t, per_channel)
        b = Relu(t)
        Y = Add(a, b)
        u = Conv(X, W) group=1
        Z = Mul(u, per_row)
        output Y
        output Z"""
    assert ops(applied("fold_batch_norm", text)).count("Mul") == 2


ATTENTION = f"""
    input X: float32[1, 6, 8]
    {weights("Wq", 8, 8)}
    {weights("Wk", 8, 8)}
    {weights("b", 8)}
    const split: int64[4] = [1, 6, 2, 4]
    const scale: float32[] = [SCALE]
    q0 = MatMul(X, Wq)
    q1 = Add(b, q0)
    q2 = Reshape(q1, split)
    q = Transpose(q2) perm=(0, 2, 1, 3)
    k0 = MatMul(X, Wk)
    k1 = Reshape(k0, split)
    k = Transpose(k1) perm=(0, 2, 3, 1)
    qk = MatMul(q, k)
    z = Div(qk, scale)
    Y = Softmax(z) axis=-1
    output Y
"""


@pytest.mark.parametrize(("scale", "divisions"), [("2.0", 0), ("8.0", 0), ("3.0", 1), ("2.828427", 1)])
def test_attention_scales_that_are_exact_go_into_weights(scale, divisions):
    before = graph(ATTENTION.replace("SCALE", scale))
    after = applied("fold_attention_scale", before)
    assert ops(after).count("Div") == divisions
    if not divisions:
        feeds = random_feeds(before)
        assert run_onnx(to_onnx(before), feeds)[0].tobytes() == run_onnx(to_onnx(after), feeds)[0].tobytes()


def test_attention_scales_go_into_factors_of_columns():
    """As products of whole numbers have them; what comes from where is still known."""
    text = f"""
        input sums: int32[1, 6, 8]
        input rows: float32[1, 6, 1]
        input k: float32[1, 8, 6]
        {weights("columns", 8)}
        {weights("b", 8)}
        const scale: float32[] = [8.0]
        real = Cast(sums) to="float32"
        q0 = Mul(columns, real)  # product
        q1 = Mul(q0, rows)
        q = Add(q1, b)
        qk = MatMul(q, k)
        Y = Div(qk, scale)  # scaled
        output Y"""
    after = applied("fold_attention_scale", text)
    assert ops(after) == ["Cast", "Mul", "Mul", "Add", "MatMul"]
    assert after.nodes[1].source == ("product", "scaled")
