"""Layer norm is found in every form that exporters write."""

import pytest
from pass_graphs import SCALARS, applied, ops, weights

LN_CONSTANTS = f"""
    input X: float32[2, 5, 8]
    const axes: int64[1] = [-1]
    const first: int64[1] = [1]
    {weights("gamma", 8)}
    {weights("beta", 1, 1, 8)}
    {weights("skip", 2, 5, 8)}
    {SCALARS}
    m = ReduceMean(X, axes)
    d = Sub(X, m)
"""
LAYER_NORM = {
    "Pow": "p = Pow(d, two)\nv = ReduceMean(p, axes)\ne = Add(v, eps)\ns = Sqrt(e)\nn = Div(d, s)",
    "Mul": "p = Mul(d, d)\nv = ReduceMean(p, axes)\ne = Add(eps, v)\ns = Sqrt(e)\nn = Div(d, s)",
    "Reciprocal": (
        "p = Mul(d, d)\nv = ReduceMean(p, axes)\ne = Add(v, eps)\ns = Sqrt(e)\nr = Reciprocal(s)\nn = Mul(d, r)"
    ),
    "Pow of a half": "p = Mul(d, d)\nv = ReduceMean(p, axes)\ne = Add(v, eps)\ns = Pow(e, half)\nn = Div(d, s)",
}


@pytest.mark.parametrize("name", LAYER_NORM)
@pytest.mark.parametrize(
    ("tail", "inputs"),
    [
        ("Y = Identity(n)", 2),
        ("Y = Mul(n, gamma)", 2),
        ("g = Mul(gamma, n)\nY = Add(g, beta)", 3),
    ],
)
def test_layer_norm_in_every_form(name, tail, inputs):
    after = applied("fuse_layer_norm", f"{LN_CONSTANTS}\n{LAYER_NORM[name]}\n{tail}\noutput Y")
    assert [op for op in ops(after) if op != "Identity"] == ["LayerNormalization"]
    assert len(after.nodes[0].inputs) == inputs


def test_a_residual_is_no_bias():
    after = applied(
        "fuse_layer_norm", f"{LN_CONSTANTS}\n{LAYER_NORM['Pow']}\ng = Mul(n, gamma)\nY = Add(g, skip)\noutput Y"
    )
    assert ops(after) == ["LayerNormalization", "Add"] and len(after.nodes[0].inputs) == 2


def test_means_over_other_axes_are_left():
    text = LN_CONSTANTS.replace("ReduceMean(X, axes)", "ReduceMean(X, first)")
    after = applied("fuse_layer_norm", f"{text}\n{LAYER_NORM['Pow']}\nY = Relu(n)\noutput Y")
    assert "LayerNormalization" not in ops(after)


def test_statistics_that_something_else_reads_are_left():
    after = applied("fuse_layer_norm", f"{LN_CONSTANTS}\n{LAYER_NORM['Pow']}\nY = Add(n, v)\noutput Y")
    assert "LayerNormalization" not in ops(after)
