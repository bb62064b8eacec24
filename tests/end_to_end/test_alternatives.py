"""Other layouts and cuts are measured as alternatives: on machines that are functions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from library_of import library_of
from partition_models import Model, conv
from tuning_runs import contents

import modelc
from modelc.compile.choices import digest_of, read_choices_file
from modelc.compile.config import load_config, parse_config
from modelc.compile.pipeline import Run
from modelc.errors import ConfigError, VerificationError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.program import kind_of
from modelc.layout.convert import LayoutChoice
from modelc.measure import Measurement
from modelc.target import load_target
from modelc.tune import alternatives, command, selection
from modelc.tune.alternatives import Alternative, Alternatives
from modelc.tune.command import tune
from modelc.tune.end_to_end import Times
from modelc.tune.networks import Network, Subjects
from modelc.tune.search.cross import BEHIND, Cross
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.objectives import Weights, total
from modelc.tune.search.scheduler import Scheduler, Work
from modelc.tune.search.standing import Standing
from modelc.tune.search.tune import Search, Tuned

# --- weights and the scheduler --------------------------------------------------------------------------------------

TWO = Weights(np.array([[1.0, 2.0, 0.0, 0.0], [1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0]]), (0, 0, 1))


def test_a_network_takes_what_its_fastest_alternative_takes() -> None:
    seconds = np.array([1.0, 5.0, 3.0, 2.0])
    assert list(TWO.seconds(seconds)) == [7.0, 5.0] and TWO.leading(seconds) == (1, 2)
    assert list(TWO.seconds(np.array([1.0, 2.0, 3.0, 2.0]))) == [5.0, 5.0]
    assert total(TWO)(seconds, []) == 12.0


def test_rounds_go_to_the_tasks_of_the_leading_alternative() -> None:
    scheduler = Scheduler([Work(s) for s in (1.0, 5.0, 3.0, 2.0)], total(TWO))
    assert [round(float(s), 3) for s in scheduler.slopes()] == [1, 0, 3, 1]


def test_estimates_of_what_is_not_measured_are_off_as_those_of_what_is() -> None:
    scheduler = Scheduler([Work(1.0), Work(5.0), Work(3.0), Work(2.0, likeness="x")], total(TWO))
    scheduler.took(0, 2.0)
    assert list(scheduler.seconds) == [2.0, 10.0, 6.0, 4.0]
    scheduler.took(3, 1.0)
    assert list(scheduler.seconds) == [2.0, 10.0, 6.0, 1.0]


def test_an_alternative_leads_when_its_tasks_are_measured() -> None:
    scheduler = Scheduler([Work(s) for s in (1.0, 5.0, 3.0, 2.0)], total(TWO))
    assert scheduler.leading() == (0, 2) and list(scheduler.predicted()) == [11.0, 5.0]
    for task, seconds in enumerate((1.0, 5.0, 3.0, 2.0)):
        scheduler.took(task, seconds)
    assert scheduler.leading() == (1, 2) and list(scheduler.predicted()) == [7.0, 5.0]


def crossed(seconds: dict[int, list[float]], weights: Weights) -> dict[int, int]:
    """How many rounds each Task gets where it takes that after them, the last for ever."""
    scheduler = Cross([Work(1.0) for _ in weights.each.T], total(weights))
    rounds = dict.fromkeys(seconds, 0)
    for _ in range(99):
        task = scheduler.next()
        if task is None:
            return rounds
        scheduler.took(task, seconds[task][min(rounds[task], len(seconds[task]) - 1)])
        rounds[task] += 1
    raise AssertionError("it does not end")


def test_alternatives_that_stay_behind_are_dropped() -> None:
    """Task 0 is in all of them; 1 is replaced by 2 (as fast), 3 (too slow at first), 4 (too slow later)."""
    each = np.array([[9.0, 1, 0, 0, 0], [9.0, 0, 1, 0, 0], [9.0, 0, 0, 1, 0], [9.0, 0, 0, 0, 1]])
    slow, later = 1.01 + BEHIND[0], 1.01 + BEHIND[1]
    found = crossed({0: [1.0], 1: [1.0], 2: [1.0], 3: [slow, 0.1], 4: [later]}, Weights(each, (0, 0, 0, 0)))
    assert found == {0: 0, 1: len(BEHIND), 2: len(BEHIND), 3: 1, 4: 2}


def test_a_round_that_is_under_way_is_waited_for() -> None:
    scheduler = Cross([Work(1.0), Work(1.0)], total(Weights(np.eye(2), (0, 0))))
    assert {scheduler.next(), scheduler.next()} == {0, 1} and scheduler.next() is None
    scheduler.took(0, 1.0)
    assert scheduler.next() is None
    scheduler.took(1, 1.0)
    assert scheduler.next() in (0, 1)


# --- a whole network ------------------------------------------------------------------------------------------------


class Planted:
    """A measurer that is a function of Tasks: milliseconds of every Candidate."""

    lead, measuring = 4, ()

    def __init__(self, milliseconds: Callable[[Task], float]) -> None:
        self.milliseconds, self.waiting, self.numbers = milliseconds, list[tuple[int, Task, Candidate]](), 0
        self.tasks = dict[str, Task]()

    def __enter__(self) -> Planted:
        return self

    def __exit__(self, *arguments: object) -> None:
        assert not self.waiting or arguments

    def subject(self, task: Task, cold_bytes: int) -> Task:
        return task

    def submit(self, task: Task, candidate: Candidate, *, verify: bool) -> int:
        self.numbers += 1
        self.waiting.append((self.numbers, task, candidate))
        self.tasks[task.hash] = task
        return self.numbers

    def results(self) -> Iterator[tuple[int, Measurement]]:
        number, task, candidate = self.waiting.pop(0)
        seconds = 1e-3 * self.milliseconds(task)
        yield number, Measurement("ok", "", seconds, 0.001, 9, seconds, reference=candidate.key)


def split(task: Task) -> bool:
    """Whether something around the Task is stored split."""
    return any(p.name == "split" for b in task.buffers for p in b.layout.primitives)


@pytest.fixture(autouse=True)
def everything_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's estimates are."""
    for name in ("NEAR", "NEAR_CUTS"):
        monkeypatch.setattr(alternatives, name, 9.0)


