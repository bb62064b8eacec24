"""Attention on intrinsics of the target: both contractions in bfloat16 with packed keys and values, in one Task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_tasks import CASES, FUSED, MAPS, attention, fused_task
from partition_models import Model
from tensor_tasks import SERVER
from three_ways import Example, check, emulated_target, random_inputs, run_task

from modelc.codegen.lower.nest import lower_nest
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate, Stage
from modelc.ir.loop import ROOT, Loop
from modelc.ir.nest import For
from modelc.ir.text import parse_task
from modelc.ir.verify import verify_task
from modelc.partition.narrow_products import products
from modelc.partition.narrow_task import in_narrow
from modelc.partition.precision import to_narrow
from modelc.policy import Policy
from modelc.space.choose import accepted, chosen
from modelc.space.construct import constructed
from modelc.space.nest.build import build_nest
from modelc.space.rules.derivation import derive, derived
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.listing import sketches
from modelc.target import Target

EVEN = {
    "even": dict(queries=32, keys=64, size=32),
    "several rows of tiles": dict(queries=160, keys=32, size=32),
    "ragged rows": dict(queries=37, keys=48, size=24),
    "a single row left": dict(queries=241, keys=16),
    "ragged columns": dict(queries=24, keys=40, size=20),
    "one head": dict(queries=48, keys=32, count=1),
    "batch": dict(queries=17, keys=16, count=3, batch=5),
    "added mask": dict(queries=19, keys=36, mask="added"),
    "odd keys": dict(queries=21, keys=45, size=24),
    "few keys": dict(queries=24, keys=9, size=16),
    "causal": dict(queries=34, keys=34, mask="causal"),
    "joint": dict(queries=20, keys=20, mask="causal", joint=True),
}
ODD = ["odd", "long"]  # heads whose channels fill no whole steps of a dot product
WITHOUT_AMX = replace(SERVER, features=tuple(f for f in SERVER.features if not f.startswith("amx")))


def in_pairs(folder: Path, **case: object) -> Task:
    """Attention with what it multiplies in bfloat16, as the pass that is asked for it leaves it."""
    m = Model()
    task = fused_task(m, folder, attention(m, **case), FUSED.format(MAPS.get(str(case.get("mask")), "")))  # type: ignore[arg-type]
    found = list(products(task))
    assert len(found) == 2
    operands = {x.buffer for _, loads in found for x in loads}
    return in_narrow(task, {*operands, *task.outputs}, operands)


def on(task: Task) -> Example:
    return Example(task, random_inputs(task), rtol=1e-2, atol=1e-2)


def units(task: Task, candidate: Candidate) -> list[set[str | None]]:
    """The intrinsics of each contraction's loops."""
    nest = build_nest(task, candidate)
    blocks = derive(task, candidate.stages).blocks
    found = {b.name: set[str | None]() for b in blocks if isinstance(b, Block) and b.name.startswith("matmul")}
    for loop in (s for s in nest.statements() if isinstance(s, For) and s.intrinsic):
        text = str(loop.body)
        for name in found:
            if f"block='{name}'" in text:
                found[name].add(loop.intrinsic)
    return list(found.values())


@pytest.mark.parametrize("case", EVEN.values(), ids=EVEN)
@pytest.mark.sweep(3)
def test_both_contractions_run_on_tile_registers(case, tmp_path):
    task = in_pairs(tmp_path, **case)
    candidate = chosen(task, SERVER).candidate
    assert units(task, candidate) == [{"amx-bf16"}, {"amx-bf16"}]
    assert Candidate.from_json(candidate.to_json()) == candidate
    scores = case["queries"] * case["keys"] * 4
    nest = build_nest(task, candidate)
    assert all(t.bytes < scores for t in nest.temporaries) or case.get("count") == 1
    if "amx-bf16" in emulated_target().features:
        check(on(task), target=emulated_target())


@pytest.mark.parametrize("case", [*EVEN.values(), *(CASES[name] for name in ODD)], ids=[*EVEN, *ODD])
@pytest.mark.sweep(1)
def test_plain_vectors_multiply_unrounded_weights(case, tmp_path):
    """Where no intrinsic pays, weights are not rounded: what is stored as bfloat16 is widened once."""
    task = in_pairs(tmp_path, **case)
    candidate = chosen(task, SERVER, policy=Policy(tensorize=False)).candidate
    assert "widen" in {s.rule for s in candidate.stages}
    assert candidate == chosen(task, WITHOUT_AMX).candidate
    check(on(task), candidate)


