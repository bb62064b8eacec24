"""A slice of ONNX's node tests, and of the extremes of operators, through compiled packages."""

from __future__ import annotations

from pathlib import Path

import conformance
import fuzz_operators
import pytest

EXPECTED = Path(__file__).with_name("conformance.txt")
EVERY = 160  # of the expected tests one in so many, and as many of the others
ALWAYS = ("test_simple_rnn_reverse", "test_rnn_seq_length", "test_rotary_embedding", "test_affine_grid_2d")


def test_what_passed_still_passes() -> None:
    expected = conformance.read_expected(EXPECTED)
    assert len(expected) > 1000 and set(ALWAYS) <= set(expected) <= set(conformance.node_tests())
    results = list(conformance.conformance([*ALWAYS, *expected[::EVERY]], jobs=1))
    assert len(results) > 10
    assert {r.name: (r.outcome, r.reason) for r in results if r.outcome != "passed"} == {}


def test_what_does_not_pass_is_refused_in_a_sentence() -> None:
    others = sorted(set(conformance.node_tests()) - set(conformance.read_expected(EXPECTED)))
    results = list(conformance.conformance(others[::EVERY], jobs=1))
    assert results and len(results) == len(others[::EVERY])
    assert {r.name: (r.outcome, r.reason) for r in results if r.outcome in ("failed", "crashed")} == {}


def test_a_wrong_answer_fails_and_an_exception_is_a_crash(monkeypatch) -> None:
    right = conformance.run_packaged
    monkeypatch.setattr(conformance, "run_packaged", lambda *a: {n: x + 1 for n, x in right(*a).items()})
    (wrong,) = conformance.conformance(["test_relu"])
    monkeypatch.setattr(conformance, "run_packaged", lambda *a: 1 // 0)
    (crash,) = conformance.conformance(["test_relu"])
    assert (wrong.outcome, crash.outcome) == ("failed", "crashed")
    assert "ZeroDivisionError" in crash.reason and wrong.operator == "Relu"


def test_parts_are_all_tests_together(monkeypatch, capsys) -> None:
    taken: list[list[str]] = []
    monkeypatch.setattr(conformance, "conformance", lambda names, *rest: taken.append(list(names)) or iter(()))
    for k in (1, 2, 3):
        assert conformance.main(["--part", f"{k}/3"]) == 0
    every = [name for names in taken for name in names]
    assert sorted(every) == sorted(conformance.node_tests()) and max(map(len, taken)) < len(every) / 2
    for wrong in (["--part", "4/3"], ["--part", "1"], ["--part", "1/2", "--expected", "f", "--update"]):
        with pytest.raises(SystemExit):
            conformance.main(wrong)
    assert "expected" in capsys.readouterr().err


def test_operators_at_their_extremes(capsys) -> None:
    assert fuzz_operators.main(["--cases", str(len(fuzz_operators.FAMILIES)), "--jobs", "1"]) == 0
    assert "equal" in capsys.readouterr().out
