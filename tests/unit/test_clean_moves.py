"""Moves that change nothing go, and padding goes into windows."""

import pytest
from pass_graphs import applied, nodes, ops, weights

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
