"""Tasks of several Blocks, and buffers that are views into larger ones: Blocks, Nest and machine code agree."""

from __future__ import annotations

from dataclasses import replace

import pytest
from three_ways import check, task_of

from modelc.ir.block import Task, compact_strides
from modelc.ir.text import parse_task

CONV = """\
task conv(x0, x1, x2, x3) -> (y0) anchor conv
  in x0: float32[1, 10, 9, 8] stored reorder(0, 2, 3, 1)
  const x1: float32[33, 10, 3, 3]
  const x2: float32[33]
  in x3: float32[1, 33, 9, 8] stored reorder(0, 2, 3, 1)
  local t0: float32[1, 33, 9, 8]
  local t1: float32[1, 33, 9, 8]
  local t2: float32[1, 33, 9, 8]
  out y0: float32[1, 33, 9, 8] stored reorder(0, 2, 3, 1)
  block conv [n:1 o:33 h:9 w:8 | c:10 r:3 s:3] add
    where h + r - 1 >= 0 and h + r - 1 < 9 and w + s - 1 >= 0 and w + s - 1 < 8
    t0[n, o, h, w] += x0[n, c, h + r - 1, w + s - 1] * x1[o, c, r, s]
  block bias [n:1 o:33 h:9 w:8] assign
    t1[n, o, h, w] = t0[n, o, h, w] + x2[o]
  block residual [n:1 c:33 h:9 w:8] assign
    t2[n, c, h, w] = t1[n, c, h, w] + x3[n, c, h, w]
  block relu [n:1 c:33 h:9 w:8] assign
    y0[n, c, h, w] = max(t2[n, c, h, w], float32(0.0))"""

TWO_OUTPUTS = """\
task matmul(x0, x1) -> (y0, y1) anchor matmul
  in x0: float32[7, 20]
  const x1: float32[20, 33]
  out y0: float32[7, 33]
  out y1: float32[7, 33]
  block matmul [m:7 n:33 | k:20] add
    y0[m, n] += x0[m, k] * x1[k, n]
  block relu [i:7 j:33] assign
    y1[i, j] = max(y0[i, j], float32(0.0))"""

PROLOGUE = """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: uint8[5, 20]
  const x1: float32[17, 5, 3]
  local t0: float32[5, 20]
  out y0: float32[17, 18]
  block dequantise [c:5 w:20] assign
    t0[c, w] = (float32(x0[c, w]) - float32(128.0)) * float32(0.02)
  block conv [o:17 w:18 | c:5 s:3] add
    y0[o, w] += t0[c, w + s] * x1[o, c, s]"""

ATTENTION = """\
task softmax(x0, x1) -> (y0) anchor sum
  in x0: float32[3, 5, 33]
  in x1: float32[5, 33]
  local t0: float32[3, 5, 33]
  local t1: float32[3, 5]
  local t2: float32[3, 5, 33]
  local t3: float32[3, 5]
  out y0: float32[3, 5, 33]
  block scale [b:3 m:5 n:33] assign
    t0[b, m, n] = x0[b, m, n] * float32(0.125) + x1[m, n]
  block max [b:3 m:5 | n:33] max
    t1[b, m] max= t0[b, m, n]
  block exp [b:3 m:5 n:33] assign
    t2[b, m, n] = exp(t0[b, m, n] - t1[b, m])
  block sum [b:3 m:5 | n:33] add
    t3[b, m] += t2[b, m, n]
  block divide [b:3 m:5 n:33] assign
    y0[b, m, n] = t2[b, m, n] / t3[b, m]"""

TRANSPOSED_EPILOGUE = """\
task matmul(x0, x1) -> (y0) anchor matmul
  in x0: float32[12, 20]
  in x1: float32[20, 15]
  local t0: float32[12, 15]
  out y0: float32[3, 15, 4]
  block matmul [m:12 n:15 | k:20] add
    t0[m, n] += x0[m, k] * x1[k, n]
  block heads [h:3 n:15 d:4] assign
    y0[h, n, d] = t0[h * 4 + d, n]"""

SHARED_INPUT = """\
task square(x0) -> (y0) anchor square
  in x0: float32[17, 20]
  out y0: float32[17, 17]
  block square [m:17 n:17 | k:20] add
    y0[m, n] += x0[m, k] * x0[n, k]"""

