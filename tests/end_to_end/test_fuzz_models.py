"""A slice of python tests/fuzz models: damaged models are compiled or refused with a sentence."""

from __future__ import annotations

import model_mutations as mutations
import onnx
import pytest
from fuzz_models import BUILT, attempt, fuzz

CASES = 60


def test_undamaged_seeds_compile() -> None:
    for content in BUILT.values():
        assert attempt(content, "schedule") == "compiled to schedule"


@pytest.mark.parametrize("kind", [*mutations.BYTES, *mutations.GRAPH])
def test_every_edit_is_the_same_again_and_damages(kind) -> None:
    changed = 0
    for content in BUILT.values():
        edits = [mutations.Edit(kind, seed) for seed in range(5)]
        found = [mutations.mutated(content, [edit]) for edit in edits]
        assert found == [mutations.mutated(content, [edit]) for edit in edits]
        whole = onnx.ModelProto.FromString(content).SerializeToString()
        changed += sum(mutant not in (content, whole) for mutant in found)
    assert changed > 2


def test_damaged_models_are_refused_or_compiled() -> None:
    report = fuzz(CASES, seed=20, stop_after="schedule")
    found = report.to_json()
    assert report.passed, found["failures"]
    assert found["cases"] == CASES and found["kinds"]["done"] > CASES // 10 and found["kinds"]["refused"] > CASES // 10
