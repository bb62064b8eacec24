"""Derivation rules, text in and text out; default Candidates; determinism; special values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from derivations import derived, refused
from operator_cases import Case, example, f, reference
from repository import HELPERS
from small_kernels import SMALL, digests
from three_ways import Array, build, check, host_target, run_task, started, task_of

from modelc.ir import candidate as candidate_module
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.loop import Inside
from modelc.space.analysis.loops import trips
from modelc.space.choose import chosen
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive
from modelc.target import load_target

# --- derivation rules -----------------------------------------------------------------------------------------------


PADDED = """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[2, 5]
  const x1: float32[3, 2, 3]
  out y0: float32[3, 5]
  block conv [o:3 w:5 | c:2 s:3] add
    where w + s - 1 >= 0 and w + s - 1 < 5
    y0[o, w] += x0[c, w + s - 1] * x1[o, c, s]"""


def test_inline() -> None:
    chain = """\
task t(x0) -> (y0) anchor out
  in x0: float32[4, 6]
  local t0: float32[4, 6]
  out y0: float32[6, 4]
  block scale [m:4 n:6] assign
    t0[m, n] = x0[m, n] * float32(2.0)
  block out [m:6 n:4] assign
    y0[m, n] = t0[n, m] + t0[n, m]"""
    assert (
        derived(chain, "inline", block="scale")
        == """\
task t(x0) -> (y0) anchor out
  in x0: float32[4, 6]
  out y0: float32[6, 4]
  block out [m:6 n:4] assign
    y0[m, n] = x0[n, m] * float32(2.0) + x0[n, m] * float32(2.0)"""
    )
    assert "needed" in refused(chain, "inline", block="out")
    conditional = chain.replace("assign\n    t0", "assign\n    where m < 2\n    t0")
    assert refused(conditional, "inline", block="scale") == "block scale is no unconditional map"
    assert refused(chain.replace("anchor out", "anchor scale"), "inline", block="scale") == "the anchor is not inlined"


def test_inline_of_an_opaque_reader_is_refused() -> None:
    text = """\
task t(x0) -> (y0, y1) anchor top
  in x0: float32[4, 6]
  local t0: float32[4, 6]
  out y0: float32[4, 2]
  out y1: int64[4, 2]
  block scale [m:4 n:6] assign
    t0[m, n] = x0[m, n] * float32(2.0)
  opaque top TopK(t0) -> (y0, y1) with axis=1, k=2, largest=True"""
    assert refused(text, "inline", block="scale") == "t0 is read by an opaque block"


def test_pad() -> None:
    assert (
        derived(PADDED, "pad", block="conv", buffer="x0")
        == """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[2, 5]
  const x1: float32[3, 2, 3]
  out y0: float32[3, 5]
  local x0_padded: float32[2, 7]
  block pad_x0 [pa:2 pb:7] assign
    x0_padded[pa, pb] = select(pb + (-1) >= 0, select(pb + (-1) < 5, x0[pa, pb + (-1)], float32(0.0)), float32(0.0))
  block conv [o:3 w:5 | c:2 s:3] add
    y0[o, w] += x0_padded[c, w + s] * x1[o, c, s]"""
    )


def test_pad_with_the_identity() -> None:
    text = """\
task pool(x0) -> (y0) anchor pool
  in x0: float32[6]
  out y0: float32[3]
  block pool [w:3 | s:3] max
    where w * 2 + s < 6
    y0[w] max= x0[w * 2 + s]"""
    assert (
        derived(text, "pad", block="pool", buffer="x0")
        == """\
task pool(x0) -> (y0) anchor pool
  in x0: float32[6]
  out y0: float32[3]
  local x0_padded: float32[7]
  block pad_x0 [pa:7] assign
    x0_padded[pa] = select(pa < 6, x0[pa], float32(-inf))
  block pool [w:3 | s:3] max
    y0[w] max= x0_padded[w * 2 + s]"""
    )


def test_pad_where_it_would_change_the_result() -> None:
    squares = PADDED.replace("x0[c, w + s - 1] * x1[o, c, s]", "x0[c, w + s - 1] + x1[o, c, s]")
    assert "would change what block conv computes" in refused(squares, "pad", block="conv", buffer="x0")
    plain = PADDED.replace("    where w + s - 1 >= 0 and w + s - 1 < 5\n", "")
    assert "no condition" in refused(plain, "pad", block="conv", buffer="x0")
    assert "does not read" in refused(PADDED, "pad", block="conv", buffer="y0")
    twice = PADDED.replace("* x1[o, c, s]", "* x0[c, w] * x1[o, c, s]")
    assert "does not read" in refused(twice, "pad", block="conv", buffer="x0")


PRODUCT = """\
task matmul(x0, x1) -> (y0) anchor matmul
  in x0: float32[4, 6]
  in x1: float32[6, 5]
  out y0: float32[4, 5]
  block matmul [m:4 n:5 | k:6] add
    y0[m, n] += x0[m, k] * x1[k, n]"""


def test_cache_read() -> None:
    assert (
        derived(PRODUCT, "cache_read", block="matmul", buffer="x1")
        == """\
