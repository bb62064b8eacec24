"""The scripts that measure what tuning gains: their sums, their file, and what they hand to others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ablation_search
import ansor_ops
import compare_metaschedule
import numpy as np
import pytest
import tune_networks
import tvm
from kept_rows import Kept
from made_up_machines import MATMULS, subjects_of
from space_tasks import tasks_of
from three_ways import host_target

from modelc.codegen.kernels import llvm_machine
from modelc.ir.block import Block, Task
from modelc.measure import Measurement
from modelc.measure.data import difference, draw, run_task
from modelc.policy import Policy
from modelc.tune.networks import Tasks
from modelc.tune.search.objectives import Weights, total
from modelc.tune.search.population import Space
from modelc.tune.search.scheduler import Scheduler, Work


def row(network: str, budget: str, gain: float, **ratios: float) -> dict[str, Any]:
    speed = {"measurements": 9, "measurements_per_second": 8.5, "search_share": 0.1}
    ms = {"untuned": gain, "modelc": 1.0}
    return {"network": network, "budget": budget, "gain": gain, "ratio": ratios, "ms": ms, **speed}


def test_what_is_said_of_networks() -> None:
    rows = [row("a", "5m", 1.2, ort=2.0, openvino=1.0), row("b", "5m", 1.25, ort=4.0), row("a", "30m", 1.25, ort=2.0)]
    assert tune_networks.summary(rows, ["5m", "30m"]) == [
        "5m: gain 1.225 (least 1.200) of 2; beside the faster peer 2.000 (least 1.000)",
        "30m: gain 1.250 (least 1.250) of 1; beside the faster peer 2.000 (least 2.000)",
        "a: with 5m 96.0% of the speed with 30m",
    ]
    table = tune_networks.figures(rows, ["ort", "openvino"])
    assert table.row_count == 3 and list(table.columns[9].cells) == ["1.000", "", ""]


def test_rows_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    file, about = tmp_path / "rows.json", {"budget": "5"}
    Kept.at(file, about).add({"task": "a", "x": 1})
    assert Kept.at(file, about).find("a") == {"task": "a", "x": 1}
    assert json.loads(file.read_text())["about"] == about


def test_an_operator_is_tuned_from_end_to_end(tmp_path: Path, in_brief: None, in_process: Callable[..., Any]) -> None:
    file = tmp_path / "rows.json"
    options = ["NRM-1-b1", "--budget", "4", "--seconds", "0.05", "--against", "ort", "--json", file]
    first = in_process(tune_networks.main, *options)
    assert first.returncode == 0, first.stderr
    (found,) = json.loads(file.read_text())["rows"]
    assert found["measurements"] == 4 and set(found["ratio"]) == {"ort"} and found["gain"] > 0
    assert found["ms"].keys() == {"modelc", "untuned", "ort"} and "NRM-1-b1" in first.stdout


def task_named(case: str, tmp_path: Path) -> Task:
    model = tmp_path / f"{case}.onnx"
    proto, _ = next(one for one in ansor_ops.cases() if one.name == case).build()
    model.write_bytes(proto.SerializeToString())
    (found,) = tasks_of(model, "f32", host_target())
    return found.task


def test_others_get_the_same_computation(tmp_path: Path) -> None:
    for case in ("GMM-1-b1", "DEP-4-b1"):
        task = task_named(case, tmp_path)
        assert any(isinstance(b, Block) and b.reduction for b in task.blocks)
        kernel = tvm.compile(compare_metaschedule.function_of(task), target=llvm_machine(host_target()))
        inputs = draw(task)
        outputs = {n: np.zeros(task.buffer(n).shape, task.buffer(n).dtype) for n in task.outputs}
        arrays = [tvm.runtime.tensor(a) for a in (*(inputs[n] for n in task.inputs), *outputs.values())]
        kernel(*arrays)
        (found,) = (array.numpy() for array in arrays[len(task.inputs) :])
        (wanted,) = run_task(task, inputs).values()
        assert not difference(found, wanted), case


def test_parts_of_the_search_are_left_out(tmp_path: Path) -> None:
    whole = Space(task_named("C2D-4-b1", tmp_path), host_target(), Policy(), 1)
    limited = ablation_search.Limited(whole)
    assert len(limited.sketches) == 1 < len(whole.sketches) and 1 < limited.size < whole.size
    rows = limited.random(20, np.random.default_rng(0))
    assert len(rows) and (rows[:, 0] == 0).all() and limited.legal(rows).all()
    assert limited.individual(limited.constructed(1)[0]).candidate.key
    turns = ablation_search.InTurn([Work(1.0), Work(1e-6)], total(np.ones((1, 2))))
    given = []
    for _ in range(6):
        number = turns.next()
        assert number is not None
        turns.took(number, 1.0)
        given.append(number)
    assert sorted(given) == [0, 0, 0, 1, 1, 1] and turns.next({0, 1}) is None


def curve(way: str, seed: int, speed: float, *points: list[float]) -> dict[str, Any]:
    return {"way": way, "seed": seed, "speed": speed, "points": [*points]}


def test_curves_are_drawn_with_bands_and_compared() -> None:
    evolve = [curve("evolve", seed, 1.2 + 0.1 * seed, [16, 2.0, 1.1], [32, 4.0, 1.2 + 0.1 * seed]) for seed in range(3)]
    random = [curve("random", 0, 1.25, [24, 3.0, 1.25]), curve("random", 1, 1.1, [32, 3.0, 1.1])]
    rows = {"net": [*evolve, *random], "other": evolve[:2]}
    assert ablation_search.table(rows, 3) == [
        "| way | net | other | together | faster than evolve |",
        "| --- | --- | --- | --- | --- |",
        "| evolve | 1.300 (1.200 to 1.400) | 1.250 (1.200 to 1.300) | 1.250 (1.200 to 1.300) |  |",
        "| random | 1.175 (1.100 to 1.250) |  |  | 1 of 2 |",
    ]
    bands = {(row["way"], row["measurements"]): row for row in ablation_search.bands(rows["net"])}
    assert bands["evolve", 24]["median"] == 1.1 and bands["random", 16]["high"] == 1.0
    last = bands["random", 32]
    assert (last["median"], last["evolve"]) == (1.175, 1.3) and last["low"] < 1.175 < last["high"]
    drawn = ablation_search.drawn(rows["net"], "net")
    assert drawn.count('aria-roledescription="area mark"') == 2 and ">random<" in drawn


def test_what_a_search_ends_with_is_measured_once_more_and_once_for_all() -> None:
    """Candidates that were lucky in a search count as they are measured again."""

    class Again:
        submitted = 0

        def subject(self, task: Task, cold_bytes: int) -> Task:
            return task

        def submit(self, *arguments: object, **more: object) -> int:
            self.submitted += 1
            return self.submitted

        def results(self) -> Iterator[tuple[int, Measurement]]:
            yield from ((k + 1, took(0.8)) for k in range(self.submitted))

    def took(milliseconds: float) -> Measurement:
        return Measurement("ok", "", 1e-3 * milliseconds, 0.0, 9, 1e-3)

    subjects = subjects_of(MATMULS)
    for subject in subjects:
        subject.explorer.skip(subject.untuned)
        (other,) = subject.explorer.propose(1)
        subject.measured = [(subject.untuned, took(1.0)), (other.candidate, took(0.5))]
    measurer, before = Again(), {ablation_search.name_of(subjects[0]): 1.25}
    new = ablation_search.measured_again(subjects, measurer, before)
    assert new == {ablation_search.name_of(subjects[1]): 0.8} and measurer.submitted == 1
    weights = Weights.of(np.array([[3.0, 1.0]]))
    scheduler = Scheduler([Work(1e-3), Work(1e-3)], total(weights))
    for number, subject in enumerate(subjects):
        scheduler.took(number, subject.seconds)
    speed = ablation_search.speed_of(Tasks((), tuple(subjects), weights), scheduler, {**before, **new})
    assert speed == pytest.approx((3 + 1) / (3 * 1.25 + 0.8))
