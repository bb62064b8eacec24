"""docs/questions.md: the sentences that it shows are those that the command prints."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from docs_models import write_models
from repository import ROOT

import modelc
from modelc.cli import main
from modelc.errors import ToolchainError
from modelc.package import emulators, find_toolchain, toolchain

PAGE = (ROOT / "docs/questions.md").read_text()
SHOWN = [block.strip() for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)]


def assert_shown(sentence: str) -> None:
    """Some block of the page is the sentence, where `...` stands for anything."""
    sentence = sentence.strip()
    patterns = [re.escape(block).replace(r"\.\.\.", ".*") for block in SHOWN]
    assert any(re.fullmatch(p, sentence, re.DOTALL) for p in patterns), f"docs/questions.md does not show {sentence!r}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of the docs, a package of MODEL.onnx, a damaged one, and a folder that is none."""
    folder = tmp_path_factory.mktemp("questions")
    write_models(folder)
    options = {"target": "x86-64-v3", "database": False, "verify": False}  # whose parameters have a known size
    modelc.compile(folder / "MODEL.onnx", output=folder / "p.modelc", **options)
    shutil.copytree(folder / "p.modelc", folder / "m.modelc")
    with open(folder / "m.modelc/params.bin", "ab") as params:
        params.write(b"x")
    (folder / "plain").mkdir()
    (folder / "plain/a").write_text("")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "compile TEXT.onnx --dim batch=1|2",
        "compile RANGE.onnx",
        "compile FAILING.onnx",
        "compile modelc.yaml",
        "compile MODEL.onnx --shape input=1,3,33",
        "compile MODEL.onnx --target cortex-a67",
        "compile MODEL.onnx --precision int8 --target cortex-a76",
        "compile MODEL.onnx -o plain",
        "verify p.modelc --against TEXT.onnx",
        "run m.modelc",
        "tune MODEL.onnx --budget x",
    ],
)
def test_sentences_are_those_that_are_printed(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stop:
        main(command.split())
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert_shown(said[said.index("modelc: ") :])


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda *_: None)
    monkeypatch.delenv("CC", raising=False)
    for ask in (lambda: find_toolchain("aarch64-linux-gnu"), lambda: emulators.emulator("aarch64-linux-gnu", ())):
        with pytest.raises(ToolchainError) as error:
            ask()
        assert_shown(f"modelc: {error.value}")


def test_what_the_runtime_says_of_a_cpu() -> None:
    (sentence,) = (block for block in SHOWN if block.startswith("the package needs the CPU feature"))
    source = re.sub(r'"\s*"', "", (ROOT / "modelc/runtime/modelc_check.c").read_text())
    assert sentence.replace("'avx512f'", "'%s'") in source
