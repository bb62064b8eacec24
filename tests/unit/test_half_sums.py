"""Sums in float16: how far they go, which Tasks have them, what long ones become, and which targets compute them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from program_runs import run_program
from three_ways import task_of

from modelc.errors import TargetError
from modelc.ir.block import Block, Iter, Task
from modelc.ir.expr import Load, Var, op
from modelc.ir.layout import Layout
from modelc.ir.program import BoundTask, Placed, Program
from modelc.partition.half_sums import with_sums_in_parts
from modelc.partition.narrow_products import MOST_TERMS, multiplies, parts_of, products, require
from modelc.partition.precision import contracting_tasks, to_narrow
from modelc.target import load_target


def summing(**extents: int) -> Block:
    iters = (Iter("m", 4), *(Iter(name, extent, True) for name, extent in extents.items()))
    at = tuple(Var(i.name) for i in iters)
    return Block("dot", iters, (Load("t0", at[:1]),), (op("mul", Load("x0", at), Load("x1", at)),), "add")


@pytest.mark.parametrize(
    ("extents", "parts"),
    [
        ({"k": 256}, {"k": 256}),
        ({"k": 257}, None),  # a prime: parts of one term
        ({"k": 960}, {"k": 240}),
        ({"c": 64, "r": 3, "s": 3}, {"c": 64, "r": 1, "s": 3}),
        ({"c": 512, "r": 3, "s": 3}, {"c": 256, "r": 1, "s": 1}),
        ({"r": 3, "s": 3}, {"r": 3, "s": 3}),
        ({"k": 5 * 1031}, None),
    ],
)
def test_as_few_parts_as_can_be(extents: dict[str, int], parts: dict[str, int] | None) -> None:
    found = parts_of(summing(**extents))
    if parts is None:
        assert found is None
        return
    assert found is not None and np.prod(list(found.values())) <= MOST_TERMS
    assert np.prod(list(found.values())) == np.prod(list(parts.values()))
    assert all(extent % found[name] == 0 for name, extent in extents.items())


@pytest.mark.parametrize(
    ("task", "worth"),
    [
        (task_of("Conv", {"pads": [1] * 4}, [(1, 8, 6, 6), (12, 8, 3, 3)], [1]), True),
        (task_of("Conv", {"group": 8}, [(1, 8, 6, 6), (8, 1, 3, 3)], [1]), True),  # depthwise
        (task_of("MatMul", {}, [(8,), (8, 16)], [1]), True),
        (task_of("MatMul", {}, [(2, 4, 8), (2, 8, 6)]), False),  # no constant
        (task_of("MatMul", {}, [(4, 257), (257, 6)], [1]), False),  # a sum that cannot be cut
        (task_of("MatMul", {}, [(4, 8), (8, 6)], dtypes=["int32", "int32"]), False),
        (task_of("AveragePool", {"kernel_shape": [2, 2]}, [(1, 8, 6, 6)]), False),
    ],
    ids=lambda x: x.name if isinstance(x, Task) else "",
)
def test_what_is_worth_float16(task: Task, worth: bool) -> None:
    assert bool(list(products(task, "float16"))) == worth


def product(depth: int, weight: float = 1.0) -> Program:
    """y = x @ w."""
    task = task_of("MatMul", {}, [(4, depth), (depth, 6)], [1])
    values = {"x0": "x", "x1": "w", "y0": "y"}
    drawn = weight * np.random.default_rng(0).standard_normal((depth, 6)).astype(np.float32)
    places = {n: Placed(n, "float32", task.buffer(b).shape, Layout()) for b, n in values.items()}
    bound = BoundTask(replace(task, buffers=tuple(replace(b, layout=Layout()) for b in task.buffers)), values)
    return Program("p", ("x",), ("y",), {"w": drawn}, places, (bound,))


def test_a_long_sum_before_and_after() -> None:
    program = product(480)
    made = with_sums_in_parts(to_narrow(program, (), "float16"))
    assert str(made) == (
        """\
program p
  input x: float32[4, 480]
  const w#2x240x6: float16[2, 240, 6]
  value y: float32[4, 6]
  value y#parts: float16[2, 4, 6]
  run matmul_parts(x0=x, x1=w#2x240x6, parts=y#parts)
    task matmul_parts(x0, x1) -> (parts) anchor matmul
      in x0: float32[4, 480]
      const x1: float16[2, 240, 6]
      local x0_copy: float16[4, 480]
      out parts: float16[2, 4, 6]
      block round_x0 [i0:4 i1:480] assign
        x0_copy[i0, i1] = float16(x0[i0, i1])
      block matmul [k_part:2 m:4 n:6 | k:240] add
        parts[k_part, m, n] += x0_copy[m, k_part * 240 + k] * x1[k_part, k, n]
  run matmul(parts=y#parts, y0=y)
    task matmul(parts) -> (y0) anchor sum_parts
      in parts: float16[2, 4, 6]
      out y0: float32[4, 6]
      local y0_sum_sum: float32[4, 6]
      block sum_parts [i0:4 i1:6 | k_part:2] add
        y0_sum_sum[i0, i1] += float32(parts[k_part, i0, i1])
      block widen_y0 [i0:4 i1:6] assign
        y0[i0, i1] = y0_sum_sum[i0, i1]
  output y"""
    )
    x = np.random.default_rng(1).standard_normal((4, 480)).astype(np.float32)
    wanted, found = run_program(program, {"x": x})["y"], run_program(made, {"x": x})["y"]
    assert 1e-5 < np.abs(found - wanted).max() / np.abs(wanted).max() < 5e-3


def test_constants_beyond_its_range_keep_a_task_in_float32() -> None:
    assert contracting_tasks(product(8), "float16") and contracting_tasks(product(8, 1e6))
    assert not contracting_tasks(product(8, 1e6), "float16")


@pytest.mark.parametrize("name", ["cortex-a76", "raspberry-pi-5", "apple-m1", "aarch64-android"])
def test_targets_that_compute_in_float16(name: str) -> None:
    target = load_target(name)
    require(target, "f16")
    assert target.peak["float16"] == 2 * target.peak["float32"] and target.lanes("float16") == 8
    assert not multiplies(target, "bfloat16")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cortex-a72", "lacks fullfp16"),
        ("x86-64-v4", "lacks avx512fp16"),
        ("riscv64-v", "is of riscv64, for which no intrinsic for it is known"),
    ],
)
def test_a_target_that_cannot_is_told_what_it_lacks(name: str, words: str) -> None:
    with pytest.raises(TargetError, match=f"precision f16: the target {name} cannot multiply float16: it {words}"):
        require(load_target(name), "f16")
    able = replace(load_target("x86-64-v4"), features=("avx512f", "avx512fp16"), intrinsics=None)
    require(able, "f16")