task matmul(x0, x1) -> (y0) anchor matmul
  in x0: float32[4, 6]
  in x1: float32[6, 5]
  out y0: float32[4, 5]
  local x1_packed: float32[6, 5]
  block pack_x1 [pa:6 pb:5] assign
    x1_packed[pa, pb] = x1[pa, pb]
  block matmul [m:4 n:5 | k:6] add
    y0[m, n] += x0[m, k] * x1_packed[k, n]"""
    )


def test_cache_read_in_another_dtype() -> None:
    text = PRODUCT.replace("x1: float32", "x1: bfloat16").replace("x1[k, n]", "float32(x1[k, n])")
    after = derived(text, "cache_read", block="matmul", buffer="x1", dtype="float32")
    assert "local x1_packed: float32[6, 5]" in after and "x1_packed[pa, pb] = float32(x1[pa, pb])" in after
    assert after.endswith("y0[m, n] += x0[m, k] * x1_packed[k, n]")
    assert "otherwise than as float32" in refused(PRODUCT, "cache_read", block="matmul", buffer="x1", dtype="float32")


def test_cache_write() -> None:
    assert (
        derived(PRODUCT, "cache_write", block="matmul")
        == """\
task matmul(x0, x1) -> (y0) anchor matmul
  in x0: float32[4, 6]
  in x1: float32[6, 5]
  out y0: float32[4, 5]
  local y0_acc: float32[4, 5]
  block matmul [m:4 n:5 | k:6] add
    y0_acc[m, n] += x0[m, k] * x1[k, n]
  block write_y0 [m:4 n:5] assign
    y0[m, n] = y0_acc[m, n]"""
    )


def test_cache_write_of_points_without_elements() -> None:
    text = """\
task t(x0) -> (y0) anchor t
  in x0: float32[3, 4]
  out y0: float32[5]
  block t [q:3 p:2 | k:4] add
    where q * 2 + p < 5
    y0[q * 2 + p] += x0[q, k]"""
    after = derived(text, "cache_write", block="t")
    assert "block write_y0 [q:3 p:2] assign\n    where q * 2 + p < 5\n    y0[q * 2 + p] = y0_acc[q, p]" in after
    assert "writes several buffers" in refused(PAIR, "cache_write", block="arg")


PAIR = """\
task t(x0) -> (y0, y1) anchor arg
  in x0: float32[3, 8]
  out y0: float32[3]
  out y1: int64[3]
  block arg [m:3 | k:8] argmax
    y0[m] argmax= x0[m, k]
    y1[m] argmax= k"""

ROWS = """\
task t(x0) -> (y0) anchor sum
  in x0: float32[3, 20]
  out y0: float32[3]
  block sum [m:3 | n:20] add
    y0[m] += x0[m, n] * x0[m, n]"""


def test_rfactor_of_lanes() -> None:
    assert (
        derived(ROWS, "rfactor", block="sum", iter="n", size=8, parts="inner")
        == """\
task t(x0) -> (y0) anchor sum
  in x0: float32[3, 20]
  out y0: float32[3]
  local sum_lanes_sum: float32[3, 8]
  block sum_lanes [m:3 | n:3 | l:8] add
    where n * 8 + l < 20
    sum_lanes_sum[m, l] += x0[m, n * 8 + l] * x0[m, n * 8 + l]
  block sum [m:3 | l:8] add
    y0[m] += sum_lanes_sum[m, l]"""
    )
    assert "where" not in derived(ROWS, "rfactor", block="sum", iter="n", size=5, parts="inner")


def test_rfactor_of_parts() -> None:
    assert (
        derived(ROWS, "rfactor", block="sum", iter="n", size=4, parts="outer", count=2)
        == """\
