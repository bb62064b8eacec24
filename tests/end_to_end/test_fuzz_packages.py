"""A slice of python tests/fuzz packages, and its findings: damaged packages are refused with a sentence."""

from __future__ import annotations

import pytest
from forked import run_case
from fuzz_packages import CHECKING, LIMITS, READERS, Seed, case, fuzz, made
from package_damage import DAMAGES, TEXTS, THINGS, VALUES

QUICK = tuple(name for name in READERS if name != "verify")


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Seed:
    return made(tmp_path_factory.mktemp("seed"))


def outcome_of(seed: Seed, reader: str, *edits: dict[str, object]) -> tuple[str, str]:
    outcome = run_case(case(seed, 0, reader, edits), LIMITS)
    assert outcome.good, (reader, edits, outcome)
    return outcome.kind, outcome.said


def test_a_slice(seed: Seed) -> None:
    report = fuzz(seed, 8, number=9, readers=QUICK)
    assert report.passed and report.finish() == 0, report.to_json()["failures"]
    assert report.kinds["done"] > 5 and report.kinds["refused"] > 10 and report.kinds.total() == 8 * len(QUICK)


def test_the_undamaged_package_is_accepted(seed: Seed) -> None:
    for reader in READERS:
        assert outcome_of(seed, reader) == ("done", "")


@pytest.mark.parametrize("what", THINGS)
@pytest.mark.sweep(5)
def test_what_is_no_file_is_not_waited_for(seed: Seed, what: str) -> None:
    for reader in QUICK:
        for file in ("manifest.json", "params.bin"):
            kind, said = outcome_of(seed, reader, {"kind": "thing", "file": file, "what": what})
            assert kind == "refused" and (file in said or "inspect takes" in said), said


@pytest.mark.parametrize("number", range(len(TEXTS)))
@pytest.mark.sweep(4)
def test_texts_that_are_no_manifest(seed: Seed, number: int) -> None:
    for reader in QUICK:
        assert outcome_of(seed, reader, {"kind": "text", "value": number})[0] == "refused"


@pytest.mark.parametrize("file", ["libsmall.so", "params.bin", "small.h"])
def test_a_changed_file_is_refused_by_who_compares_checksums(seed: Seed, file: str) -> None:
    edit = {"kind": "bytes", "how": "flip", "file": file, "at": 0.5, "bit": 1}
    for reader in QUICK:
        refuses = reader in CHECKING or (file == "libsmall.so" and reader != "example")
        assert outcome_of(seed, reader, edit)[0] == ("refused" if refuses else "done"), reader


def test_every_kind_of_damage_is_drawn() -> None:
    import random

    from package_damage import drawn_edit

    rng = random.Random(0)
    drawn = [drawn_edit(rng) for _ in range(2000)]
    assert {edit["kind"] for edit in drawn} == set(DAMAGES)
    assert {edit["value"] for edit in drawn if edit["kind"] == "json"} == set(range(len(VALUES)))
