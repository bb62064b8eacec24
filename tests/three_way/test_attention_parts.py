"""Attention over keys in parts, in turn and side by side: Blocks, Nest and machine code agree; when it is chosen."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_tasks import CACHE, CASES, FUSED, MAPS, attention, fused_task
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_models import Model
from sketch_points import accepted_points, checked
from three_ways import Example, check, host_target, random_inputs

import modelc
from modelc.ir.block import Task
from modelc.ir.candidate import Stage
from modelc.ir.text import parse_task
from modelc.ir.verify import verify_task
from modelc.package import read_package
from modelc.partition.attention import TILE_ROWS
from modelc.policy import Policy
from modelc.space.choose import chosen
from modelc.space.rules.derivation import derived
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.attention_parts import InParts, InTurn, SideBySide, in_parts
from modelc.space.sketches.clean import exposed, inlined
from modelc.target import load_target

WAYS = [InTurn, SideBySide]


def of_parts(task: Task, way: type[InParts], count: int, cores: int = 1) -> InParts:
    stages = list[Stage]()
    ready = inlined(exposed(task, stages), stages)
    return in_parts(ready, replace(host_target(), cores=cores), stages, way, count)


def attention_task(folder: Path, **case: object) -> Task:
    m = Model()
    return fused_task(m, folder, attention(m, **case), FUSED.format(MAPS.get(str(case.get("mask")), "")))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["boundaries", "one head", "batch", "added mask", "causal", "joint"])
def test_both_ways_compute_the_same(case, way, tmp_path):
    attrs = CASES[case]
    count = next(n for n in (3, 4, 5, 7) if attrs["keys"] % n == 0)
    task = attention_task(tmp_path, **attrs)
    sketch = of_parts(task, way, count)
    built = check(task, sketch.candidate(sketch.start()), sketch.target)
    assert all("matmul_parts" in t.name or "parts_sum" in t.name or "packed" in t.name for t in built.nest.temporaries)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.integers(4, 40),
    st.integers(4, 24),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(4, 40),
    st.sampled_from(WAYS),
)
def test_points_of_any_shape(queries, size, count, heads, depth, way):
    """Random points are accepted and compute what the Blocks say."""
    with tempfile.TemporaryDirectory() as folder:
        task = attention_task(Path(folder), queries=queries, keys=size * count, count=heads, size=depth)
    sketch = of_parts(task, way, count, cores=host_target().cores)
    assert accepted_points(sketch, task, 6)
    assert checked(sketch, task, 2)


@pytest.mark.parametrize("way", WAYS)
def test_parts_that_are_masked_whole(way, tmp_path):
    """A part of -inf weighs nothing, beside parts that do and parts of the lowest number; a row of -inf is NaN."""
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 8, 35, mask="added", batch=5), FUSED.format("div add "))
    lowest = np.finfo(np.float32).min
    mask = np.zeros((5, 1, 1, 35), np.float32)
    mask[0] = -np.inf
    mask[1] = lowest
    mask[2, ..., :7], mask[2, ..., 28:] = -np.inf, -np.inf
    mask[3, ..., :14], mask[3, ..., 14:] = -np.inf, lowest
    mask[4, ..., 3:] = -np.inf
    (name,) = [b.name for b in task.buffers if b.name in task.inputs and b.shape == mask.shape]
    sketch = of_parts(task, way, 5)
    built = check(Example(task, random_inputs(task) | {name: mask}), sketch.candidate(sketch.start()), sketch.target)
    assert any(stage.rule == "online" for stage in built.candidate.stages)


TASK = """\
task t(x, v) -> (y) anchor total
  in x: float32[3, 12]
  in v: float32[12, 5]
  out y: float32[3, 5]
  local m: float32[3]
  local e: float32[3, 12]
  local z: float32[3]
  local s: float32[3, 5]
  block peak [r:3 | n:12] max
    m[r] max= x[r, n]
  block weights [i:3 n:12] assign
    e[i, n] = exp(x[i, n] - m[i])
  block total [r:3 | n:12] add
    z[r] += e[r, n]
  block values [r:3 d:5 | k:12] add
    s[r, d] += e[r, k] * v[k, d]
  block scale [r:3 d:5] assign
    y[r, d] = s[r, d] / z[r]"""
LOW = "float32(-3.4028234663852886e+38)"


def test_the_rule():
    task = derived(parse_task(TASK), Stage("online", {"block": "peak", "count": 3}))
    verify_task(task)
    assert [str(b).splitlines()[-1].strip() for b in task.blocks] == [
        "peak_parts_sum[p, r] max= x[r, p * 4 + n]",
        f"e[p, i, n] = exp(x[i, p * 4 + n] - max(peak_parts_sum[p, i], {LOW}))",
        "total_parts_sum[p, r] += e[p, r, n]",
        "values_parts_sum[p, r, d] += e[p, r, k] * v[p * 4 + k, d]",
        "m[r] max= peak_parts_sum[p, r]",
        f"peak_shares[p, r] = exp(max(peak_parts_sum[p, r], {LOW}) - m[r])",
        "z[r] += peak_shares[p, r] * total_parts_sum[p, r]",
        "s[r, d] += peak_shares[p, r] * values_parts_sum[p, r, d]",
        "y[r, d] = s[r, d] / z[r]",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out y: float32[3, 5]", "out y: float32[3, 5]\n  out e: float32[3, 12]"),
        ("exp(x[i, n] - m[i])", "x[i, n] - m[i]"),
        ("s[r, d] / z[r]", "s[r, d] / z[r] + m[r]"),
        ("z[r] += e[r, n]", "z[r] += e[r, n] * e[r, n]"),
    ],
)
def test_what_parts_do_not_combine_to(old, new):
    text = TASK.replace(old, new)
    if "out e" in new:
        text = text.replace("  local e: float32[3, 12]\n", "").replace("-> (y)", "-> (y, e)")
    with pytest.raises(DoesNotApply):
        derived(parse_task(text), Stage("online", {"block": "peak", "count": 3}))


def test_parts_are_equal():
    for count in (1, 5, 24):
        with pytest.raises(DoesNotApply):
            derived(parse_task(TASK), Stage("online", {"block": "peak", "count": count}))


# --- what is chosen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys", "parts"), [(128, 512, False), (64, 16384, True), (256, 16384, True)])
def test_long_rows_go_in_parts(queries, keys, parts, tmp_path):
    """64 rows over 16,384 keys took 1.37 times as long whole, and 512 keys as long in parts (Zen 4, one thread)."""
    m = Model()
    program = m.program(tmp_path, attention(m, queries, keys, count=1, size=64), attention_bytes=CACHE // 2)
    (task,) = [bound.task for bound in program.tasks]
    target = replace(load_target("x86-64-v4"), cores=1)
    for policy in (Policy(), Policy(parts=False)):
        stages = chosen(task, target, policy).candidate.stages
        assert any(stage.rule == "online" for stage in stages) == (parts and policy.parts)


def test_few_rows_of_one_head_go_side_by_side(tmp_path):
    m = Model()
    program = m.program(tmp_path, attention(m, 8, 16384, count=1, size=64), attention_bytes=CACHE // 2)
    target = replace(load_target("x86-64-v4"), cores=8)
    nest = chosen(program.tasks[0].task, target).nest
    assert len(nest.phases) == 2 and any("parts_sum" in t.name for t in nest.temporaries)


def test_a_package_of_long_rows_has_no_matrix_of_scores(tmp_path):
    """Judged kernel by kernel, and as a whole beside ONNX Runtime."""
    keys = 2 * (load_target("native").second.bytes // 2) // (2 * TILE_ROWS * 4)
    m = Model()
    m.program(tmp_path, attention(m, 9, keys, size=8, mask="added"))
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", database=False)
    assert result.report is not None and result.report.passed
    (choice,) = json.loads((tmp_path / "p/choices.json").read_text())["tasks"].values()
    assert '"online"' in json.dumps(choice)
    assert max(plan.arena_bytes for plan in read_package(tmp_path / "p").manifest.variants) < 9 * keys * 4
