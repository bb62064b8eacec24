"""Passes over Graphs: text in, text out, and the same numbers before and after."""

from dataclasses import replace

import numpy as np
import pytest
from graph_to_onnx import assert_same, random_feeds, run_onnx, to_onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from modelc.errors import ConfigError, InvalidIR
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.graph_text import parse_graph, show_graph
from modelc.ir.verify_graph import verify_graph
from modelc.ops import evaluate_node
from modelc.passes import PASSES, SIMPLIFY, infer, make_pass, run_passes


def graph(text: str) -> Graph:
    """A Graph from nodes alone: `input X: float32[2]` and `const` lines, then nodes; values are inferred."""
    declared, nodes, outputs = [], [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        kind = line.split()[0]
        (declared if kind in ("input", "const") else outputs if kind == "output" else nodes).append(line)
    nodes = [n if "#" in n else f"{n}  # n{k}" for k, n in enumerate(nodes)]
    parsed = parse_graph("\n".join(["graph g", *declared, *nodes, *outputs]))
    values = dict(parsed.values)
    for node in parsed.nodes:
        types = infer(node, tuple(values[x] if x else None for x in node.inputs))
        for name, (dtype, shape) in zip(node.outputs, types, strict=False):
            if name:
                values[name] = Value(name, dtype, shape)
    made = replace(parsed, values=values)
    verify_graph(made, "test", infer)
    return made


def nodes(g: Graph) -> list[str]:
    """The nodes as text, constants by their values, without names and sources."""
    lines = [line.strip().split("  #")[0] for line in show_graph(g).splitlines() if "  #" in line]
    return [line for line in lines if " = " in line]


def ops(g: Graph) -> list[str]:
    return [n.op for n in g.nodes]


def interpreted(g: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the operator library says the Graph computes."""
    known = {name: replace(v, data=feeds.get(name, v.data)) for name, v in g.values.items()}
    for node in g.nodes:
        results = evaluate_node(node, tuple(known[x] if x else None for x in node.inputs))
        for name, data in zip(node.outputs, results, strict=False):
            if name:
                known[name] = replace(known[name], data=data)
    return [known[name].data for name in g.outputs]


def applied(name: str, text: str | Graph, numbers: bool = True, **options) -> Graph:
    """The Graph after one pass; the numbers are compared with ONNX Runtime's and the interpreter's."""
    before = graph(text) if isinstance(text, str) else text
    after = run_passes(before, [{name: options}])
    assert [v for v in after.outputs] == [v for v in before.outputs]
    if numbers:
        feeds = random_feeds(before, high=2)
        expected = run_onnx(to_onnx(before), feeds)
        assert_same(expected, run_onnx(to_onnx(after), feeds))
        assert_same(expected, interpreted(after, feeds))
    return after


def weights(name: str, *shape: int, seed: int = 0, low: float | None = None) -> str:
    """A constant of random numbers as a line of text."""
    rng = np.random.default_rng([seed, *name.encode()])
    data = (rng.standard_normal(shape) if low is None else rng.uniform(low, 2, shape)).astype(np.float32)
    made = Graph("g", (), (), {name: Value(name, "float32", shape, data)}, ())
    return show_graph(made).splitlines()[1]


# --- the registry -------------------------------------------------------------------------------------------------


def test_passes_are_named_by_their_files():
    for name, kind in PASSES.items():
        assert kind.__module__ == f"modelc.passes.{name}"
        assert kind.__dataclass_params__.frozen
    assert {make_pass(spec)[0] for spec in SIMPLIFY} == set(PASSES)


def test_unknown_passes_and_options_are_refused():
    g = graph("input X: float32[2]\nY = Relu(X)\noutput Y")
    with pytest.raises(ConfigError, match="unknown pass 'fold_all'; the passes are eliminate_dead"):
        run_passes(g, ["fold_all"])
    with pytest.raises(ConfigError, match="fold_constants has no option size; it has limit"):
        run_passes(g, [{"fold_constants": {"size": 1}}])


def test_the_pass_that_breaks_a_graph_is_named(monkeypatch):
    def broken(g):
        return replace(g, nodes=())

    monkeypatch.setitem(PASSES, "fuse_gelu", lambda: broken)
    monkeypatch.setattr("modelc.passes.fields", lambda kind: ())
    with pytest.raises(InvalidIR, match="pass fuse_gelu: output 'Y' is not produced"):
        run_passes(graph("input X: float32[2]\nY = Relu(X)\noutput Y"), ["eliminate_dead", "fuse_gelu"])


def test_every_pass_is_told_of():
    seen = []
    g = graph("input X: float32[2]\nY = Relu(X)\noutput Y")
    run_passes(g, ["eliminate_dead", "fold_constants"], on_pass=lambda name, after: seen.append((name, after == g)))
    assert seen == [("eliminate_dead", True), ("fold_constants", True)]


# --- constants, dead and common code ------------------------------------------------------------------------------


def test_constants_are_folded_up_to_the_output():
    text = """
        input X: float32[2]
        const a: float32[2] = [1.0, 2.0]
        t = Add(a, a)
        Y = Mul(X, t)
        Z = Neg(t)
        output Y
        output Z"""
    after = applied("fold_constants", text)
    assert nodes(after) == ["Y = Mul(X, t)", "Z = Neg(t)"]
    assert after.constant("t").tolist() == [2, 4]


def test_folding_does_not_blow_up():
    text = """
        input X: float32[1]
        const one: float32[] = [1.0]
        const n: int64[1] = [100]
        t = Expand(one, n)
        Y = Add(X, t)
        output Y"""
    assert ops(applied("fold_constants", text, limit=99)) == ["Expand", "Add"]
    assert ops(applied("fold_constants", text, limit=100)) == ["Add"]


def test_quantised_weights_stay_quantised():
    text = """
        input X: float32[2]
        const q: int8[2] = [1, -3]
        const s: float32[] = [0.5]
        w = DequantizeLinear(q, s)
        Y = Add(X, w)
        output Y"""
    assert ops(applied("fold_constants", text)) == ["DequantizeLinear", "Add"]


def test_large_weights_are_moved_whatever_the_limit():
    text = f"""
        input X: float32[1, 8]
        {weights("W", 16, 8)}
        t = Transpose(W) perm=(1, 0)
        Y = MatMul(X, t)
        output Y"""
    assert ops(applied("fold_constants", text, limit=1)) == ["MatMul"]


def test_dead_nodes_constants_and_outputs_go():
    text = """
        input X: float32[1, 1, 4]
        const unused: float32[1] = [1.0]
        dead = Add(X, unused)
        Y, indices = MaxPool(X) kernel_shape=(2,)
        output Y"""
    after = applied("eliminate_dead", text)
    assert nodes(after) == ["Y = MaxPool(X) kernel_shape=(2,)"] and set(after.values) == {"X", "Y"}


def test_equal_nodes_and_constants_are_shared():
    text = """
        input X: float32[2]
        const a: float32[2] = [1.0, 2.0]
        const b: float32[2] = [1.0, 2.0]
        const c: float32[2] = [1.0, 3.0]
        t = Add(X, a)
        u = Add(X, b)
        v = Add(X, c)
        w = Clip(X, "", "") 
        tu = Mul(t, u)
        Y = Mul(tu, v)
        Z = Add(X, a)
        output Y
        output Z"""
    after = applied("eliminate_common_subexpressions", text)
    assert "tu = Mul(t, t)" in nodes(after) and "v = Add(X, c)" in nodes(after) and "Z = Add(X, a)" in nodes(after)
    assert "b" not in after.values


def test_nodes_of_other_attributes_are_not_shared():
    text = """
        input X: float32[2, 2]
        a = Softmax(X) axis=0
        b = Softmax(X) axis=1
        Y = Add(a, b)
        output Y"""
    assert ops(applied("eliminate_common_subexpressions", text)) == ["Softmax", "Softmax", "Add"]


# --- moves --------------------------------------------------------------------------------------------------------

MOVES = {
    "identities": ("a = Identity(X)\nb = Identity(a)\nY = Relu(b)", ["Y = Relu(X)"]),
    "an identity that is the output": ("a = Relu(X)\nY = Identity(a)", ["Y = Relu(X)"]),
    "an identity of the input": ("Y = Identity(X)", ["Y = Identity(X)"]),
    "cast to the same": ('a = Cast(X) to="float32"\nY = Relu(a)', ["Y = Relu(X)"]),
    "cast to another": ('a = Cast(X) to="float64"\nY = Relu(a)', ['a = Cast(X) to="float64"', "Y = Relu(a)"]),
    "reshape twice": ("a = Reshape(X, s24)\nY = Reshape(a, s6_20)", ["Y = Reshape(X, Y_shape)"]),
    "reshape there and back": ("a = Reshape(X, s24)\nb = Reshape(a, s)\nY = Relu(b)", ["Y = Relu(X)"]),
    "transpose twice": (
        "a = Transpose(X) perm=(0, 2, 3, 1)\nY = Transpose(a) perm=(0, 2, 3, 1)",
        ["Y = Transpose(X) perm=(0, 3, 1, 2)"],
    ),
    "transpose there and back": (
        "a = Transpose(X) perm=(0, 2, 3, 1)\nb = Transpose(a) perm=(0, 3, 1, 2)\nY = Relu(b)",
        ["Y = Relu(X)"],
    ),
    "transpose of ones": (
        "a = Reshape(X, ones)\nb = Transpose(a) perm=(1, 0, 3, 2)\nY = Relu(b)",
        ["b = Reshape(X, b_shape_1)", "Y = Relu(b)"],
    ),
    "slice of all": ("a = Slice(X, z1, big, z1)\nY = Relu(a)", ["Y = Relu(X)"]),
    "slice backwards": ("a = Slice(X, big, small, three, back)\nY = Relu(a)", None),
    "pad by nothing": ("a = Pad(X, z8)\nY = Relu(a)", ["Y = Relu(X)"]),
    "concat of one": ("a = Concat(X) axis=1\nY = Relu(a)", ["Y = Relu(X)"]),
    "split in one": ("a = Split(X, three) axis=1\nY = Relu(a)", ["Y = Relu(X)"]),
    "expand to itself": ("a = Expand(X, s)\nY = Relu(a)", ["Y = Relu(X)"]),
    "expand before a broadcast": ("a = Expand(row, s)\nY = Sub(X, a)", ["Y = Sub(X, row)"]),
    "expand that sets the shape": ("a = Expand(X, s2)\nY = Sub(row, a)", None),
    "gather of one": ("a = Gather(X, last) axis=1\nY = Relu(a)", None),
    "gather in steps": ("a = Gather(X, odd) axis=3\nY = Relu(a)", None),
    "gather of all": ("a = Gather(X, all) axis=1\nY = Relu(a)", ["Y = Relu(X)"]),
    "resize by one": ('a = Resize(X, "", ones4) mode="linear"\nY = Relu(a)', ["Y = Relu(X)"]),
}
MOVE_CONSTANTS = """
    input X: float32[2, 3, 4, 5]
    const s: int64[4] = [2, 3, 4, 5]
    const s2: int64[5] = [2, 2, 3, 4, 5]
    const row: float32[5] = [1.0, 2.0, 3.0, 4.0, 5.0]
    const s24: int64[2] = [24, 5]
    const s6_20: int64[2] = [6, 20]
    const ones: int64[4] = [1, 24, 1, 5]
    const z1: int64[1] = [0]
    const z8: int64[8] = [0, 0, 0, 0, 0, 0, 0, 0]
    const big: int64[1] = [1000]
    const small: int64[1] = [-1000]
    const three: int64[1] = [3]
    const back: int64[1] = [-1]
    const last: int64[] = [-1]
    const odd: int64[2] = [1, 3]
    const all: int64[3] = [0, 1, 2]
    const ones4: float32[4] = [1.0, 1.0, 1.0, 1.0]
"""
LEFT = {
    "slice backwards": ["Slice", "Relu"],
    "expand that sets the shape": ["Expand", "Sub"],
    "gather of one": ["Slice", "Reshape", "Relu"],
    "gather in steps": ["Slice", "Relu"],
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_cleaned(name):
    text, expected = MOVES[name]
    after = applied("clean_moves", f"{MOVE_CONSTANTS}\n{text}\noutput Y")
    if expected is None:
        assert ops(after) == LEFT[name]
    else:
        assert nodes(after) == expected


def test_a_transpose_that_something_else_reads_stays():
    text = """
        a = Transpose(X) perm=(0, 2, 3, 1)
        b = Transpose(a) perm=(0, 3, 1, 2)
        Z = Relu(a)
        Y = Abs(b)
        output Y
        output Z"""
    assert nodes(applied("clean_moves", MOVE_CONSTANTS + text)) == [
        "a = Transpose(X) perm=(0, 2, 3, 1)", "Z = Relu(a)", "Y = Abs(X)"
    ]  # fmt: skip


def test_outputs_keep_their_names():
    text = "a = Relu(X)\nY = Identity(a)\nZ = Identity(a)\noutput Y\noutput Z"
    assert nodes(applied("clean_moves", MOVE_CONSTANTS + text)) == ["Y = Relu(X)", "Z = Identity(Y)"]


PADDED = {
    "conv": (f"{weights('W', 2, 3, 3, 3)}\nY = Conv(p, W) pads=(1, 0, 1, 0)", "0.0", {"pads": (2, 2, 4, 4)}),
    "conv padded by one": (f"{weights('W', 2, 3, 3, 3)}\nY = Conv(p, W)", "1.0", None),
    "average": ("Y = AveragePool(p) kernel_shape=(5, 5)", "0.0", {"pads": (1, 2, 3, 4), "count_include_pad": 1}),
    "average of its own padding": ("Y = AveragePool(p) kernel_shape=(3, 3) pads=(1, 1, 1, 1)", "0.0", None),
    "average of a window within the padding": ("Y = AveragePool(p) kernel_shape=(3, 3)", "0.0", None),
    "max over data of any sign": ("Y = MaxPool(p) kernel_shape=(5, 5)", "0.0", None),
    "max padded by -inf": ("Y = MaxPool(p) kernel_shape=(5, 5)", "-inf", {"pads": (1, 2, 3, 4)}),
    "max of a window within the padding": ("Y = MaxPool(p) kernel_shape=(2, 2)", "-inf", None),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_goes_into_the_window(name):
    reader, value, expected = PADDED[name]
    text = f"""
        input X: float32[1, 3, 8, 8]
        const pads: int64[8] = [0, 0, 1, 2, 0, 0, 3, 4]
        const v: float32[] = [{value}]
        p = Pad(X, pads, v)
        {reader}
        output Y"""
    after = applied("clean_moves", text)
    if expected is None:
        assert ops(after)[0] == "Pad"
    else:
        assert len(after.nodes) == 1 and {k: after.nodes[0].attrs.get(k) for k in expected} == expected


def test_zeros_around_what_is_not_negative_go_into_max_pool():
    """Padding as TensorFlow writes it before the first pooling of a ResNet."""
    text = """
        input X: float32[1, 3, 8, 8]
        const pads: int64[8] = [0, 0, 1, 1, 0, 0, 1, 1]
        r = Relu(X)
        p = Pad(r, pads)
        Y = MaxPool(p) kernel_shape=(3, 3) strides=(2, 2)
        output Y"""
    assert ops(applied("clean_moves", text)) == ["Relu", "MaxPool"]


# --- arithmetic ---------------------------------------------------------------------------------------------------


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


# --- batch norm ---------------------------------------------------------------------------------------------------

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


# --- activations and normalisation --------------------------------------------------------------------------------

SCALARS = """
    const half: float32[] = [0.5]
    const one: float32[] = [1.0]
    const two: float32[] = [2.0]
    const three: float32[] = [3.0]
    const six: float32[] = [6.0]
    const zero: float32[] = [0.0]
    const sixth: float32[] = [0.16666667]
    const root: float32[] = [1.4142135]
    const inverse: float32[] = [0.70710677]
    const c: float32[] = [0.7978846]
    const k: float32[] = [0.044715]
    const ck: float32[] = [0.035677407]
    const eps: float32[] = [1e-05]
"""
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


def test_subnormal_weights_are_flushed_with_a_note():
    text = """
        input X: float32[4]
        const W: float32[4] = [1e-40, 1.0, -1e-45, 0.0]
        const H: float16[2] = [6e-08, 1.0]
        Y = Mul(X, W)
        Z = Neg(H)
        output Y
        output Z"""
    after = applied("flush_subnormals", text)
    assert after.constant("W").tolist() == [0, 1, 0, 0] and after.constant("H")[0] > 0
    assert after.notes == ("flushed 2 subnormal weights in 1 constants to zero",)
    assert run_passes(after, ["flush_subnormals"]).notes == after.notes


# --- all together -------------------------------------------------------------------------------------------------

UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity", "Erf"]
BINARY = ["Add", "Sub", "Mul", "Max"]


@st.composite
def random_graphs(draw):
    """Chains and joins of elementwise operators and moves over [2, 3, 4] and its permutations."""
    shapes = {"X": (2, 3, 4)}
    constants = {f"c{v}": np.float32(v) for v in (0, 1, 2, 0.5)}
    values = {"X": Value("X", "float32", (2, 3, 4))}
    values |= {k: Value(k, "float32", (), np.asarray(v)) for k, v in constants.items()}
    made = []
    for index in range(draw(st.integers(1, 12))):
        x, out = draw(st.sampled_from(sorted(shapes))), f"v{index}"
        kind = draw(st.sampled_from(["unary", "scalar", "binary", "transpose", "reshape"]))
        attrs, inputs, op = {}, (x,), ""
        if kind == "unary":
            op = draw(st.sampled_from(UNARY))
        elif kind == "scalar":
            op, c = draw(st.sampled_from(BINARY)), draw(st.sampled_from(sorted(constants)))
            inputs = draw(st.sampled_from([(x, c), (c, x)]))
        elif kind == "binary":
            op = draw(st.sampled_from(BINARY))
            inputs = (x, draw(st.sampled_from([y for y in sorted(shapes) if shapes[y] == shapes[x]])))
        elif kind == "transpose":
            op, attrs = "Transpose", {"perm": draw(st.permutations(range(len(shapes[x]))).map(tuple))}
        else:
            target = np.asarray(draw(st.sampled_from([(2, 3, 4), (6, 4), (24,), (1, 24, 1)])), np.int64)
            op, inputs = "Reshape", (x, f"s{index}")
            values[f"s{index}"] = Value(f"s{index}", "int64", target.shape, target)
        node = Node(op, f"n{index}", inputs, (out,), attrs, (f"n{index}",))
        ((dtype, shape),) = infer(node, tuple(values[i] for i in inputs))
        values[out], shapes[out] = Value(out, dtype, shape), shape
        made.append(node)
    outputs = draw(st.lists(st.sampled_from([n.outputs[0] for n in made]), min_size=1, max_size=3, unique=True))
    return Graph("random", ("X",), tuple(outputs), values, ()).with_nodes(made)


@settings(max_examples=120, deadline=None)
@given(random_graphs())
def test_simplified_random_graphs_compute_the_same(g):
    verify_graph(g, "random", infer)
    after = run_passes(g)
    feeds = random_feeds(g)
    assert_same(interpreted(g, feeds), interpreted(after, feeds))
    assert len(after.nodes) <= len(g.nodes) + 1
    assert run_passes(after) == after