@pytest.fixture
def network(tmp_path: Path, in_brief: None) -> Path:
    m = Model()
    x = m.node("Relu", conv(m, m.input("x", 1, 32, 6, 6), 32, 32))
    m.program(tmp_path, m.node("GlobalAveragePool", m.node("Relu", conv(m, x, 32, 32))))
    return tmp_path / "m.onnx"


@dataclass
class Ran:
    """What tune() gave and told, and what it would have made the package of."""

    result: command.TuneResult
    seen: list[Standing]
    arguments: list[Any]

    @property
    def joint(self) -> int:
        """Rounds of the joint stage."""
        return sum(one.stage == "joint" for one in self.seen)


def tuned(path: Path, monkeypatch, planted: Planted, times: Times, joint: float = 0.7, **more: object) -> Ran:
    seen, given = list[Standing](), list[Any]()
    monkeypatch.setattr(command, "_measurer", lambda *arguments: planted)
    monkeypatch.setattr(selection, "compared", lambda *arguments: times)
    monkeypatch.setattr(command, "_beside_ort", lambda *arguments: 0.0)
    monkeypatch.setattr(command, "made", lambda *arguments: given.extend(arguments) or selection.made(*arguments))
    settings = parse_config({**load_config().to_json(), "tune": {"joint": joint}}, "test")
    asked = {"database": False, "output": path.parent / "t.modelc", "budget": "150", "explorer": "random", **more}
    (found,) = tune(path, config=settings, watch=seen.append, **asked)
    return Ran(found, seen, given)