def test_one_contraction_alone_stays_on_vectors(tmp_path):
    """Queries of an odd depth are read as they lie: no unit computes the scores, and none the values then."""
    task = in_pairs(tmp_path, queries=24, keys=32, size=21)
    assert units(task, chosen(task, SERVER).candidate) == [set(), set()]


def test_few_rows_stay_on_vectors(tmp_path):
    """Packing keys and values takes longer than they multiply."""
    task = in_pairs(tmp_path, queries=9, keys=32, size=32)
    assert units(task, chosen(task, SERVER).candidate) == [set(), set()]


def test_what_is_rounded_in_the_task_is_read_as_it_was(tmp_path):
    """Operands that stay float32 outside are copied by the unit's packing, or not at all."""
    m = Model()
    program = to_narrow(m.program(tmp_path, attention(m, 32, 32, size=32), attention_bytes=1 << 20))
    (task,) = [bound.task for bound in program.tasks]
    assert sum(b.name.startswith("round") for b in task.blocks) == 3
    for target, rounded in ((SERVER, 1), (WITHOUT_AMX, 0)):
        candidate = chosen(task, target).candidate
        assert sum(name.startswith("round") for name in candidate.blocks) == rounded
        assert len(build_nest(task, candidate).phases) == 1
    check(on(task), candidate)


def test_keys_and_values_are_packed_once_for_a_head(tmp_path):
    task = in_pairs(tmp_path, queries=160, keys=32, size=32)
    candidate = chosen(task, SERVER).candidate
    packs = [b for b in candidate.blocks if b.startswith("pack")]
    assert len(packs) == 2 and len(candidate.layouts) == 2
    places = {candidate.blocks[name].at for name in packs}
    assert {place.loop for place in places if place is not ROOT} == {Loop("h", 0)} and ROOT not in places


@pytest.mark.parametrize(("queries", "shapings"), [(32, 1), (160, 1), (154, 2)])
def test_tile_registers_are_shaped_where_shapes_change(queries, shapings, tmp_path):
    """Once where all rows of tiles are alike; else once for whole ones, and once for those at the end."""
    task = in_pairs(tmp_path, queries=queries, keys=32, size=32)
    nest = build_nest(task, chosen(task, SERVER).candidate)
    text = "".join(str(phase.function) for phase in lower_nest(nest, "attention", SERVER.available_intrinsics))
    assert text.count("ldtilecfg") == shapings


def test_masks_are_added_where_scores_are_read(tmp_path):
    task = in_pairs(tmp_path, queries=32, keys=32, mask="added")
    names = [b.name for b in derive(task, chosen(task, SERVER).candidate.stages).blocks]
    assert not {"div", "add"} & set(names)


@pytest.mark.parametrize("target", [SERVER, WITHOUT_AMX], ids=["amx", "vectors"])
def test_float32_is_as_it_was(target: Target, tmp_path):
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 33, 33, mask="causal"), FUSED.format(MAPS["causal"]))
    assert chosen(task, target).candidate == chosen(task, target, policy=Policy(tensorize=False)).candidate


# --- the rules ------------------------------------------------------------------------------------------------------

WEIGHTED = """\
task weighted(x0, x1, x2) -> (y0) anchor sum
  in x0: float32[9, 21]
  in x1: float32[9]
  in x2: bfloat16[21, 32]
  local t0: float32[9, 21]
  local t1: float32[9]
  local t2: bfloat16[9, 21]
  out y0: float32[9, 32]
  block exp [m:9 n:21] assign
    t0[m, n] = exp(x0[m, n])
  block total [m:9 | n:21] add
    t1[m] += t0[m, n]
  block product [m:9 n:21] assign
    t2[m, n] = bfloat16(t0[m, n] * x1[m])
  block sum [m:9 d:32 | n:21] add
    y0[m, d] += float32(t2[m, n]) * float32(x2[n, d])"""


def lines(task: Task) -> list[str]:
    return [str(b).splitlines()[-1].strip() for b in task.blocks]


