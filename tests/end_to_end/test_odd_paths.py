"""Every verb, where paths have spaces and letters beyond ASCII, the locale is C without UTF-8 (LC_ALL=C, PYTHONUTF8=0),
and YAML and JSON have the newlines of Windows.

One process runs all commands in their order, for most need what one before them wrote."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import small_model as small
from docs_models import write_models
from repository import ROOT

from modelc.cli import group

FOLDER = "mit Leerzeichen, Ümläuten und 模型"
MODEL, PACKAGE, AGAIN, RECORDS = "Modell ü.onnx", "Paket ß.modelc", "wieder ø.modelc", "Messungen é.sqlite"
TARGET = ["--target", "Ziel ö.yaml"]
COMMANDS = {
    "inspect": ["inspect", MODEL],
    "inspect in JSON": ["inspect", MODEL, "--json"],
    "targets probe": ["targets", "probe", "-o", "Rechner ä.yaml"],
    "targets check": ["targets", "check", "Ziel ö.yaml"],
    "targets show": ["targets", "show", "Ziel ö.yaml"],
    "targets list": ["targets", "list"],
    "compile": [
        "compile",
        MODEL,
        "-o",
        PACKAGE,
        "--target",
        "Ziel ö.yaml",
        "--config",
        "Regeln ñ.yaml",
        "--inputs",
        "F ï.npz",
    ],
    "compile again": ["compile", MODEL, "-o", AGAIN, "--target", "Ziel ö.yaml", "--choices", "Wahl ç.json"],
    "inspect a package": ["inspect", PACKAGE],
    "verify": ["verify", PACKAGE, "--against", MODEL, "--check", "quick"],
    "run": ["run", PACKAGE, "--inputs", "F ï.npz", "--outputs", "G ï.npz"],
    "bench": ["bench", PACKAGE, "--against", "ort", "--model", MODEL, "--seconds", "0.1"],
    "profile": ["profile", PACKAGE],
    "diff": ["diff", PACKAGE, AGAIN, "--no-times"],
    "report": ["report", PACKAGE, "-o", "Seite å.html"],
    "reduce": ["reduce", "FAILING.onnx", "-o", "klein ë.onnx", "--seconds", "1"],
    "build": ["build", "Matrix č.yaml", "--cache", "Speicher š", "--jobs", "1"],
    "tune": ["tune", MODEL, "-o", "schnell ž.modelc", "--budget", "1", "--database", RECORDS],
    "database show": ["database", "show", "--database", RECORDS],
    "database export": ["database", "export", "-o", "Zeilen ý.jsonl", "--database", RECORDS],
    "database import": ["database", "import", "Zeilen ý.jsonl", "--database", "andere î.sqlite"],
    "database merge": ["database", "merge", RECORDS, "--database", "andere î.sqlite"],
    "database prune": ["database", "prune", "--failed", "--database", "andere î.sqlite"],
    "doctor": ["doctor"],
    "cache": ["cache", "show"],
    "help": ["help", "compile"],
}
MATRIX = f"""schema: 1
output: gebaut ő
targets: [x86-64-v3]
models:
  groesse: {{path: {MODEL}}}
"""
CONVERT = {  # what gets the newlines of Windows before a command: from a file, to another
    "compile again": [(f"{PACKAGE}/choices.json", "Wahl ç.json")],
    "database import": [("Zeilen ý.jsonl", "Zeilen ý.jsonl")],
}

CHILD = """
import contextlib, io, json, os, sys
from pathlib import Path

from modelc.cli import main
from modelc.python_worker import speak_utf8

speak_utf8()  # as modelc/__main__.py begins

def with_windows_newlines(source, target):
    if not Path(source).exists():  # the command before has failed
        return
    text = Path(source).read_bytes().replace(b"\\r\\n", b"\\n")
    Path(target).write_bytes(text.replace(b"\\n", b"\\r\\n"))

encoding = sys.getfilesystemencoding()
with open("commands.json", encoding="utf-8") as file:
    commands, convert = json.load(file)
results = {}
for name, words in commands.items():
    for source, target in convert.get(name, []):
        with_windows_newlines(os.fsdecode(source.encode()), os.fsdecode(target.encode()))
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding, errors, write_through=True)
        for errors in ("surrogateescape", "backslashreplace")  # Python's own in this locale
    )
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([os.fsdecode(word.encode()) for word in words])
        except SystemExit as end:
            code = end.code or 0
    results[name] = [code, *(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))]
with open("results.json", "w", encoding="utf-8") as file:
    json.dump(results, file)
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    return env | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How each command ended, by its name."""
    folder = tmp_path_factory.mktemp("odd") / FOLDER
    folder.mkdir()
    write_models(folder)
    (folder / "DECODER.onnx").rename(folder / MODEL)
    np.savez(folder / "F ï.npz", x=np.ones((1, 128), np.float32))
    target = (ROOT / "targets/x86-64-v3.yaml").read_text(encoding="utf-8")
    config = (ROOT / "configs/default.yaml").read_text(encoding="utf-8")
    for name, text in {"Ziel ö.yaml": target, "Regeln ñ.yaml": config, "Matrix č.yaml": MATRIX}.items():
        (folder / name).write_text(f"# Für alle\n{text}", encoding="utf-8", newline="\r\n")
    (folder / "commands.json").write_text(json.dumps([COMMANDS, CONVERT]))
    done = subprocess.run([sys.executable, "-c", CHILD], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return {name: Ended(*result) for name, result in results.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_verb_takes_such_paths(name: str, ended: dict[str, Ended]) -> None:
    code, out, err = ended[name]
    assert code == 0, f"{' '.join(COMMANDS[name])} ends with {code}\n{out}{err}"
    assert "internal error" not in err


def test_the_program_begins_so(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    shutil.copy(small.model(), tmp_path / FOLDER / MODEL)
    command = [sys.executable, "-m", "modelc", "inspect", f"{FOLDER}/{MODEL}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and "model small" in done.stdout, done.stderr


def test_no_verb_is_left_out() -> None:
    assert {words[0] for words in COMMANDS.values()} == set(group.commands)
