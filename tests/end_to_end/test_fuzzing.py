"""What the fuzzers share tells the ways apart in which a case can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from forked import KINDS, Case, Limits, Outcome, Wrong, run_case, run_cases
from fuzzing import Report

from modelc.compile.minimise import minimised
from modelc.errors import ModelError

LIMITS = Limits(seconds=60.0, bytes=256 << 20)


def raises(error: BaseException) -> Callable[[], str]:
    def run() -> str:
        raise error

    return run


def exits(code: int, said: str) -> Callable[[], str]:
    def run() -> str:
        print(said, file=sys.stderr)
        sys.exit(code)

    return run


def many_bytes() -> str:
    return str(len(bytearray(1 << 30)))


def internal() -> str:
    error = ModelError("a bug")
    error.exit_code = 3  # type: ignore[misc]
    raise error from ZeroDivisionError()


@pytest.mark.parametrize(
    ("run", "kind", "signature"),
    [
        (lambda: "fine", "done", "fine"),
        (raises(ModelError("expected x")), "refused", "ModelError"),
        (exits(0, ""), "done", "exit code 0"),
        (exits(2, "modelc: expected x"), "refused", "exit code 2"),
        (exits(3, "modelc: node 'x' failed"), "exception", "exit code 3: modelc: node * failed"),
        (raises(KeyError("x")), "exception", "KeyError in "),
        (internal, "exception", "ZeroDivisionError"),
        (raises(Wrong("3 files are left in /somewhere")), "wrong", "* files are left in *"),
        (lambda: str(os.kill(os.getpid(), signal.SIGSEGV)), "signal", "SIGSEGV in "),
        (lambda: str(os._exit(7)), "signal", "ended without an answer"),
        (lambda: str(time.sleep(1000)), "hang", "in "),
        (many_bytes, "memory", "MemoryError in "),
    ],
)
def test_every_end_is_told(run: Callable[[], str], kind: str, signature: str) -> None:
    outcome = run_case(Case("case", run), replace(LIMITS, seconds=1.0) if kind == "hang" else LIMITS)
    assert kind in KINDS and outcome.kind == kind and outcome.signature.startswith(signature), outcome
    assert outcome.good == (kind in ("done", "refused")) and outcome.seconds < 600 and outcome.bytes > 1 << 20


def test_what_a_case_started_ends_with_it(tmp_path: Path) -> None:
    def run() -> str:
        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pid").write_text(str(child.pid))
        return "started"

    assert run_case(Case("case", run), LIMITS).kind == "done"
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    for _ in range(3000):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    raise AssertionError("the process is still there")


def test_cases_run_side_by_side_and_are_counted_once_by_signature(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(seed=5)
    cases = [Case(f"{k}", lambda k=k: str(1 // (k % 2)), k) for k in range(6)]
    new = [case.name for case, outcome in run_cases(iter(cases), LIMITS, jobs=3) if report.add(case, outcome)]
    found = report.to_json()
    assert len(new) == 1 and found["cases"] == 6 and found["kinds"]["exception"] == 3 and found["kinds"]["done"] == 3
    [row] = found["failures"]
    assert row["count"] == 3 and row["about"] in (0, 2, 4) and row["signature"].startswith("ZeroDivisionError in ")
    assert report.finish() == 1 and "3 x exception: ZeroDivisionError" in capsys.readouterr().out
    clean = Report(seed=5)
    assert not clean.passed  # nothing was tried
    clean.add(cases[1], Outcome("done", ""))
    assert clean.passed and clean.finish() == 0


def test_a_failing_case_is_made_as_small_as_it_can_be() -> None:
    asked = 0

    def fails(parts: Sequence[int]) -> bool:
        nonlocal asked
        asked += 1
        return {3, 17} <= set(parts)

    assert minimised(range(64), fails) == [3, 17] and asked < 64
