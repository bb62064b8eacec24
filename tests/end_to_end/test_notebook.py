"""examples/first.ipynb: a newcomer's walk has no step that fails, and its links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from repository import ROOT

NOTEBOOK = ROOT / "examples/first.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]


def test_its_cells_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_brief: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {number}", "exec"), names)
    said = capsys.readouterr().out
    assert "--dim names 'rows'" in said and "agrees with onnxruntime" in said and "times as long" in said
    assert "internal error" not in said and (tmp_path / "first-steps/first.modelc/manifest.json").exists()


def test_it_is_kept_without_results() -> None:
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in CELLS)


def test_its_links_lead_somewhere() -> None:
    text = "".join(line for cell in CELLS if cell["cell_type"] == "markdown" for line in cell["source"])
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links and all((NOTEBOOK.parent / link).exists() for link in links)
