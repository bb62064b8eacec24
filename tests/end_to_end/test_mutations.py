"""python tests/fuzz mutants: a slice of the wrong packages, all of which `verify` has to notice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import emulator_of
from mutant_nests import changed, changes
from mutant_subjects import Subject
from mutant_truth import Truth
from mutants import Mutant, mutant
from mutate_packages import Asked, Result, false_alarms, judged, outcome_by, table, verified

from modelc.ir.nest import show_nest
from modelc.package import PackageSpec, write_package
from modelc.target import load_target

MUTANTS = 2
KINDS = ("accumulator", "bias", "border", "operands", "precision", "rectifier", "scale", "stride", "tap", "tile")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("mutants")
    return Asked(load_target("native"), folder, folder, "default", 0)


@pytest.fixture(scope="module")
def windows(asked: Asked) -> Subject:
    return Subject.of("windows", asked.models, asked.target, asked.folder)


@pytest.mark.parametrize("name", ["windows", "qdq", "qdq7", "int4", "control", "halves", "halves:f16", "mixed:f16"])
@pytest.mark.sweep(4)
def test_a_slice(asked: Asked, name: str) -> None:
    if name.endswith(":f16"):
        asked = replace(asked, target=load_target("cortex-a76"))
        emulator_of(asked.target)
    subject = Subject.of(name, asked.models, asked.target, asked.folder)
    assert not list(false_alarms(subject, [0], asked))
    results = list(judged(subject, range(MUTANTS), asked))
    outcomes = Counter(result.outcome for result in results)
    assert not outcomes["missed"], [result for result in results if result.outcome == "missed"]
    assert outcomes["kernels"] + outcomes["whole"] + outcomes["run"] >= MUTANTS / 2, table(results)


def test_a_seed_draws_the_same_again(windows: Subject) -> None:
    """And whatever is drawn is another package than the right one."""

    def content(spec: PackageSpec) -> tuple[object, ...]:
        return spec.objects, spec.variants, [(offset, array.tobytes()) for offset, array in spec.params]

    for seed in range(4):
        first, again = (mutant(windows, np.random.default_rng(seed)) for _ in range(2))
        assert (first.kind, first.about) == (again.kind, again.about)
        assert content(first.spec) == content(again.spec) != content(windows.spec)


def test_one_statement_of_a_kernel_is_changed(windows: Subject) -> None:
    drawn = np.random.default_rng(0)
    listed = [(one.nest, change) for one in windows.compiled.values() for change in changes(one.nest, drawn)]
    assert {change.kind for _, change in listed} >= {*KINDS}
    for nest, change in listed[:: len(listed) // 50]:
        before, after = (show_nest(x).splitlines() for x in (nest, changed(nest, change)))
        if len(before) > len(after):  # the condition was the only one: its line is gone, and what was inside moves out
            before, after = ([line.strip() for line in lines] for lines in (before, after))
            gone = next(k for k, line in enumerate(before) if k == len(after) or line != after[k])
            assert change.kind == "mask" and [*before[:gone], *before[gone + 1 :]] == after, change.about
            continue
        differing = sum(a != b for a, b in zip(before, after, strict=True))
        assert differing == 1, (change.kind, change.about)


def test_what_a_wrong_package_is_off_by(asked: Asked, windows: Subject, tmp_path: Path) -> None:
    """The right one by nothing; one that lacks its last step by anything, and that step is named."""
    right = write_package(windows.spec, tmp_path / "right.modelc")
    truth = Truth(windows, right, seed=0, samples=1)
    (plan,) = windows.spec.variants
    whole = Mutant("", "", windows.spec, tuple(range(len(plan.steps))))
    assert outcome_by(truth.moved(whole, right)) == "same"
    shorter = replace(windows.spec, variants=(replace(plan, steps=plan.steps[:-1]),))
    lacking = Mutant("step skipped", "", shorter, whole.order[:-1], told=False)
    package = lacking.write(tmp_path / "wrong.modelc", windows.spec)
    assert outcome_by(truth.moved(lacking, package)) == "missed"
    report = verified(windows, package.path, 0, "default")
    assert not report.passed and "its kernel did not run" in report.sentence()


def test_the_table_counts_by_kind_and_by_model() -> None:
    results = [
        Result("m", k, kind, "", outcome, "")
        for k, (kind, outcome) in enumerate([("tap", "kernels"), ("tap", "missed"), ("bias", "same")])
    ]
    lines = [line.split() for line in table(results).splitlines()]
    assert lines[0] == ["made", "kernels", "whole", "run", "missed", "small", "open", "same"]
    assert ["tap", "2", "1", "-", "-", "1", "-", "-", "-"] in lines
    assert lines[-1] == ["all", "3", "1", "-", "-", "1", "-", "-", "1"]
