"""A bar that only goes forward, with the share of the whole that is done; lines where nobody watches."""

from __future__ import annotations

import pytest

from modelc.cli.output import Voice
from modelc.cli.progress_bar import COMPILING, VERIFYING, Bar, Staged, bar, times

STAGES = (
    ("import", "m.onnx"),
    ("codegen", "0 of 4 kernels, 2 threads"),
    ("codegen", "2 of 4 kernels, 2 threads"),
    ("partition", "3 tasks stay in float32"),  # again: it does not go back
    ("codegen", "4 of 4 kernels, 2 threads"),
    ("verify", "2 sample(s) against ONNX Runtime"),
)


class Recorded(Bar):
    drawn = True

    def __init__(self) -> None:
        self.shares: list[float] = []

    def stands(self, done: int, total: int, text: str) -> None:
        self.shares.append(done / total)


def test_it_goes_forward() -> None:
    view = Recorded()
    staged = Staged(view)
    for stage, text in STAGES:
        staged.follow(stage, text)
    assert view.shares == sorted(view.shares) and view.shares[0] == 0.0
    half = COMPILING["codegen"] / 2
    assert 0.6 < view.shares[-1] < 1.0 and view.shares[2] - view.shares[1] == pytest.approx(half, abs=2e-3)


def test_shares_are_of_one_whole_whatever_they_are_given_in() -> None:
    view = Recorded()
    follow = Staged(view, {"timing": 3.0, "slower than OLD.modelc": 1.0}).follow
    for stage, text in (
        ("timing", "slice 20 of 40"),
        ("timing", "slice 40 of 40"),
        ("slower than OLD.modelc", "round 4 of 8"),
        ("slower than OLD.modelc", "round 9 of 24"),  # more are needed: it stays where it is
    ):
        follow(stage, text)
    assert view.shares == [0.375, 0.75, 0.875, 0.875]
    assert sum(COMPILING.values()) == pytest.approx(1.0) == sum(VERIFYING.values())


def test_the_estimate_moves_while_the_bar_stands_still() -> None:
    assert times(3.0, 0.01) == "0:03"
    assert times(10.0, 0.25) == "0:10, 0:30 left" and times(50.0, 0.25) == "0:50, 2:30 left"
    assert times(75.0, 1.0) == "1:15"


def test_lines_where_nobody_watches(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with bar() as view:
        staged = Staged(view)
        for stage, text in STAGES:
            staged.follow(stage, text)
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "import",
        "codegen",
        "partition",
        "verify",
    ]
    with bar() as view:
        Staged(view, VERIFYING, lines=False).follow("verify", "3 of 9 kernels judged")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(Voice, "quiet", True)
    with bar() as view:
        Staged(view).follow("import", "m.onnx")
    assert capsys.readouterr().err == ""
