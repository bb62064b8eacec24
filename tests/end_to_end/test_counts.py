"""bench --counts: the instructions of a run, which are the same every time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_package import NATIVE_TRIPLE, inputs_of, skip_without_tools, spec_of

from modelc.cli import main
from modelc.package import write_package
from modelc.verify import counts
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
@pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="Debian's qemu-user, which takes plugins, is not there")
def test_those_of_another_machine_are_counted_by_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_tools("aarch64-linux-gnu")
    package = write_package(spec_of("aarch64-linux-gnu"), tmp_path / "p.modelc").path
    count = instructions(package, inputs_of())
    assert LEAST < count < 1_000 * LEAST
    ended(0, "bench", package, "--counts", "--json")
    document = json.loads(capsys.readouterr().out)
    assert abs(document["instructions"][str(package)] - count) <= count // 100
    assert not document["engines"] and "cannot be timed on this machine" in document["notes"][0]


@pytest.mark.skipif(not NATIVE_TRIPLE.startswith("x86"), reason="the package is for this machine")
def test_what_nothing_counts_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_tools("aarch64-linux-gnu")
    package = write_package(spec_of("aarch64-linux-gnu"), tmp_path / "p.modelc").path
    monkeypatch.setattr(counts.shutil, "which", lambda name: None)
    ended(2, "bench", package, "--counts")
    assert "install Debian's qemu-user, which takes plugins" in capsys.readouterr().err
