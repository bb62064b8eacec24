"""scripts/same.py: what is the same is found so, and what is not is named."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from modelc.target import probe

pytest.importorskip("tvm")


def same(verb: str, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/same.py", verb, file, "--networks", "--operators", "A[bc]s*"]
    return subprocess.run(
        [*command, "--targets", "native", "raspberry-pi-5", "--measured"], capture_output=True, text=True
    )


def test_what_differs_is_named(tmp_path: Path) -> None:
    file = tmp_path / "same.json"
    assert same("record", file).returncode == 0
    recorded = json.loads(file.read_text())
    assert {"native Abs", "raspberry-pi-5 Abs"} <= set(recorded["packages"])
    assert all(re.fullmatch("[0-9a-f]{64}", sum_) for sum_ in recorded["packages"]["native Abs"].values())
    probe(fresh=True)  # other timings of the same machine
    unchanged = same("check", file)
    assert unchanged.returncode == 0 and unchanged.stdout.endswith("0 differ\n")
    recorded["packages"]["native Abs"]["manifest.json"] = "0"
    file.write_text(json.dumps(recorded))
    changed = same("check", file)
    assert changed.returncode == 1 and changed.stdout.startswith("native Abs: manifest.json\n")