def derived_by(task: Task, rule: str, **args: str | int) -> Task:
    """The Task after one rule, which computes the same, up to roundings."""
    found = derived(task, Stage(rule, args))
    verify_task(found)
    inputs = random_inputs(task)
    wanted, result = run_task(task, inputs)["y0"], run_task(found, inputs)["y0"]
    np.testing.assert_allclose(result, wanted, rtol=2e-2, atol=2e-2 * np.abs(wanted).max())
    return found


def test_what_is_rounded_after_a_common_factor_is_rounded_before_it():
    assert lines(derived_by(parse_task(WEIGHTED), "defer", block="product")) == [
        "t0[m, n] = bfloat16(exp(x0[m, n]))",
        "t1[m] += float32(t0[m, n])",
        "y0_sum[m, d] += float32(t0[m, n]) * float32(x2[n, d])",
        "y0[m, d] = y0_sum[m, d] * x1[m]",
    ]


def test_what_is_cast_by_all_readers_is_stored_so():
    task = derived_by(parse_task(WEIGHTED), "widen", buffer="t2", dtype="float32")
    assert lines(task)[2:] == [
        "t2[m, n] = t0[m, n] * x1[m]",
        "y0[m, d] += t2[m, n] * float32(x2[n, d])",
    ]
    for buffer, dtype in (("x2", "float32"), ("t2", "float64")):  # an input; not what it is read as
        with pytest.raises(DoesNotApply):
            derived(parse_task(WEIGHTED), Stage("widen", {"buffer": buffer, "dtype": dtype}))


def test_reductions_are_filled_with_zeros():
    packed = derived_by(parse_task(WEIGHTED), "cache_read", block="sum", buffer="x2")
    task = derived_by(packed, "lengthen", block="sum", iter="n", extent=32)
    assert "t2[m, n] = select(n < 21, bfloat16(t0[m, n] * x1[m]), bfloat16(0.0))" in lines(task)
    assert "x2_packed[pa, pb] = select(pa < 21, x2[pa, pb], bfloat16(0.0))" in lines(task)
    assert task.buffer("t2").shape == (9, 32) and task.blocks[1].ranges["n"] == 21
    with pytest.raises(DoesNotApply):  # an input has no room for zeros
        derived(parse_task(WEIGHTED), Stage("lengthen", {"block": "sum", "iter": "n", "extent": 32}))
    with pytest.raises(DoesNotApply):
        derived(packed, Stage("extend", {"buffer": "x2_packed", "dim": 0, "extent": 20}))


@pytest.mark.parametrize(
    ("case", "target", "kinds"),
    [("ragged columns", SERVER, ["amx-bf16", "vectors"]), ("odd keys", WITHOUT_AMX, ["vectors"])],
)
def test_points_of_every_sketch_are_right(case, target, kinds, tmp_path):
    """Shapes that do not divide, in units where both contractions can be, and on vectors; random points of each."""
    task, rng, ran = in_pairs(tmp_path, **EVEN[case]), np.random.default_rng(5), 0
    found = sketches(task, target, Policy())
    assert [s.name for s in found] == kinds
    for sketch in found:
        points = sketch.random(6, rng)
        assert len(points) == 6 and sketch.legal(sketch.start()[None, :]).all()
        assert all(len(k.values) > 1 for k in sketch.knobs) and (sketch.estimate(points, 4) > 0).all()
        for candidate in map(sketch.candidate, points):
            assert Candidate.from_json(candidate.to_json()) == candidate
            accepted(task, candidate, target)
            ran += 1
        if sketch.name == "vectors" or sketch.name in emulated_target().features:
            check(on(task), candidate, emulated_target())
    assert ran == 6 * len(kinds)


def test_rules_are_where_construction_starts(tmp_path):
    """Estimates within their doubt move nothing; units are estimated below vectors."""
    task = in_pairs(tmp_path, queries=128, keys=128, count=12, size=64)
    for cores in (1, 4):
        units, vectors = sketches(task, replace(SERVER, cores=cores), Policy())
        points = [constructed(s, cores, 1)[0] for s in (units, vectors)]
        assert points[0].seconds < points[1].seconds
        assert (points[0].point == units.start()).all()
        assert {k.name for k in units.knobs} >= {"queries", "scores.rows", "values.vectors", "group"}
        assert ("parallel" in {k.name for k in units.knobs}) == (cores > 1)