task t(x0) -> (y0) anchor sum
  in x0: float32[3, 20]
  out y0: float32[3]
  local sum_parts_sum: float32[2, 3]
  block sum_parts [p:2 m:3 | n:8] add
    sum_parts_sum[p, m] += x0[m, p * 8 + n] * x0[m, p * 8 + n]
  block sum [m:3 | p:6] add
    y0[m] += select(p < 2, sum_parts_sum[p, m], x0[m, p + 14] * x0[m, p + 14])"""
    )
    assert "n:20] add" in derived(ROWS, "rfactor", block="sum", iter="n", size=1, parts="outer", count=1)


@pytest.mark.parametrize("parts", ["inner", "outer"])
def test_rfactor_of_pairs(parts: str) -> None:
    after = derived(PAIR, "rfactor", block="arg", iter="k", size=3, parts=parts, count=2)
    assert after.count("argmax\n") == 2


def test_rfactor_refuses() -> None:
    assert "does not reduce over m" in refused(ROWS, "rfactor", block="sum", iter="m", size=8, parts="inner")
    assert "not divide n" in refused(ROWS, "rfactor", block="sum", iter="n", size=1, parts="outer", count=21)
    several = ROWS.replace("| n:20]", "| k:2 n:10]").replace("x0[m, n]", "x0[m, k * 10 + n]")
    assert "not divide n" in refused(several, "rfactor", block="sum", iter="n", size=1, parts="outer", count=4)
    assert "select" not in derived(several, "rfactor", block="sum", iter="n", size=5, parts="outer", count=2)


def test_rfactor_of_an_iterator_beside_one_of_a_single_element() -> None:
    single = ROWS.replace("| n:20]", "| k:1 n:20]").replace("x0[m, n]", "x0[m, k * 20 + n]")
    after = derived(single, "rfactor", block="sum", iter="n", size=8, parts="outer", count=2)
    assert "y0[m] += select(p < 2, sum_parts_sum[p, m], x0[m, p + 14] * x0[m, p + 14])" in after


MAPS = """\
task t(x0, x1) -> (y0) anchor add
  in x0: float32[4, 5, 6]
  in x1: float32[4, 1, 1]
  out y0: float32[4, 5, 6]
  block add [b:4 m:5 n:6] assign
    y0[b, m, n] = x0[b, m, n] + x1[b, 0, 0]"""


def test_collapse() -> None:
    assert (
        derived(MAPS, "collapse", block="add", outer="m", inner="n")
        == """\
task t(x0, x1) -> (y0) anchor add
  in x0: float32[4, 30]
  in x1: float32[4, 1, 1]
  out y0: float32[4, 30]
  block add [b:4 mn:30] assign
    y0[b, mn] = x0[b, mn] + x1[b, 0, 0]"""
    )
    assert "does not index by b and m" in refused(MAPS, "collapse", block="add", outer="b", inner="m")
    assert "not stored one inside the other" in refused(MAPS, "collapse", block="add", outer="n", inner="m")
    transposed = MAPS.replace("x0: float32[4, 5, 6]", "x0: float32[4, 5, 6] stored reorder(0, 2, 1)")
    assert "not stored one inside the other" in refused(transposed, "collapse", block="add", outer="m", inner="n")
    computed = MAPS.replace("+ x1[b, 0, 0]", "+ float32(n)")
    assert "outside plain indices" in refused(computed, "collapse", block="add", outer="m", inner="n")


def test_split() -> None:
    assert (
        derived(MAPS, "split", block="add", iter="n", size=2)
        == """\
task t(x0, x1) -> (y0) anchor add
  in x0: float32[4, 5, 6]
  in x1: float32[4, 1, 1]
  out y0: float32[4, 5, 6]
  block add [b:4 m:5 nq:3 np:2] assign
    y0[b, m, nq * 2 + np] = x0[b, m, nq * 2 + np] + x1[b, 0, 0]"""
    )
    for iter, size in (("n", 4), ("n", 6), ("k", 2)):
        assert "not of several times" in refused(MAPS, "split", block="add", iter=iter, size=size)


def test_collapse_of_several_blocks() -> None:
    text = """\
task t(x0) -> (y0) anchor sum
  in x0: float32[3, 4, 5]
  local t0: float32[3, 4]
  out y0: float32[3, 4]
  block sum [a:3 b:4 | k:5] add
    t0[a, b] += x0[a, b, k]
  block relu [m:3 n:4] assign
    y0[m, n] = max(t0[m, n], float32(0.0))"""
    assert (
        derived(text, "collapse", block="sum", outer="a", inner="b")
        == """\