MEAN_AND_SCALE = """\
task squeeze(x0, x1) -> (y0) anchor mean
  in x0: float32[10, 6, 7] stored reorder(1, 2, 0)
  in x1: float32[10]
  local t0: float32[10]
  local t1: float32[10]
  out y0: float32[10, 6, 7] stored reorder(1, 2, 0)
  block mean [c:10 | h:6 w:7] add
    t0[c] += x0[c, h, w]
  block gate [c:10] assign
    t1[c] = sigmoid(t0[c] * x1[c])
  block scale [c:10 h:6 w:7] assign
    y0[c, h, w] = x0[c, h, w] * t1[c]"""

TWO_PRODUCTS = """\
task chain(x0, x1, x2) -> (y0) anchor second
  in x0: float32[9, 20]
  const x1: float32[20, 17]
  const x2: float32[17, 33]
  local t0: float32[9, 17]
  local t1: float32[9, 17]
  out y0: float32[9, 33]
  block first [m:9 n:17 | k:20] add
    t0[m, n] += x0[m, k] * x1[k, n]
  block relu [m:9 n:17] assign
    t1[m, n] = max(t0[m, n], float32(0.0))
  block second [m:9 n:33 | k:17] add
    y0[m, n] += t1[m, k] * x2[k, n]"""

INTEGERS = """\
task quantised(x0, x1, x2) -> (y0) anchor matmul
  in x0: uint8[9, 33]
  const x1: int8[33, 20]
  const x2: int32[20]
  local t0: int32[9, 20]
  out y0: uint8[9, 20]
  block matmul [m:9 n:20 | k:33] add
    t0[m, n] += (int32(x0[m, k]) - int32(7)) * int32(x1[k, n])
  block requantise [m:9 n:20] assign
    y0[m, n] = uint8(min(max(round(float32(t0[m, n] + x2[n]) * float32(0.05)), float32(0.0)), float32(255.0)))"""

TEXTS = {
    "conv": CONV, "two outputs": TWO_OUTPUTS, "prologue": PROLOGUE, "attention": ATTENTION,
    "transposed epilogue": TRANSPOSED_EPILOGUE, "shared input": SHARED_INPUT, "mean and scale": MEAN_AND_SCALE,
    "two products": TWO_PRODUCTS, "integers": INTEGERS,
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_fused(name: str) -> None:
    check(parse_task(TEXTS[name]))


@pytest.mark.parametrize("name", ["conv", "attention", "mean and scale"])
def test_fused_in_row_major(name: str) -> None:
    task = parse_task(TEXTS[name])
    check(replace(task, buffers=tuple(replace(b, layout=type(b.layout)()) for b in task.buffers)))


# --- views ----------------------------------------------------------------------------------------------------------


def widened(task: Task, extra: int = 3) -> Task:
    """Inputs and outputs as parts of tensors that are longer by `extra` in their last dimension."""

    def wide(name: str) -> bool:
        return name in (*task.inputs, *task.outputs) and name not in task.constants

    buffers = [
        replace(b, strides=compact_strides((*b.physical_shape[:-1], b.physical_shape[-1] + extra)))
        if wide(b.name) and b.shape
        else b
        for b in task.buffers
    ]
    return replace(task, buffers=tuple(buffers))


VIEWS = {
    "conv": task_of("Conv", {"pads": [1] * 4}, [(1, 5, 9, 7), (17, 5, 3, 3), (17,)], (1, 2), True),
    "row-major conv": task_of("Conv", {"pads": [1] * 4}, [(1, 5, 9, 7), (17, 5, 3, 3), (17,)], (1, 2)),
    "pointwise": task_of("Conv", {}, [(1, 16, 6, 8), (32, 16, 1, 1)], (1,), True),
    "matmul": task_of("MatMul", {}, [(2, 9, 17), (2, 17, 20)]),
    "pool": task_of("MaxPool", {"kernel_shape": [2, 2]}, [(1, 17, 8, 8)], (), True),
    "softmax": task_of("Softmax", {"axis": -1}, [(3, 5, 33)]),
    "norm": task_of("InstanceNormalization", {}, [(1, 10, 5, 6), (10,), (10,)], (), True),
    "add": task_of("Add", {}, [(3, 5, 16), (3, 5, 16)]),
    "sum": task_of("ReduceMax", {"axes": (1,)}, [(3, 5, 16)]),
    "transpose": task_of("Transpose", {"perm": [1, 2, 0]}, [(3, 5, 16)]),
    "bools": task_of("Less", {}, [(3, 5, 16), (16,)]),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("extra", [1, 16])
@pytest.mark.sweep(4)
def test_views(name: str, extra: int) -> None:
    check(widened(VIEWS[name], extra))
