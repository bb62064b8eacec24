"""What each verb prints with --json has a schema and a version, and is what the published schema says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from documents import FOLDERS, NAMES, check_documents
from onnx import helper

from modelc.cli import main
from modelc.verify.slower import Slower, SlowerKernels

MODEL, PACKAGE, GONE = "net.onnx", "net.modelc", "gone.onnx"
MATRIX = """schema: 1
targets: [x86-64-v3]
models: {net: {path: net.onnx}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("json")
    weights = {"w": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    small.save(made / MODEL, nodes, {"x": [4, 16]}, {"y": [4, 8]}, weights)
    (made / "modelc.yaml").write_text(MATRIX)
    return made


@pytest.fixture
def documents(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., list[str]]:
    """The schemas of what a command line prints with --json in the folder."""
    monkeypatch.chdir(folder)

    def printed(*arguments: str) -> list[str]:
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--json"])
        out = capsys.readouterr().out
        names = check_documents(out)
        assert not stop.value.code or (names == ["error"] and arguments[1] == GONE), out
        return names

    return printed


def test_verbs_print_what_their_schemas_say(documents, monkeypatch, tmp_path) -> None:
    """Here those that are quick; where a test prints another's document, conftest.py compares that too."""
    seen = [
        *documents("compile", MODEL, "-o", PACKAGE),
        *documents("inspect", MODEL),
        *documents("inspect", PACKAGE),
        *documents("inspect", GONE),
        *documents("run", PACKAGE),
        *documents("diff", PACKAGE, PACKAGE, "--no-times"),
        *documents("build", "--dry-run"),
        *documents("doctor"),
        *documents("cache", "show"),
        *documents("targets", "list"),
        *documents("targets", "show", "cortex-a76"),
        *documents("targets", "key"),
    ]
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path / "cache"))
    seen += documents("cache", "clear")
    measuring = {"bench", "profile", "verify", "tune", "reduce", "report", "targets-check"}
    database = {f"database-{part}" for part in ("show", "export", "import", "best", "prune")}
    assert set(NAMES) - set(seen) == {"modelc", *measuring, *database}


def test_what_is_slower_fits_the_schema() -> None:
    verdict = Slower(0.1, 0.01, 0.03, True, 3)
    verdicts = {"slower": verdict, "kernel-slower": SlowerKernels(9, {"conv": verdict}, {"conv": 0.5}, 0.05)}
    judged = {"OLD.modelc": {what: verdict.to_json() for what, verdict in verdicts.items()}}
    whole = {"schema": "bench", "version": 1, "threads": 1, "inputs": {}, "notes": [], "engines": {}, "ratio": {}}
    assert check_documents(json.dumps({**whole, "fail_if": judged, "instructions": {"NEW.modelc": 10}})) == ["bench"]


def test_every_schema_names_itself() -> None:
    for name, path in NAMES.items():
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"urn:modelc:schema:{name}:1", path
    assert all(folder.is_dir() for folder in FOLDERS)
