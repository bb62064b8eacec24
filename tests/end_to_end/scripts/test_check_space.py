"""Random points of every Sketch of a few Tasks compute what the interpreter does; the script that checks thousands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from repository import ROOT

NETWORKS = ("GMM-1-b1", "C2D-4-b1", "DEP-4-b1", "NRM-1-b1", "TBS-3-b1", "bytes-64")
POINTS = 4


def test_random_points_of_all_kinds_are_right(tmp_path: Path) -> None:
    summary = tmp_path / "found.json"
    command = [sys.executable, ROOT / "scripts/check_space.py", *NETWORKS, "--points", str(POINTS), "--json", summary]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(summary.read_text())
    assert {row["kind"] for row in found["kinds"]} >= {"contraction", "winograd", "rows", "attention"}
    assert found["points"] >= POINTS and found["wrong"] == []
    assert found["right"] >= 0.9 * found["points"], found["refused"]
