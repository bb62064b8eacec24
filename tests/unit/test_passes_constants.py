"""Constants are folded and flushed, dead nodes go, equal ones are shared."""

import pytest
from pass_graphs import applied, nodes, ops, weights

from modelc.passes import run_passes


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


def test_quantised_weights_that_no_contraction_takes_become_real():
    """By axis, by block, with a last block that is not full, and where NumPy does not do it alone."""
    text = """
        input X: float32[2,3]
        const q: uint8[2,3] = [1, 2, 3, 4, 5, 6]
        const s: float32[2] = [0.5, 2.0]
        const z: uint8[2] = [1, 2]
        const blocks: float32[2,2] = [1.0, 3.0, 5.0, 7.0]
        const none: uint8[2,2] = [0, 0, 0, 1]
        const h: float16[] = [0.5]
        a = DequantizeLinear(q, s, z) axis=0
        b = DequantizeLinear(q, blocks, none) axis=1 block_size=2
        c = DequantizeLinear(q, h)
        d = Cast(c) to="float32"
        Y = Sum(X, a, b, d)
        output Y"""
    after = applied("fold_constants", text, dequantize=1)
    assert ops(after) == ["Sum"]
    assert after.constant("a").tolist() == [[0, 0.5, 1], [4, 6, 8]]
    assert after.constant("b").tolist() == [[1, 2, 9], [20, 25, 35]]
    assert after.constant("d").tolist() == [[0.5, 1, 1.5], [2, 2.5, 3]]


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


@pytest.mark.parametrize(("beside", "stays"), [(1e-40, True), (2.0**-87, True), (2.0**-86, False)])
def test_subnormal_weights_stay_where_no_number_beside_them_makes_them_negligible(beside: float, stays: bool):
    after = applied(
        "flush_subnormals",
        f"""
        input X: float32[2]
        const W: float32[2] = [1e-40, {beside}]
        Y = Mul(X, W)
        output Y""",
    )
    assert (after.constant("W")[0] > 0) == stays and bool(after.notes) != stays
