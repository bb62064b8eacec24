"""modelc tune of several models, and what it is to make small."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from onnx import helper

from modelc.cli import main
from modelc.compile.choices import read_choices_file
from modelc.database import Database
from modelc.errors import ConfigError
from modelc.tune.search.objectives import Aim, Weights, function_at
from modelc.tune.search.scheduler import Scheduler, Work

OWN = """
def worst(milliseconds):
    assert sorted(milliseconds) == ["a", "b"]
    with open(__file__ + ".log", "a") as log:
        log.write(f"{milliseconds['a']} {milliseconds['b']}\\n")
    return max(milliseconds.values())


def nan(milliseconds):
    return float("nan")


def fails(milliseconds):
    return milliseconds["c"]


def leaves(milliseconds):
    raise SystemExit(0)


number = 3
"""


def networks(folder: Path) -> list[str]:
    """Two models: a has one product, b has an equal one and a larger one, over a dimension of its own."""
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((48, 32), (64, 80)))
    first, second = (helper.make_node("MatMul", [f"x{n}", m], [f"y{n}"]) for n, m in ((0, "w"), (1, "v")))
    small.save(folder / "a.onnx", [first], {"x0": [20, 48]}, {"y0": [20, 32]}, {"w": w})
    every = {"x0": [20, 48], "x1": ["rows", 64]}, {"y0": [20, 32], "y1": ["rows", 80]}
    small.save(folder / "b.onnx", [first, second], *every, {"w": w, "v": v})
    (folder / "own.py").write_text(OWN)
    return [str(folder / "a.onnx"), str(folder / "b.onnx")]


def tune(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, object]]:
    with pytest.raises(SystemExit) as stop:
        main(["tune", *map(str, arguments), "--explorer", "random", "--json"])
    assert not stop.value.code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_models_that_share_a_task_tune_it_once(tmp_path: Path, capsys, in_brief) -> None:
    models, out, own = networks(tmp_path), tmp_path / "out", tmp_path / "own.py"
    more = "--dim", "rows=17", "--database", tmp_path / "d", "-o", out, "--objective", f"{own}:worst"
    *rounds, a, b = tune(capsys, *models, "--budget", 20, *more)
    assert [one["event"] for one in rounds] == ["round"] * len(rounds) and len(rounds) == 2
    assert [one["model"] for one in (a, b)] == ["a", "b"] and [one["tasks"] for one in (a, b)] == [1, 2]
    assert sorted(one["models"] for one in rounds) == [["a", "b"], ["b"]], "a Task that both have gets one round"
    for one in rounds:
        parts = {each["model"]: each["predicted_seconds"] for each in one["each"]}
        assert one["predicted_seconds"] == pytest.approx(sum(parts.values())) and parts["a"] < parts["b"]
    assert len((tmp_path / "own.py.log").read_text().splitlines()) > 2
    shared = set(read_choices_file(out / "a.modelc").tasks)
    assert len(shared) == 1 and shared < set(read_choices_file(out / "b.modelc").tasks)
    with Database(tmp_path / "d", write=False) as database:
        records = list(database.records())
    assert len(records) == 20 and {one.task for one in records if one.untuned} >= shared
    assert sum(one.untuned for one in records) == 2, "the shared task was tuned twice"
    files = sorted(os.listdir(out))
    assert files == ["a.modelc", "a.tuning.json", "b.modelc", "b.tuning.json"]
    assert all(one["verification"]["passed"] and one["ort_ms"] > 0 for one in (a, b))


def test_a_goal_that_is_met_needs_no_measurement(tmp_path: Path, capsys, in_brief) -> None:
    models, more = networks(tmp_path), ("--no-database", "-o", tmp_path / "a.modelc")
    (found,) = tune(capsys, models[0], "--objective", "targets", "--goal", 1e6, *more)
    assert (found["ended"], found["measurements"], found["tuned"]) == ("nothing left", 0, False)


def test_each_objective_asks_for_something_else() -> None:
    weights, seconds = Weights.of(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])), np.array([2.0, 2.0, 1.0])

    def slopes(aim: Aim) -> list[float]:
        work = [Work(float(one)) for one in seconds]
        return [round(float(s), 3) for s in Scheduler(work, aim.of(["a", "b"])(weights, seconds)).slopes()]

    assert slopes(Aim()) == [1, 1, 1]
    assert slopes(Aim("targets", {"a": 5e3, "b": 0.5e3})) == [0, 0, 1]
    assert slopes(Aim("geomean")) == pytest.approx([0.125, 0.125, 0.5], rel=0.02)
    for patience, left in ((2, 0), (3, 1)):
        objective = Aim("early-stop", patience=patience).of(["a", "b"])(weights, seconds)
        scheduler = Scheduler([Work(float(one)) for one in seconds], objective)
        for _ in range(3):
            scheduler.took(0, 2.0)
        assert [round(float(s), 3) for s in scheduler.slopes()] == [left, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--objective", "speed"], "there is no objective 'speed'; expected latency, targets, geomean, early-stop, or"),
        (["--objective", "targets"], "needs a goal for each model: there is none for 'a'"),
        (["--objective", "targets", "--goal", "a=1", "--goal", "c=1"], "there is none for 'b'"),
        (["--objective", "targets", "--goal", "a=1", "--goal", "b=1", "--goal", "c=1"], "there is no model 'c'"),
        (["--objective", "targets", "--goal", "3"], "expected MODEL=MILLISECONDS once for each model"),
        (["--objective", "targets", "--goal", "a=-1"], "expected MODEL=MILLISECONDS once for each model"),
        (["--objective", "targets", "--goal", "a=0", "--goal", "b=1"], "the goal for a is 0.0 ms"),
        (["--goal", "a=1", "--goal", "b=1"], "goals are for the objective targets, and this is latency"),
        (["--patience", "3"], "patience is for the objective early-stop, and this is latency"),
        (["--objective", "early-stop", "--patience", "0"], "--patience"),
        (["--objective", "none.py:f"], "the objective none.py:f cannot be loaded: FileNotFoundError"),
        (["--objective", "no.such.module:f"], "cannot be loaded: ModuleNotFoundError"),
        (["--objective", "own.py:number"], "own.py has no function 'number'"),
        (["--objective", "own.py:fails"], "failed: KeyError: 'c'"),
        (["--objective", "own.py:leaves"], "failed: RuntimeError: it called sys.exit(0)"),
        (["--objective", "own:nan"], "is nan; expected a finite number"),
        (["--dim", "columns=3"], "--dim names 'columns', which is no dimension of the model's inputs"),
        (["a.onnx"], "two models are called a"),
        (["-o", "no/such/folder"], "the folder no/such/folder for the packages cannot be made"),
        (["-o", "a.onnx"], "a.onnx"),
    ],
)
def test_refusals_are_sentences(tmp_path: Path, monkeypatch, capsys, arguments: list[str], sentence: str) -> None:
    networks(tmp_path)
    monkeypatch.chdir(tmp_path)
    if "rows" not in str(arguments) and "columns" not in str(arguments):
        arguments = [*arguments, "--dim", "rows=17"]
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["tune", "a.onnx", "b.onnx", "--no-database", *arguments])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and sentence in said.err and "Traceback" not in said.err
    assert sorted(set(os.listdir(tmp_path)) - {"__pycache__"}) == before


def test_a_function_is_found_in_a_module_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine_for_tuning.py").write_text("def f(ms):\n    return sum(ms.values())\n")
    assert function_at("mine_for_tuning:f")({"a": 1.0, "b": 2.0}) == 3.0
    with pytest.raises(ConfigError, match="has no function 'g'"):
        function_at("mine_for_tuning:g")