def layouts_of(package: Path) -> LayoutChoice:
    (found,) = read_choices_file(package).layouts
    return found


def is_split(choice: LayoutChoice) -> bool:
    return any("split" in str(layout) for layout in choice.layouts.values())


def test_layouts_that_win_are_shipped_and_rebuilt(network: Path, tmp_path: Path, monkeypatch) -> None:
    planted = Planted(lambda task: 0.1 if split(task) else 1.0)
    first = tuned(network, monkeypatch, planted, Times(3.0, 1.0, 1.0, 2.0), database=tmp_path / "d")
    found, seen = first.result, first.seen
    assert found.tuned and found.alternative and found.report is not None and found.report.passed
    assert {one.stage for one in seen} == {"joint", "loops"} and found.search.trials <= 150
    assert seen[-1].each[0].leading == found.alternative and seen[0].to_json()["stage"] == "joint"
    assert seen[-1].predicted_seconds < 0.6 * seen[-1].untuned_seconds
    assert [one.trials for one in found.search.log] == sorted(one.trials for one in found.search.log)
    assert is_split(layouts_of(tmp_path / "t.modelc")) and any("compile --choices" in note for note in found.notes)
    assert found.to_json()["alternative"] == found.alternative and json.dumps(found.to_json())
    modelc.compile(network, output=tmp_path / "r.modelc", choices=tmp_path / "t.modelc")
    assert contents(tmp_path / "r.modelc") == contents(tmp_path / "t.modelc")

    def nothing_timed(stage, run, specs, task_of, *more):  # finals that have been held once, above
        return {key: np.zeros((len(specs), stage.slices)) for key in task_of.values()}

    monkeypatch.setattr(selection, "step_times", nothing_timed)

    # it is not taken where it is slower as a whole than without tuning, or than in the untuned layouts; or wrong
    arguments = [*first.arguments[:3], None, *first.arguments[4:]]  # without the database, which is closed
    tried = list[str]()

    def written(self: selection._Outcome, network: Network) -> tuple[None, tuple[str, ...]]:
        tried.append(self.alternative.says)
        if len(tried) == 3:
            raise VerificationError("it is wrong")
        return None, ()

    monkeypatch.setattr(selection._Outcome, "written", written)
    for times in (Times(3.0, 2.9999, 1.0), Times(3.0, 2.0, 1.0, 1.5), Times(3.0, 1.0, 1.0)):
        monkeypatch.setattr(selection, "compared", lambda *arguments, times=times: times)
        made = selection.made(*arguments)
        assert made.alternative == "" and made.times.tuned_ms in (2.9999, 1.5, 0.0)
    assert tried == ["", "", found.alternative, ""] and any("it is wrong" in note for note in made.notes)

    # the same command goes on: what is judged is not judged again
    again = tuned(network, monkeypatch, planted, Times(3.0, 1.0, 1.0, 2.0), database=tmp_path / "d", budget="24")
    assert again.result.earlier_records == found.search.trials and again.joint < first.joint
    assert again.result.alternative


def test_without_a_joint_stage_loops_alone_are_searched(network: Path, monkeypatch) -> None:
    planted = Planted(lambda task: 0.1 if split(task) else 1.0)
    found = tuned(network, monkeypatch, planted, Times(1.0, 0.0, 1.0), joint=0.0, budget="40")
    assert found.result.alternative == "" and {one.stage for one in found.seen} == {"loops"}
    assert planted.tasks and not any(map(split, planted.tasks.values()))


