"""Attention in one Task: what is fused and what is not; Blocks, Nest and machine code agree; Candidates are data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_tasks import CACHE, CASES, FUSED, MAPS, attention, fused_task
from partition_models import Model, tasks
from three_ways import Example, check, host_target, random_inputs

import modelc
from modelc.compile.choices import read_choices_file
from modelc.compile.config import load_config
from modelc.frontend.onnx import import_model
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate, Stage
from modelc.ir.nest import For
from modelc.ir.text import parse_task
from modelc.partition.draft import drafting, prepared
from modelc.partition.narrow_task import in_narrow
from modelc.space.choose import chosen
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derived
from modelc.space.rules.rule import DoesNotApply
from modelc.target import load_target


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.sweep(3)
def test_attention_is_one_kernel(case, tmp_path):
    m = Model()
    task = fused_task(m, tmp_path, attention(m, **case), FUSED.format(MAPS.get(case.get("mask"), "")))
    built = check(task)
    assert Candidate.from_json(built.candidate.to_json()) == built.candidate
    assert len(built.nest.temporaries) < 2  # keys of a single head are packed in a phase of their own
    scores = case["queries"] * case["keys"] * 4
    assert all(t.bytes != scores for t in built.nest.temporaries)


@pytest.mark.parametrize("case", ["plain", "odd", "boundaries", "one head", "batch", "added mask", "joint"])
@pytest.mark.sweep(2)
def test_operands_that_are_cast_are_copied_as_such(case, tmp_path):
    """Stored as bfloat16 they are converted once for a head, or for a tile of rows, not for every product."""
    m = Model()
    attrs = CASES[case]
    task = fused_task(m, tmp_path, attention(m, **attrs), FUSED.format(MAPS.get(attrs.get("mask"), "")))
    narrow = {r.buffer for b in task.blocks if b.reduction for r in b.reads} & set(task.inputs)
    built = check(in_narrow(task, narrow))
    copies = [s for s in built.candidate.stages if s.rule == "cache_read"]
    assert {s.args.get("dtype") for s in copies} == {"float32"} and len(copies) == 3
    text = str(built.nest)
    assert all("+=" not in line for line in text.splitlines() if "float32(" in line)


@pytest.mark.parametrize("keys", [64, 101, 160])
def test_keys_that_do_not_stay_near_are_packed_by_panels(keys, tmp_path):
    """A panel is what one register tile reads; the last one is not full."""
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 37, keys, size=16), FUSED.format(""))
    target = host_target()
    first, second, *others = target.caches
    small = replace(target, caches=(first, replace(second, bytes=keys * 64), *others))
    built = check(task, chosen(task, small).candidate, small)
    (layout,) = [x for name, x in built.candidate.layouts.items() if "packed" in name]
    assert "split" in str(layout)
    assert not any("split" in str(x) for x in chosen(task, target).candidate.layouts.values())


SCORES = [dict(queries=37, keys=45), dict(queries=9, keys=9, count=1), dict(queries=5, keys=64, batch=4)]


@pytest.mark.parametrize("case", SCORES)
def test_rows_without_values_are_one_kernel(case, tmp_path):
    m = Model()
    task = fused_task(m, tmp_path, attention(m, values=False, **case), "matmul peak exp total inverse softmax")
    check(task)


def test_the_target_decides_about_vectors_alone(tmp_path):
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 37, 45, size=24), FUSED.format(""))
    if "avx2" in host_target().features:
        check(task, target=load_target("x86-64-v3"))


def masked(task: Task, mask: np.ndarray) -> Example:
    inputs = random_inputs(task)
    (name,) = [b.name for b in task.buffers if b.name in task.inputs and b.shape == mask.shape]
    return Example(task, inputs | {name: mask.astype(np.float32)})


def test_rows_that_are_masked_whole(tmp_path):
    """-inf everywhere gives NaN, as softmax does; the lowest number everywhere gives equal weights."""
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 8, 35, mask="added", batch=3), FUSED.format("div add "))
    mask = np.zeros((3, 1, 1, 35))
    mask[0] = -np.inf
    mask[1] = np.finfo(np.float32).min
    mask[2, ..., 4:] = -np.inf
    check(masked(task, mask))


def test_two_heads_go_to_two_cores(tmp_path):
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 128, 128, count=2, size=64), FUSED.format(""))
    target = replace(host_target(), cores=2)
    nest = build_nest(task, chosen(task, target).candidate)
    loops = [s for phase in nest.phases for s in phase if isinstance(s, For) and s.tag == "parallel"]
    assert len(loops) == len(nest.phases) and all(loop.extent >= 2 for loop in loops)


def test_keys_that_are_stored_transposed(tmp_path):
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    y = m.node("MatMul", m.node("Softmax", m.node("MatMul", q, k), axis=-1), v, to="y")
    check(fused_task(m, tmp_path, y, FUSED.format("")))


def test_maps_between_the_rows_and_the_values(tmp_path):
    """Rows without weights become zeros: exporters guard softmax so."""
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    weights = m.node("Softmax", m.node("Add", m.node("MatMul", q, k), m.input("mask", 12, 20)), axis=-1)
    weights = m.node("Where", m.node("IsNaN", weights), m.const(0), weights)
    y = m.node("Add", m.node("MatMul", weights, v), m.input("r", 2, 12, 24), to="y")
    task = fused_task(m, tmp_path, y, "matmul add peak exp total inverse softmax isnan where matmul_1 add_1")
    mask = np.zeros((12, 20))
    mask[3], mask[5, 7:] = -np.inf, -np.inf
    check(masked(task, mask))


def test_log_softmax_of_scores(tmp_path):
    m = Model()
    scores = m.node("MatMul", m.input("q", 3, 12, 16), m.input("k", 3, 16, 21))
    task = fused_task(m, tmp_path, m.node("LogSoftmax", scores, axis=-1, to="y"), "matmul peak total logsoftmax")
    check(task)


def test_rows_along_another_dimension(tmp_path):
    m = Model()
    q, k = m.input("q", 3, 21, 16), m.input("k", 3, 16, 12)
    y = m.node("Softmax", m.node("MatMul", q, k), axis=1, to="y")
    program = m.program(tmp_path, y, attention_bytes=CACHE)
    for bound in program.tasks:
        check(bound.task)


# --- what is not fused ----------------------------------------------------------------------------------------------


def apart(m: Model, folder: Path, *outputs: str, cache: int = CACHE) -> bool:
    blocks = tasks(m.program(folder, *outputs, attention_bytes=cache))
    return not any("matmul" in b and "exp" in b for b in blocks)


def test_rows_longer_than_the_cache_stay_apart_but_for_softmax(tmp_path):
    """Keys of a softmax that the values alone read go in parts."""
    short = 8 * 24 * 4
    m = Model()
    assert not apart(m, tmp_path, attention(m, 24, 24), cache=short)
    m = Model()
    assert apart(m, tmp_path, attention(m, 24, 24, values=False), cache=short)
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    weights = m.node("Softmax", m.node("MatMul", q, k), axis=-1, to="w")
    assert apart(m, tmp_path, m.node("MatMul", weights, v, to="y"), "w", cache=short)
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    logs = m.node("LogSoftmax", m.node("MatMul", q, k), axis=-1)
    assert apart(m, tmp_path, m.node("MatMul", logs, v, to="y"), cache=short)


def test_scores_that_something_else_reads_stay_apart(tmp_path):
    m = Model()
    q, k = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20)
    scores = m.node("MatMul", q, k, to="scores")
    assert apart(m, tmp_path, m.node("Softmax", scores, axis=-1, to="y"), "scores")


def test_a_single_query_stays_apart(tmp_path):
    m = Model()
    assert apart(m, tmp_path, attention(m, 1, 24))


def test_weights_that_are_an_output_are_written_as_they_are_made(tmp_path):
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    weights = m.node("Softmax", m.node("MatMul", q, k), axis=-1, to="w")
    program = m.program(tmp_path, m.node("MatMul", weights, v, to="y"), "w", attention_bytes=CACHE)
    assert tasks(program) == ["matmul peak exp total inverse softmax matmul_1"]
    built = check(program.tasks[0].task)
    assert not built.nest.temporaries


def test_a_cut_ends_the_task_at_weights_that_are_an_output(tmp_path):
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    weights = m.node("Softmax", m.node("MatMul", q, k), axis=-1, to="w")
    m.program(tmp_path, m.node("MatMul", weights, v, to="y"), "w")
    ready = prepared(import_model(tmp_path / "m.onnx"))
    draft = drafting(CACHE, ("w",))(ready.graph, ready.pieces, {})
    assert len(draft.groups) == 2


def test_weights_that_something_else_reads_stay_apart_from_the_values(tmp_path):
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    weights = m.node("Softmax", m.node("MatMul", q, k), axis=-1, to="w")
    log = m.node("Log", weights, to="l")
    program = m.program(tmp_path, m.node("MatMul", weights, v, to="y"), log, attention_bytes=CACHE)
    assert "matmul peak exp total inverse softmax" in tasks(program) and len(program.tasks) == 3
    check(program.tasks[0].task)


def test_keys_that_no_cache_holds_are_one_task_but_for_few_rows(tmp_path):
    """Keys are read again for every tile, from farther than usual: less than scores to memory and back. Four rows took
    0.86 of the time in Tasks of their own (1,024 keys, Zen 4)."""
    for rows in (8, 96):
        m = Model()
        assert len(m.program(tmp_path, attention(m, rows, 512), attention_bytes=512 * 16 * 4).tasks) == 1
    m = Model()
    assert len(m.program(tmp_path, attention(m, 4, 512), attention_bytes=512 * 16 * 4).tasks) > 1
    m = Model()
    assert len(m.program(tmp_path, attention(m, 4, 24), attention_bytes=512 * 16 * 4).tasks) == 1


def test_sums_of_weights_that_are_an_output_stay_apart(tmp_path):
    m = Model()
    q, k, v = m.input("q", 2, 12, 16), m.input("k", 2, 16, 20), m.input("v", 2, 20, 24)
    weights = m.node("Softmax", m.node("MatMul", q, k), axis=-1, to="w")
    sums = m.node("ReduceMax", weights, m.const([-1], "int64"), keepdims=1, to="s")
    program = m.program(tmp_path, m.node("MatMul", weights, v, to="y"), sums, attention_bytes=CACHE)
    assert tasks(program)[0] == "matmul peak exp total inverse softmax" and len(program.tasks) == 3
    check(program.tasks[0].task)


# --- the configuration ----------------------------------------------------------------------------------------------


def test_the_configuration_decides(tmp_path):
    m = Model()
    y = attention(m, 24, 24)
    m.program(tmp_path, y)
    for allowed in (True, False):
        config = load_config().allowing(attention=allowed)
        modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", config=config)
        assert len(read_choices_file(tmp_path / "p/choices.json").tasks) == (1 if allowed else 3)


# --- the rule -------------------------------------------------------------------------------------------------------

DEFER = Stage("defer", {"block": "product"})
FACTOR = """\
task weighted(x0, x1, x2) -> (y0) anchor sum
  in x0: float32[9, 20]
  in x1: float32[{factor}]
  in x2: float32[20, 33]
  local t0: float32[9, 20]
  out y0: float32[9, 33]
  block product [m:9 n:20] assign
    t0[m, n] = x0[m, n] * x1[{at}]
  block sum [m:9 d:33 | n:20] add
    y0[m, d] += t0[m, n] * x2[n, d]"""


def test_common_factors_are_deferred():
    task = derived(parse_task(FACTOR.format(factor=9, at="m")), DEFER)
    assert [str(b).splitlines()[-1].strip() for b in task.blocks] == [
        "y0_sum[m, d] += x0[m, n] * x2[n, d]",
        "y0[m, d] = y0_sum[m, d] * x1[m]",
    ]
    with pytest.raises(DoesNotApply):
        derived(parse_task(FACTOR.format(factor=20, at="n")), DEFER)
