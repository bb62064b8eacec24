"""Partitioning: which nodes become one Task, in what order, and that the Program computes what the model does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from partition_models import Model, tasks

from modelc.errors import InvalidIR
from modelc.ir.layout import Layout, reordered
from modelc.ir.program import kind_of, verify_program

LAST = reordered(0, 2, 3, 1)


@pytest.fixture
def m():
    return Model()


def conv(m: Model, x: str, o: int, c: int, k: int = 3, **attrs: object) -> str:
    return m.node("Conv", x, m.weight(o, c, k, k), m.weight(o), pads=[k // 2] * 4, **attrs)


def test_conv_batch_norm_relu(m, tmp_path):
    x = conv(m, m.input("x", 1, 3, 8, 8), 4, 3)
    norm = m.node("BatchNormalization", x, *(m.const(np.abs(m.random.standard_normal(4)) + 1) for _ in range(4)))
    program = m.program(tmp_path, m.node("Relu", norm, to="y"))
    assert tasks(program) == ["conv bias batchnorm relu"]
    (bound,) = program.tasks
    assert bound.task.name == "conv_batchnormalization_relu_0"
    assert bound.values["x0"] == "x" and bound.values["y0"] == "y"
    assert bound.task.nodes == ("n0", "n1", "n2")
    assert bound.task.constants == frozenset(bound.task.inputs[1:])


def test_outputs_of_convolutions_are_channels_last_inside(m, tmp_path):
    x = m.node("Relu", conv(m, m.input("x", 1, 3, 8, 8), 4, 3))
    pooled = m.node("GlobalAveragePool", m.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    program = m.program(tmp_path, m.node("Flatten", pooled, to="y"))
    first, pool, mean = program.tasks
    assert first.task.buffer("x0").layout == Layout() and first.task.buffer("y0").layout == LAST
    assert {b.layout for b in first.task.locals} == {LAST}
    assert pool.task.buffer("x0").layout == pool.task.buffer("y0").layout == LAST
    assert mean.task.buffer("x0").layout == LAST and mean.task.buffer("y0").layout == Layout()
    assert mean.outputs == ("globalaveragepool3",) and program.values["globalaveragepool3"].root == "y"


def test_residual_joins_the_later_convolution(m, tmp_path):
    x = m.input("x", 1, 4, 6, 6)
    a = conv(m, m.node("Relu", conv(m, x, 4, 4)), 4, 4)
    b = conv(m, x, 4, 4, 1)
    program = m.program(tmp_path, m.node("Relu", m.node("Add", a, b), to="y"))
    assert tasks(program) == ["conv bias relu", "conv bias", "conv bias add relu"]


def test_residual_used_twice(m, tmp_path):
    x = conv(m, m.input("x", 1, 4, 6, 6), 4, 4)
    y = m.node("Add", conv(m, x, 4, 4), x)
    program = m.program(tmp_path, m.node("Add", conv(m, m.node("Relu", y), 4, 4), y, to="z"))
    assert tasks(program) == ["conv bias", "conv bias add", "relu", "conv bias add"]


def test_squeeze_and_excite(m, tmp_path):
    x = conv(m, m.input("x", 1, 8, 6, 6), 8, 1, group=8)
    s = conv(m, m.node("Relu", conv(m, m.node("GlobalAveragePool", x), 2, 8, 1)), 8, 2, 1)
    scaled = m.node("Mul", x, m.node("HardSigmoid", s))
    program = m.program(tmp_path, m.node("Clip", conv(m, scaled, 4, 8, 1), m.const(0), m.const(6), to="y"))
    assert tasks(program) == [
        "conv bias", "sum average", "conv bias relu", "conv bias hardsigmoid", "mul", "conv bias clip"
    ]  # fmt: skip


def test_reconvergent_chains_join(m, tmp_path):
    x = conv(m, m.input("x", 1, 4, 6, 6), 4, 4)
    silu = m.node("Mul", x, m.node("Sigmoid", x))
    half = m.node("Mul", silu, m.const(0.5))
    gelu = m.node("Mul", half, m.node("Add", m.node("Erf", m.node("Div", silu, m.const(1.41421))), m.const(1)), to="y")
    program = m.program(tmp_path, gelu)
    assert tasks(program) == ["conv bias sigmoid mul mul_1 div erf add mul_2"]
    assert program.tasks[0].task.outputs == ("y0",)


def test_a_chain_stops_where_something_else_reads(m, tmp_path):
    x = m.node("Relu", conv(m, m.input("x", 1, 4, 6, 6), 4, 4))
    program = m.program(tmp_path, conv(m, x, 2, 4), m.node("Exp", x))
    assert tasks(program) == ["conv bias relu", "conv bias", "exp"]


def test_pyramid_adds_what_is_resized(m, tmp_path):
    x = m.input("x", 1, 4, 8, 8)
    low = m.node("Relu", conv(m, x, 4, 4, strides=[2, 2]))
    up = m.node("Resize", low, "", m.const([1, 1, 2, 2]), mode="nearest")
    program = m.program(tmp_path, m.node("Add", conv(m, x, 4, 4, 1), up, to="y"))
    assert tasks(program) == ["conv bias relu", "conv bias resize add"]


def test_softmax_takes_its_prologue(m, tmp_path):
    x, mask = m.input("x", 2, 4, 5, 5), m.input("mask", 1, 1, 5, 5)
    program = m.program(tmp_path, m.node("Softmax", m.node("Add", m.node("Div", x, m.const(2)), mask), to="y"))
    assert tasks(program) == ["div add peak exp total inverse softmax"]
    assert kind_of(program.tasks[0].task) == "reduction"


def test_attention(m, tmp_path):
    x, mask = m.input("x", 1, 6, 8), m.input("mask", 1, 1, 1, 6)

    def heads(perm: list[int]) -> str:
        y = m.node("Add", m.node("MatMul", x, m.weight(8, 8)), m.weight(8))
        return m.node("Transpose", m.node("Reshape", y, m.const([1, 6, 2, 4], "int64")), perm=perm)

    scores = m.node("Div", m.node("MatMul", heads([0, 2, 1, 3]), heads([0, 2, 3, 1])), m.const(2))
    weights = m.node("Softmax", m.node("Add", scores, mask))
    mixed = m.node("Transpose", m.node("MatMul", weights, heads([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    out = m.node("MatMul", m.node("Reshape", mixed, m.const([1, 6, 8], "int64")), m.weight(8, 8))
    norm = m.node("LayerNormalization", m.node("Add", out, x), m.weight(8), m.weight(8), to="y")
    program = m.program(tmp_path, norm)
    assert tasks(program) == [
        "matmul add", "matmul add", "matmul div add", "peak exp total inverse softmax", "matmul add", "matmul",
        "matmul add",
        "total mean squares invstd normal",
    ]  # fmt: skip
    assert program.tasks[5].task.buffer("y0").layout == reordered(0, 2, 1, 3)
    queries, keys = (program.tasks[2].task.buffer(b) for b in ("x0", "x1"))
    assert (queries.layout, queries.strides) == (reordered(0, 2, 1, 3), None)
    assert (keys.layout, keys.strides) == (reordered(0, 3, 1, 2), None)


def test_maps_sink_below_reshapes(m, tmp_path):
    x = m.node("Gemm", m.input("x", 6, 8), m.weight(8, 4))
    y = m.node("Add", m.node("Reshape", x, m.const([1, 6, 4], "int64")), m.input("r", 1, 6, 4))
    assert tasks(m.program(tmp_path, y)) == ["gemm add"]


def test_embedding(m, tmp_path):
    ids = m.input("ids", 1, 7, dtype="int64")
    x = m.node("Add", m.node("Gather", m.weight(5, 8), ids), m.weight(1, 7, 8))
    program = m.program(tmp_path, m.node("LayerNormalization", x, m.weight(8), m.weight(8), to="y"))
    assert tasks(program) == ["gather add total mean squares invstd normal"]


def test_opaque_blocks_read_compact_operands(m, tmp_path):
    x = m.node("Transpose", m.node("Exp", m.input("x", 4, 6)), perm=[1, 0])
    m.node("TopK", x, m.const([2], "int64"), axis=1, to=["values", "places"])
    program = m.program(tmp_path, "values", "places")
    assert [kind_of(b.task) for b in program.tasks] == ["map", "map", "opaque"]
    assert program.tasks[1].task.blocks[0].name == "copy"


def test_no_two_tasks_wait_for_each_other(m, tmp_path):
    a = conv(m, m.input("x", 1, 4, 6, 6), 4, 4)
    b = m.node("Relu", conv(m, a, 4, 4))
    program = m.program(tmp_path, m.node("Mul", a, m.node("Sigmoid", b), to="y"))
    assert tasks(program) == ["conv bias", "conv bias relu sigmoid mul"]  # not: mul with a


def test_equal_layers_have_equal_hashes(m, tmp_path):
    x = m.node("Relu", conv(m, m.input("x", 1, 4, 6, 6), 4, 4))
    for _ in range(3):
        x = m.node("Relu", m.node("Add", conv(m, x, 4, 4), x))
    x = m.node("GlobalMaxPool", x)
    program = m.program(tmp_path, x)
    assert len({b.task.hash for b in program.tasks}) == 3
    assert len({b.task.name for b in program.tasks}) == 5


def test_output_that_is_an_input(m, tmp_path):
    m.input("x", 2, 3)
    m.node("Identity", "x", to="y")
    assert tasks(m.program(tmp_path, "y")) == ["identity"]


def test_text(m, tmp_path):
    program = m.program(tmp_path, m.node("Relu", m.input("x", 2, 3), to="y"))
    assert str(program) == (
        "program m\n"
        "  input x: float32[2, 3]\n"
        "  value y: float32[2, 3]\n"
        "  run relu_0(x0=x, y0=y)\n"
        "    task relu_0(x0) -> (y0) anchor relu\n"
        "      in x0: float32[2, 3]\n"
        "      out y0: float32[2, 3]\n"
        "      block relu [m:2 n:3] assign\n"
        "        y0[m, n] = max(x0[m, n], float32(0.0))\n"
        "      nodes 'n0'\n"
        "  output y"
    )


def test_the_verifier_names_what_is_wrong(m, tmp_path):
    x = conv(m, m.input("x", 1, 4, 6, 6), 4, 4)
    program = m.program(tmp_path, conv(m, x, 4, 4))
    with pytest.raises(InvalidIR, match=r"after test: .*before all of it is written"):
        verify_program(replace(program, tasks=program.tasks[::-1]), "test")
    with pytest.raises(InvalidIR, match="a name of its own"):
        verify_program(replace(program, tasks=program.tasks[:1] * 2), "test")
    moved = {n: replace(v, offset=1, root="x") if n == x else v for n, v in program.values.items()}
    with pytest.raises(InvalidIR, match="outside its root"):
        verify_program(replace(program, values=moved), "test")
