"""GELU and hard swish are found in every form that exporters write."""

import pytest
from pass_graphs import SCALARS, applied, ops

GELU = {
    "PyTorch": ("d = Div(x, root)\ne = Erf(d)\na = Add(e, one)\nm = Mul(x, a)\nY = Mul(m, half)", {}),
    "half first": ("h = Mul(x, half)\nd = Mul(x, inverse)\ne = Erf(d)\na = Add(one, e)\nY = Mul(h, a)", {}),
    "half last": ("d = Mul(inverse, x)\ne = Erf(d)\na = Add(e, one)\nh = Mul(half, a)\nY = Mul(x, h)", {}),
    "TensorFlow": ("d = Div(x, root)\ne = Erf(d)\nh = Mul(e, half)\na = Add(h, half)\nY = Mul(a, x)", {}),
    "divided by two": ("d = Div(x, root)\ne = Erf(d)\na = Add(e, one)\nm = Mul(x, a)\nY = Div(m, two)", {}),
    "GPT-2": (
        "h = Mul(x, half)\np = Pow(x, three)\nq = Mul(p, k)\ns = Add(x, q)\n"
        "t = Mul(s, c)\nu = Tanh(t)\nv = Add(u, one)\nY = Mul(h, v)",
        {"approximate": "tanh"},
    ),
    "x * x * x": (
        "xx = Mul(x, x)\nxxx = Mul(xx, x)\nq = Mul(k, xxx)\ns = Add(x, q)\n"
        "t = Mul(c, s)\nu = Tanh(t)\nv = Add(one, u)\nw = Mul(half, v)\nY = Mul(x, w)",
        {"approximate": "tanh"},
    ),
    "factored": (
        "xx = Mul(x, x)\nq = Mul(xx, ck)\ns = Add(q, c)\nt = Mul(x, s)\n"
        "u = Tanh(t)\nv = Add(u, one)\nh = Mul(half, x)\nY = Mul(v, h)",
        {"approximate": "tanh"},
    ),
}


@pytest.mark.parametrize("name", GELU)
def test_gelu_in_every_form(name):
    text, attrs = GELU[name]
    after = applied("fuse_gelu", f"input X: float32[4, 50]\n{SCALARS}\nx = Add(X, X)\n{text}\noutput Y")
    assert ops(after) == ["Add", "Gelu"] and after.nodes[1].attrs == attrs
    assert len(after.nodes[1].source) == len(text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        "d = Div(x, two)\ne = Erf(d)\na = Add(e, one)\nm = Mul(x, a)\nY = Mul(m, half)",  # another scale
        "d = Div(x, root)\ne = Erf(d)\na = Add(e, two)\nm = Mul(x, a)\nY = Mul(m, half)",  # another offset
        "d = Div(x, root)\ne = Erf(d)\na = Add(e, one)\nm = Mul(X, a)\nY = Mul(m, half)",  # another factor
    ],
)
def test_what_is_nearly_gelu_is_left(text):
    after = applied("fuse_gelu", f"input X: float32[4, 50]\n{SCALARS}\nx = Add(X, X)\n{text}\noutput Y")
    assert "Gelu" not in ops(after)


SWISH = {
    "PaddlePaddle": (
        "a = Add(x, three)\nb = Clip(a, zero, six)\nc1 = Mul(x, b)\nY = Div(c1, six)",
        ["Add", "HardSwish"],
    ),
    "gate first": ("a = Add(three, x)\nb = Clip(a, zero, six)\ng = Div(b, six)\nY = Mul(g, x)", ["Add", "HardSwish"]),
    "times a sixth": (
        "a = Add(x, three)\nb = Clip(a, zero, six)\nm = Mul(b, sixth)\nY = Mul(x, m)",
        ["Add", "HardSwish"],
    ),
    "hard sigmoid": ("g = HardSigmoid(x) alpha=0.16666667 beta=0.5\nY = Mul(x, g)", ["Add", "HardSwish"]),
    "other hard sigmoid": ("g = HardSigmoid(x) alpha=0.2 beta=0.5\nY = Mul(x, g)", ["Add", "HardSigmoid", "Mul"]),
    "gate alone": ("a = Add(x, three)\nb = Clip(a, zero, six)\nY = Div(b, six)", ["Add", "HardSigmoid"]),
    "another bound": ("a = Add(x, three)\nb = Clip(a, one, six)\nY = Div(b, six)", ["Add", "Add", "Clip", "Div"]),
}


@pytest.mark.parametrize("name", SWISH)
def test_hard_swish_in_every_form(name):
    text, expected = SWISH[name]
    after = applied("fuse_hard_swish", f"input X: float32[4, 50]\n{SCALARS}\nx = Add(X, X)\n{text}\noutput Y")
    assert ops(after) == expected