def test_making_alternatives_counts_against_the_budget(network: Path, monkeypatch) -> None:
    planted, said, own = Planted(lambda task: 1.0), list[tuple[str, str]](), Alternatives.promising

    def slow(self: Alternatives, until: float, say: Callable[[str], None]) -> list[Alternative]:
        assert until - time.monotonic() < 0.5 * 0.7 * 1.0  # of a second, of which the joint stage has a share
        found = own(self, until + 600.0, say)
        time.sleep(1.0)
        return found

    monkeypatch.setattr(alternatives, "MOST", 1)
    monkeypatch.setattr(Alternatives, "promising", slow)
    ran = tuned(network, monkeypatch, planted, Times(1.0, 0.0, 1.0), budget="1s", progress=lambda *a: said.append(a))
    search = ran.result.search
    assert search.ended == "budget" and search.trials == 0 and not ran.result.tuned
    assert 1.0 <= search.preparing <= search.seconds and ran.result.to_json()["preparing_seconds"] >= 1.0
    assert any("alternative 1 of" in text for stage, text in said if stage == "joint")


def test_alternatives_that_there_is_no_time_for_are_said(network: Path) -> None:
    run = Run(network, digest_of(network), load_target("native"), load_config(), ({},))
    one = Alternatives(run, Network.of("m", run, network.parent / "p").base)
    some = one.promising()
    assert some and not one.notes
    assert one.promising(until=0.0) == [] and "no time" in one.notes[0]


