"""Counts of instructions beside ONNX Runtime for AArch64: what is missing is said, and a board is described to it."""

from __future__ import annotations

import shutil
import sys
import tarfile
from pathlib import Path

import count_boards
import pytest

from modelc.errors import ToolchainError
from modelc.package.toolchain import find_toolchain


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["count_boards.py", *map(str, arguments)])
    try:
        return count_boards.main()
    except SystemExit as stop:
        return int(str(stop.code))


def test_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.onnx"
    assert ended(monkeypatch, model) == 2 and f"there is no file {model}" in capsys.readouterr().err
    model.write_bytes(b"")
    assert ended(monkeypatch, model, "--cpu", "cortex-m4") == 2
    assert "expected cortex-a72, cortex-a76" in capsys.readouterr().err
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert ended(monkeypatch, model, "--library", model) == 2
    assert "install Debian's qemu-user" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(count_boards, "ROOT", tmp_path)
    assert ended(monkeypatch, model, "--library", model) == 2
    assert "install Debian's libstdc++6-arm64-cross" in " ".join(capsys.readouterr().err.split())


def test_a_package_without_the_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "p.tgz", "w:gz"):
        pass
    monkeypatch.setattr(count_boards, "download_npm", lambda name, version, folder: tmp_path / "p.tgz")
    with pytest.raises(ToolchainError, match=r"onnxruntime-node@1.2 has no package/bin/.*: say another --version"):
        count_boards.library_of("1.2", tmp_path)
    assert not list(tmp_path.glob("*.so"))


def test_onnx_runtime_is_told_of_a_board_of_one_core(tmp_path: Path) -> None:
    try:
        find_toolchain(count_boards.TRIPLE)
    except ToolchainError as error:
        pytest.skip(str(error))
    peer = count_boards.Peer.of(tmp_path / "libonnxruntime.so", tmp_path)
    assert peer.program.read_bytes()[:4] == b"\x7fELF"
    for cpu, part, dots in (("cortex-a72", "0xd08", False), ("cortex-a76", "0xd0b", True)):
        said = (peer.root(cpu) / "proc/cpuinfo").read_text()
        assert f"CPU part\t: {part}\n" in said and said.count("processor") == 1 and ("asimddp" in said) is dots
