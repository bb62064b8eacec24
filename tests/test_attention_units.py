"""Attention on intrinsics of the target: both contractions in bfloat16 with packed keys and values, in one Task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from partition_models import Model
from test_attention import CASES, FUSED, MAPS, attention, fused_task
from test_tensorized import SERVER
from three_ways import Example, check, random_inputs, tensor_target

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.nest import Loop
from modelc.passes.precision import in_bfloat16, products
from modelc.space.build import build_nest
from modelc.space.default import default_candidate
from modelc.space.derivation import derive
from modelc.target import Target

EVEN = {
    "even": dict(queries=32, keys=64, size=32),
    "several rows of tiles": dict(queries=160, keys=32, size=32),
    "ragged rows": dict(queries=37, keys=48, size=24),
    "a single row left": dict(queries=241, keys=16),
    "ragged columns": dict(queries=24, keys=40, size=20),
    "one head": dict(queries=40, keys=32, count=1),
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
    return in_bfloat16(task, {*operands, *task.outputs}, operands)


def on(task: Task) -> Example:
    return Example(task, random_inputs(task), rtol=1e-2, atol=1e-2)


def units(task: Task, candidate: Candidate) -> list[set[str | None]]:
    """The intrinsics of each contraction's loops."""
    nest = build_nest(task, candidate)
    blocks = derive(task, candidate.stages).blocks
    found = {b.name: set[str | None]() for b in blocks if isinstance(b, Block) and b.name.startswith("matmul")}
    for loop in (s for s in nest.statements() if isinstance(s, Loop) and s.intrinsic):
        text = str(loop.body)
        for name in found:
            if f"block='{name}'" in text:
                found[name].add(loop.intrinsic)
    return list(found.values())


@pytest.mark.parametrize("case", EVEN.values(), ids=EVEN)
def test_both_contractions_run_on_tile_registers(case, tmp_path):
    task = in_pairs(tmp_path, **case)
    candidate = default_candidate(task, SERVER)
    assert units(task, candidate) == [{"amx-bf16"}, {"amx-bf16"}]
    assert Candidate.from_json(candidate.to_json()) == candidate
    scores = case["queries"] * case["keys"] * 4
    nest = build_nest(task, candidate)
    assert all(t.bytes < scores for t in nest.temporaries) or case.get("count") == 1
    if "amx-bf16" in tensor_target().features:
        check(on(task), target=tensor_target())


@pytest.mark.parametrize("case", [*EVEN.values(), *(CASES[name] for name in ODD)], ids=[*EVEN, *ODD])
def test_plain_vectors_multiply_unrounded_weights(case, tmp_path):
    """Where no intrinsic pays, weights are not rounded: what is stored as bfloat16 is widened once."""
    task = in_pairs(tmp_path, **case)
    candidate = default_candidate(task, SERVER, tensorize=False)
    assert "widen" in {s.rule for s in candidate.stages}
    assert candidate == default_candidate(task, WITHOUT_AMX)
    check(on(task), candidate)


def test_one_contraction_alone_stays_on_vectors(tmp_path):
    """Queries of an odd depth are read as they lie: no unit computes the scores, and none the values then."""
    task = in_pairs(tmp_path, queries=24, keys=32, size=21)
    assert units(task, default_candidate(task, SERVER)) == [set(), set()]


def test_keys_and_values_are_packed_once_for_a_head(tmp_path):
    task = in_pairs(tmp_path, queries=160, keys=32, size=32)
    candidate = default_candidate(task, SERVER)
    packs = [b for b in candidate.blocks if b.startswith("pack")]
    assert len(packs) == 2 and len(candidate.layouts) == 2
    assert {candidate.blocks[name].at.rpartition(".")[2] for name in packs} == {"h0"}


def test_masks_are_added_where_scores_are_read(tmp_path):
    task = in_pairs(tmp_path, queries=32, keys=32, mask="added")
    names = [b.name for b in derive(task, default_candidate(task, SERVER).stages).blocks]
    assert not {"div", "add"} & set(names)


@pytest.mark.parametrize("target", [SERVER, WITHOUT_AMX], ids=["amx", "vectors"])
def test_float32_is_as_it_was(target: Target, tmp_path):
    m = Model()
    task = fused_task(m, tmp_path, attention(m, 33, 33, mask="causal"), FUSED.format(MAPS["causal"]))
    assert default_candidate(task, target) == default_candidate(task, target, tensorize=False)
