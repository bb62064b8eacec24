"""modelc tune: what it refuses, and that the package is made of what was found."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import test_pipeline_model as small
from onnx import helper

import modelc
from modelc import tuning
from modelc.choices import read_choices_file
from modelc.cli import main
from modelc.ir.candidate import Candidate
from modelc.search.population import key_of
from modelc.search.tune import Subject


def network(folder: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((48, 32)).astype(np.float32)
    return small.save(
        folder / "m.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [20, 48]},
        {"y": [20, 32]},
        {"w": weights},
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", "soon"], "the budget is 'soon'; expected a time above 0"),
        (["--budget", "0"], "the budget is '0'"),
        (["--explorer", "grid"], "there is no explorer 'grid'; the explorers are evolve, random, construct"),
        (["--target", "raspberry-pi-4"], "tuning measures"),
        (["--target", "nothing"], "nothing"),
        (["--threads", "0"], "--threads"),
        (["-o", "/proc/none/p"], "cannot write in /proc/none"),
    ],
)
def test_refusals_are_sentences_and_come_first(tmp_path, monkeypatch, capsys, arguments, sentence) -> None:
    path = network(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(path), *arguments])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and sentence in said.err and "Traceback" not in said.err
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_the_package_is_made_of_what_was_found(tmp_path, monkeypatch, capsys) -> None:

    def other(self: Subject) -> Candidate:
        """Whatever is not the untuned Candidate, so that there is something to build and to compare."""
        return next((c for c, m in self.measured if m.ok and c is not self.untuned), self.untuned)

    monkeypatch.setattr(Subject, "best", property(other))
    monkeypatch.setattr(tuning, "LEAST_GAIN", -100.0)
    monkeypatch.setattr(tuning, "COMPARED_SECONDS", 0.1)
    path = network(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(path), "--budget", "3", "--explorer", "random", "--json", "-o", str(tmp_path / "t.modelc")])
    found = json.loads(capsys.readouterr().out)
    assert not stop.value.code and found["tuned"] and found["changed_tasks"] == found["tasks"] == 1
    assert found["measurements"] == 3 and found["tuned_ms"] > 0 and found["verification"]["passed"]
    modelc.compile(path, output=tmp_path / "u.modelc", verify=False)
    tuned, untuned = (read_choices_file(tmp_path / name / "choices.json").tasks for name in ("t.modelc", "u.modelc"))
    assert tuned.keys() == untuned.keys() and all(key_of(tuned[k]) != key_of(untuned[k]) for k in tuned)
