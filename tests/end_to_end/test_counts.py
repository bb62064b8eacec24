"""bench --counts: the instructions of a run, which are the same every time."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_package import NATIVE_TRIPLE, inputs_of, skip_without_tools, spec_of

from modelc.cli import main
from modelc.package import write_package
from modelc.verify.counts import instructions

LEAST = 40 * 64  # a run has more instructions than numbers


def ended(code: int, *arguments: object) -> None:
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    assert ending.value.code == code


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_instructions_of_a_run_are_counted(tmp_path: Path) -> None:
    package = write_package(spec_of(), tmp_path / "p.modelc").path
    first, second = (instructions(package, inputs_of()) for _ in range(2))
    assert abs(first - second) <= first // 100 and LEAST < first < 1_000 * LEAST


@pytest.mark.skipif(not NATIVE_TRIPLE.startswith("x86"), reason="the package is for this machine")
def test_what_nothing_counts_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_tools("aarch64-linux-gnu")
    package = write_package(spec_of("aarch64-linux-gnu"), tmp_path / "p.modelc").path
    ended(2, "bench", package, "--counts")
    assert "install a qemu-user that is built with --enable-plugins" in capsys.readouterr().err