task t(x0) -> (y0) anchor sum
  in x0: float32[12, 5]
  local t0: float32[12]
  out y0: float32[12]
  block sum [ab:12 | k:5] add
    t0[ab] += x0[ab, k]
  block relu [mn:12] assign
    y0[mn] = max(t0[mn], float32(0.0))"""
    )


def test_factor() -> None:
    grouped = """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[4, 7]
  const x1: float32[6, 2]
  local t0: float32[6, 7]
  out y0: float32[6, 7]
  block conv [g:2 o:3 w:7 | c:2] add
    t0[g * 3 + o, w] += x0[g * 2 + c, w] * x1[g * 3 + o, c]
  block relu [o:6 w:7] assign
    y0[o, w] = max(t0[o, w], float32(0.0))"""
    assert (
        derived(grouped, "factor", block="conv", buffer="t0", dim=0)
        == """\
task conv(x0, x1) -> (y0) anchor conv
  in x0: float32[4, 7]
  const x1: float32[6, 2]
  local t0: float32[2, 3, 7]
  out y0: float32[6, 7]
  block conv [g:2 o:3 w:7 | c:2] add
    t0[g, o, w] += x0[g * 2 + c, w] * x1[g * 3 + o, c]
  block relu [oq:2 op:3 w:7] assign
    y0[oq * 3 + op, w] = max(t0[oq, op, w], float32(0.0))"""
    )
    assert "const x1: float32[2, 3, 2]" in derived(grouped, "factor", block="conv", buffer="x1", dim=0)
    assert "no product" in refused(grouped, "factor", block="conv", buffer="x0", dim=0)  # an input stays as it is
    assert "no product" in refused(grouped, "factor", block="conv", buffer="t0", dim=1)


# --- default Candidates ---------------------------------------------------------------------------------------------

RESNET = (  # h = w, input channels, output channels, kernel, stride
    (56, 64, 64, 1, 1), (56, 64, 64, 3, 1), (56, 64, 256, 1, 1), (56, 256, 128, 1, 1), (56, 128, 128, 3, 2),
    (28, 128, 512, 1, 1), (28, 128, 128, 3, 1), (14, 256, 1024, 1, 1), (14, 256, 256, 3, 1), (14, 1024, 512, 1, 1),
    (7, 512, 512, 3, 1), (7, 512, 2048, 1, 1), (7, 2048, 512, 1, 1),
)  # fmt: skip
TARGETS = ("x86-64-v4", "x86-64-v3", "cortex-a72", "armv7-neon", "riscv64-v")


@cache
def resnet_task(size: int, c: int, o: int, k: int, stride: int) -> Task:
    attrs = {"pads": [k // 2] * 4, "strides": [stride] * 2}
    return task_of("Conv", attrs, [(1, c, size, size), (o, c, k, k), (o,)], (1, 2), channels_last=True)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shape", RESNET, ids=str)
@pytest.mark.sweep(10)
def test_register_tiles_fill_the_registers(shape: tuple[int, int, int, int, int], name: str) -> None:
    """Accumulators, one row of operands and one broadcast, in vectors. Seven rows by seven (of pixels, or of Winograd's
    tiles) leave no tile that fills sixteen registers: there enough accumulators to keep every port busy will do."""
    target, task = load_target(name), resnet_task(*shape)
    found = started(task, target)
    anchor = derive(task, found.stages).block(task.anchor)
    schedule = found.blocks[task.anchor]
    assert isinstance(anchor, Block)
    lanes = target.lanes("float32")
    spatial = {i.name for i in anchor.spatial}
    inside = [loop for loop in schedule.order if loop in schedule.tags and schedule.tags[loop] != "parallel"]
    inside = [loop for loop in inside if loop.iterator in spatial]  # steps of the reduction are unrolled, too
    points = prod(trips(loop, anchor.ranges, schedule.tiles) for loop in inside)
    vector = schedule.order[-1]
    assert schedule.tags[vector] == "vector" or schedule.tags[vector].startswith("intrin:")
    assert trips(vector, anchor.ranges, schedule.tiles) == lanes
    along = [loop for loop in inside if loop.iterator == vector.iterator]
    vectors = prod(trips(loop, anchor.ranges, schedule.tiles) for loop in along) // lanes
    used = points // lanes + vectors + 1
    assert used <= target.vector.registers
    busy = points // lanes >= target.fma_latency * target.fma_ports
    few = shape[0] == 7 or any(stage.rule in ("winograd", "strassen") for stage in found.stages)
    assert used >= 0.75 * target.vector.registers or (few and busy)


@pytest.mark.parametrize("strides", [1, 2])
def test_depthwise_windows_are_padded_beside_the_arithmetic(strides: int) -> None:
    """In a copy for each register tile, though neighbours read much the same."""
    attrs = {"pads": [1] * 4, "group": 32, "strides": [strides] * 2}
    task = task_of("Conv", attrs, [(1, 32, 56, 56), (32, 1, 3, 3)], [1], True)
    for candidate in (started(task, host_target()), chosen(task, host_target()).candidate):
        (pad,) = (s for name, s in candidate.blocks.items() if name.startswith("pad"))
        loops = candidate.blocks[task.anchor].order
        assert isinstance(pad.at, Inside)
        around = loops[: loops.index(pad.at.loop) + 1]
        assert pad.scope == "local" and {loop.iterator for loop in around} == {"c", "h", "w"}


@pytest.mark.parametrize("name", SMALL)
def test_candidates_are_json(name: str) -> None:
    task = SMALL[name]
    found = started(task, load_target("x86-64-v4"))
    data = json.loads(json.dumps(found.to_json()))
    schema = json.loads((Path(candidate_module.__file__).parent / "candidate.schema.json").read_text())
    jsonschema.validate(data, schema)
    again = Candidate.from_json(data)
    assert again == found
    assert str(build_nest(task, again)) == str(build_nest(task, found))


def test_what_is_no_candidate() -> None:
    for data in ({}, {"blocks": {"a": {}}, "stages": [], "layouts": {}}, {"blocks": [], "stages": [], "layouts": {}}):
        with pytest.raises(ValueError, match="does not fit candidate"):
            Candidate.from_json(data)


# --- determinism ----------------------------------------------------------------------------------------------------

_DIGESTS = """
import sys
sys.path.insert(0, sys.argv[1])
from small_kernels import digests
print(digests())
"""


def test_kernels_are_the_same_bytes_every_time() -> None:
    first = digests()
    assert digests() == first
    script = [sys.executable, "-c", _DIGESTS, str(HELPERS)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in ("MODELC_EXAMPLES",):
        environment.pop(name, None)
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first


# --- special values -------------------------------------------------------------------------------------------------

INF, NAN = np.float32(np.inf), np.float32(np.nan)


def rows(n: int) -> Array:
    """Rows of -inf, of NaN, with one of them among numbers, and of large numbers."""
    x = f(8, n)
    x[0] = -INF
    x[1] = NAN
    x[2, n // 2] = -INF
    x[3, n // 2] = NAN
    x[4, n // 2] = INF
    x[5] = 1e30
    x[6, : n // 2] = -INF
    x[7] *= 90
    return x


@pytest.mark.parametrize("n", [1, 5, 16, 33, 70])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_of_special_values(op: str, n: int) -> None:
    check(example(Case(op, (rows(n),))))


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_special_values(op: str, axis: int) -> None:
    """What ONNX Runtime's maximum of NaN and numbers is depends on where the NaN is; here it is always NaN."""
    found = example(Case(op, (rows(33), np.asarray([axis])), {"keepdims": 0}, (1,)))
    check(found if op == "ReduceSum" else replace(found, wanted={}))
    x = rows(33)
    x[np.isnan(x)] = 1
    check(example(Case(op, (x, np.asarray([axis])), {"keepdims": 0}, (1,))))


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Abs", "Neg", "Floor", "HardSwish"])
def test_maps_of_special_values(op: str) -> None:
    check(example(Case(op, (rows(33),))))