def test_interrupted_before_anything_is_measured_nothing_is_written(network: Path, monkeypatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    planted = Planted(lambda task: 0.1 if split(task) else 1.0)
    monkeypatch.setattr(alternatives, "MOST", 1)
    with monkeypatch.context() as patched:
        patched.setattr(Alternatives, "made", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuned(network, patched, planted, Times(3.0, 1.0, 1.0))
    assert not (network.parent / "t.modelc").exists() and not planted.numbers

    monkeypatch.setattr(Alternatives, "combined", interrupted)  # between the stages: what is measured counts
    found = tuned(network, monkeypatch, planted, Times(3.0, 1.0, 1.0), budget="24").result
    assert found.search.ended == "interrupted" and found.search.trials and found.path.exists()


@pytest.mark.parametrize("place", ["as the search ends", "as the measurer ends"])
def test_interrupted_after_the_budget_a_package_is_written(network: Path, monkeypatch, place: str) -> None:
    interrupts, own = [KeyboardInterrupt()], Search.tuned

    def interrupt() -> None:
        if interrupts:
            raise interrupts.pop()

    class Ending(Planted):
        def __exit__(self, *arguments: object) -> None:
            if place == "as the measurer ends":
                interrupt()

    def ending(self: Search, *arguments: str) -> Tuned:
        if place == "as the search ends" and self.trials == 24:
            interrupt()
        return own(self, *arguments)

    monkeypatch.setattr(Search, "tuned", ending)
    tuning = tuned(network, monkeypatch, Ending(lambda task: 1.0), Times(1.0, 0.0, 1.0), joint=0.0, budget="24").result
    assert not interrupts and tuning.search.trials == 24 and tuning.path.exists()
    assert tuning.search.ended == ("interrupted" if place == "as the search ends" else "budget")


def test_attention_may_become_three_tasks(tmp_path: Path, monkeypatch, in_brief) -> None:
    m = Model()
    q, k, v = (m.input(name, 2, 32, 32) for name in "qkv")
    scores = m.node("MatMul", q, m.node("Transpose", k, perm=[0, 2, 1]))
    m.program(tmp_path, m.node("MatMul", m.node("Softmax", scores, axis=-1), v))
    planted = Planted(lambda task: 9.0 if kind_of(task) == "contraction" and len(task.blocks) > 1 else 1.0)
    found = tuned(tmp_path / "m.onnx", monkeypatch, planted, Times(3.0, 1.0, 1.0), budget="100").result
    assert found.tasks == 1 and scores in layouts_of(tmp_path / "t.modelc").cuts
    assert found.report is not None and found.report.passed
    assert len(read_choices_file(tmp_path / "t.modelc").tasks) == 3
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "r.modelc", choices=tmp_path / "t.modelc", verify=False)
    assert library_of(tmp_path / "r.modelc").read_bytes() == library_of(tmp_path / "t.modelc").read_bytes()


def test_alternatives_share_subjects(network: Path) -> None:
    run = Run(network, digest_of(network), load_target("native"), load_config(), ({},))
    one = Network.of("m", run, network.parent / "p")
    subjects = Subjects([one], "random", 0, 1, LearnedCost(0))
    every = [one.base, *Alternatives(run, one.base).promising()]
    assert len(every) > 2
    alone, together = subjects.tasks([[one.base]]), subjects.tasks([every])
    assert {id(s) for s in alone.subjects} <= {id(s) for s in together.subjects}
    keys = [s.key for s in together.subjects]
    assert len(set(keys)) == len(keys) and together.weights.owners == (0,) * len(every)
    for row, alternative in zip(together.weights.each, every, strict=True):
        counted = dict(zip(keys, row, strict=True))
        assert all(counted[key] == often for key, often in alternative.occurrences.items() if key in counted)
    seconds = np.arange(1.0, 1 + len(keys))
    assert total(together.weights)(seconds, []) == min(float(row @ seconds) for row in together.weights.each)


def test_layouts_that_are_measured_to_be_faster_are_combined(network: Path) -> None:
    run = Run(network, digest_of(network), load_target("x86-64-v3"), load_config(), ({},))
    own = Alternatives(run, Network.of("m", run, network.parent / "p").base)
    tasks = {key: task for alternative in (own.base, *own.promising()) for key, task in alternative.tasks.items()}
    found = own.combined({key: 1e-4 if split(task) else 1e-3 for key, task in tasks.items()}, ())
    assert found is not None and is_split(found.programs.layouts[0]) and "values stored otherwise" in found.says
    assert any(map(split, found.tasks.values())) and found.tasks.keys() != own.base.tasks.keys()
    assert own.combined({}, ()) is None  # where nothing is measured


def test_estimates_know_where_the_constants_of_their_network_lie(tmp_path: Path) -> None:
    """A Task of two networks is one of each: what the last cache holds of one it does not of the other."""
    target = load_target("x86-64-v4")
    (*nearer, last) = target.caches
    target = replace(target, caches=(*nearer, replace(last, bytes=2 * nearer[-1].bytes)))
    networks = []
    for name, widths in (("small", [16]), ("large", [16, 2 * nearer[-1].bytes // (4 * 64)])):
        m = Model()
        (tmp_path / name).mkdir()
        m.program(tmp_path / name, *(m.node("MatMul", m.input(f"x{n}", 8, 64), m.weight(64, n)) for n in widths))
        path = tmp_path / name / "m.onnx"
        run = Run(path, digest_of(path), target, load_config(), ({},))
        networks.append(Network.of(name, run, tmp_path / "p"))
    subjects = Subjects(networks, "random", 0, 1, LearnedCost(0))
    found = subjects.tasks([[network.base] for network in networks])
    assert [len(network.base.tasks) for network in networks] == [1, 2] and len(found.subjects) == 3
    sizes = sorted(space.target.cold_bytes for space in subjects.spaces.values())
    assert sizes == [64 * 16 * 4, *[networks[1].run.cold_bytes] * 2]
    assert networks[1].run.cold_bytes > target.caches[-1].bytes and networks[0].run.target.cold_bytes == 0


@pytest.mark.parametrize("share", [-0.1, 1, True, "0.3"])
def test_shares_that_are_none_are_refused(share: object) -> None:
    with pytest.raises(ConfigError, match=r"tune.joint is .*; expected a share from 0 to below 1"):
        parse_config({**load_config().to_json(), "tune": {"joint": share}}, "here")


def test_configurations_that_say_nothing_of_tuning_are_read() -> None:
    tree = {key: one for key, one in load_config().to_json().items() if key != "tune"}
    assert parse_config(tree, "here").tune == load_config().tune
