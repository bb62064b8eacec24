"""A bar that only goes forward, with the share of the whole that is done; lines where nobody watches."""

from __future__ import annotations

import pytest

from modelc.cli.output import Voice
from modelc.cli.progress_bar import Bar, Staged, bar

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
    assert 0.8 < view.shares[-1] < 1.0 and view.shares[2] - view.shares[1] == pytest.approx(0.35 / 2, abs=2e-3)


def test_the_shares_are_of_one_whole() -> None:
    assert sum(Staged.SHARES.values()) == pytest.approx(1.0)


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
    monkeypatch.setattr(Voice, "quiet", True)
    with bar() as view:
        Staged(view).follow("import", "m.onnx")
    assert capsys.readouterr().err == ""