@pytest.mark.parametrize("op", ["Max", "Min", "Add", "Mul", "Div"])
def test_pairs_of_special_values(op: str) -> None:
    check(example(Case(op, (rows(33), rows(33)[::-1].copy()))))


def test_clip_of_special_values() -> None:
    check(example(Case("Clip", (rows(33), np.float32(-0.5), np.float32(0.5)), {}, (1, 2))))


@pytest.mark.parametrize("order", ["row-major", "channels-last"])
@pytest.mark.parametrize("pads", [0, 1])
def test_max_pool_of_special_values(order: str, pads: int) -> None:
    x = f(1, 3, 8, 8)
    x[0, 0, :4] = -INF
    x[0, 1, 3, 3] = INF
    case = Case("MaxPool", (x,), {"kernel_shape": [3, 3], "pads": [pads] * 4})
    check(replace(example(case, order=order), wanted={} if pads else {"y0": reference(case)[0]}))
    x[0, 2] = NAN
    x[0, 1, 0, 0] = NAN
    check(replace(example(case, order=order), wanted={}))


def test_a_padded_row_of_minus_infinity() -> None:
    task = task_of("Softmax", {"axis": -1}, [(3, 40)])
    x = np.full((3, 40), -INF)
    x[1, 39] = 0
    built = build(task)
    wanted = run_task(task, {"x0": x})["y0"]
    assert np.isnan(wanted[0]).all() and wanted[1, 39] == 1
    check(replace(example(Case("Softmax", (x,))), task=task), built.candidate, host_target())
