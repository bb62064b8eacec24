"""modelc tune: what it refuses, and that the package is made of what was found."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from database_files import run
from modelc_process import modelc as modelc_in
from tuning_runs import contents, network, stored

import modelc
from modelc.cli import main
from modelc.compile.choices import digest_of, read_choices_file
from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.database import Conditions, Database, Record, code_version, store, whole
from modelc.database.compare import apart
from modelc.database.recorded import Recorded
from modelc.errors import TargetError, ToolchainError
from modelc.ir.candidate import Candidate
from modelc.measure import Measurement
from modelc.package import emulator, find_toolchain
from modelc.policy import Policy
from modelc.target import load_target
from modelc.target.family import priced_as_another
from modelc.tune import command, selection
from modelc.tune.search.population import Space


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--budget", "soon"], "the budget is 'soon'; expected a time above 0"),
        (["--budget", "0"], "the budget is '0'"),
        (["--explorer", "grid"], "there is no explorer 'grid'; the explorers are evolve, ppo, random"),
        (["--target", "raspberry-pi-4"], "tuning measures"),
        (["--runner", "no-such-program -x"], "there is no such program; expected local"),
        (["--runner", "dask://here"], "expected dask://HOST:PORT"),
        (["--runner", "ssh://"], "expected ssh://USER@HOST:PORT/FOLDER"),
        (["--runner", "ssh://board"], "kernels run on ssh://board: name the target that it is by --target"),
        (["--runner", "'"], "cannot be read: No closing quotation"),
        (["--runner", ""], "there is no such program"),
        (["--target", "nothing"], "nothing"),
        (["--threads", "0"], "--threads"),
        (["-o", "/proc/none/p"], "cannot write in /proc/none"),
    ],
)
def test_refusals_are_sentences_and_come_first(tmp_path, monkeypatch, capsys, arguments, sentence) -> None:
    path = network(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(path), "--no-database", *arguments])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and sentence in said.err and "Traceback" not in said.err
    assert os.listdir(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize(("runner", "why"), [("local", "measures"), ("env", "ends with verifying the package here")])
def test_features_that_this_machine_lacks_are_refused_first(tmp_path, monkeypatch, runner: str, why: str) -> None:
    target = load_target("native")
    monkeypatch.setattr(command, "lacking", lambda features: ["quantum-avx"])
    with pytest.raises(TargetError, match=rf"machine lacks \(quantum-avx\): tuning {why}, so"):
        command.tune(network(tmp_path), target, output=tmp_path / "t.modelc", database=False, runner=runner)
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_the_package_is_made_of_what_was_found(tmp_path, monkeypatch, capsys, first_finalist_wins) -> None:
    monkeypatch.setattr(whole, "LEAST_GAIN", -100.0)
    path = network(tmp_path)
    said = ["--explorer", "random", "--no-database", "--json", "-o", str(tmp_path / "t.modelc")]
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(path), "--budget", "3", *said])
    *rounds, found = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["event"] for one in rounds] == ["round"] and found["event"] == "result"
    assert rounds[0]["trials"] == rounds[0]["measured"] == 3 and rounds[0]["trials_left"] == 0
    assert rounds[0]["share"] == 1 and rounds[0]["predicted_seconds"] > 0
    assert not stop.value.code and found["tuned"] and found["changed_tasks"] == found["tasks"] == 1
    assert found["measurements"] == 3 and found["tuned_ms"] > 0 and found["verification"]["passed"]
    modelc.compile(path, output=tmp_path / "u.modelc", verify=False)
    rebuilt = modelc.compile(path, output=tmp_path / "r.modelc", choices=tmp_path / "t.modelc")
    assert rebuilt.chosen == 1 and contents(tmp_path / "r.modelc") == contents(tmp_path / "t.modelc")
    tuned, untuned = (read_choices_file(tmp_path / name / "choices.json").tasks for name in ("t.modelc", "u.modelc"))
    assert tuned.keys() == untuned.keys() and all(tuned[k].key != untuned[k].key for k in tuned)


def test_a_runner_measures_for_another_machine(tmp_path, capsys) -> None:
    target = load_target("cortex-a72")
    try:
        command = shlex.join(emulator(target.triple))
        find_toolchain(target.triple)
    except ToolchainError as error:
        pytest.skip(str(error))
    path, database = network(tmp_path), tmp_path / "d"
    said = ["--target", "cortex-a72", "--runner", command, "--explorer", "random", "--database", str(database)]
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(path), "--budget", "3", *said, "--json", "-o", str(tmp_path / "t.modelc")])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not stop.value.code and found["verification"]["passed"] and found["tuned_ms"] == 0
    records = stored(tmp_path)
    assert [one.measurement.outcome for one in records] == ["ok"] * 3
    assert {one.conditions.target for one in records} == {f"{target.key} through {command}"}
    with Database(database, write=False) as opened:  # what an emulator takes says nothing of the machine
        (task,) = [opened.task(key) for key in opened.tasks()]
        assert Recorded(opened, target, 1).candidate(task, Policy(), 6144) is None


def test_a_runner_that_runs_nothing_is_a_sentence(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(network(tmp_path)), "--no-database", "--runner", "true", "-o", str(tmp_path / "t.modelc")])
    assert stop.value.code == 2 and "the runner has ended" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["m.onnx"]


# --- the database: whatever ends a tuner, what it measured is there ---------------------------------------------------


def endless(folder: Path) -> tuple[object, ...]:
    return "tune", folder / "m.onnx", "--budget", "1h", "--database", folder / "d", "-o", folder / "t.modelc"


def wait_for(condition: Callable[[], bool], *processes: subprocess.Popen[str]) -> None:
    """Until it holds: at the latest when all of them are done, as far as there is to measure."""
    end = time.monotonic() + 400
    while not condition():
        codes = [process.poll() for process in processes]
        assert set(codes) <= {None, 0} and time.monotonic() < end, codes
        if None not in codes:
            assert condition(), [process.communicate()[1][-300:] for process in processes]
            return
        time.sleep(0.05)


def builders(tuner: int) -> list[int]:
    """The processes that are forked from a tuner's children: those that build."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == tuner]


def test_killed_workers_and_tuners_lose_nothing(tmp_path: Path) -> None:
    network(tmp_path, (200, 336, 96, 272))
    with modelc_in(tmp_path, *endless(tmp_path)) as process:
        wait_for(lambda: len(stored(tmp_path)) >= 2, process)
        killed = builders(process.pid)
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert killed
        known = len(stored(tmp_path))
        wait_for(lambda: len(stored(tmp_path)) >= known + 2, process)
        process.kill()
        process.wait()
    before = stored(tmp_path)
    assert len(before) >= known + 2 and sum(one.measurement.ok for one in before) >= 2

    def both_added() -> bool:
        new = stored(tmp_path)[len(before) :]
        return len(new) >= 4 and sum(one.untuned for one in new) >= 2

    with modelc_in(tmp_path, *endless(tmp_path)) as one, modelc_in(tmp_path, *endless(tmp_path)) as two:
        wait_for(both_added, one, two)
        assert {one.poll(), two.poll()} <= {None, 0}
        for process in (one, two):
            process.kill()
            process.wait()
    after = stored(tmp_path)
    assert after[: len(before)] == before
    again = {(one.task, one.key) for one in after[len(before) :] if not one.untuned}
    again &= {(one.task, one.key) for one in before}
    for task, key in {(one.task, one.key) for one in after if one.untuned}:
        again -= {(task, one.key) for one in apart([one for one in before if one.task == task], key)}
    assert not again, "more was measured again than the fastest of what nothing compares with the untuned one"


def known_to_be_faster(folder: Path) -> tuple[str, Candidate, Candidate]:
    """A database that knows something twice as fast as the untuned Candidate of the network's Task: the Task's hash,
    and both."""
    path, database = network(folder), folder / "d"
    modelc.compile(path, output=folder / "u.modelc", verify=False, database=False)
    untuned = read_choices_file(folder / "u.modelc")
    (key,) = untuned.tasks
    run = Run(path, digest_of(path), load_target("native"), load_config(), ({},))
    programs = run.programs()
    task = programs.rounded[0].tasks[0].task.canonical()
    space = Space(task, run.target)
    others = (space.individual(row).candidate for row in space.random(64, np.random.default_rng(0)))
    other = next(c for c in others if c.key != untuned.tasks[key].key)
    conditions = Conditions.of(task, run.target, code_version(), 1, programs.parameter_bytes, run.config.policy)
    good = Measurement("ok", "", 1e-3, 0.001, 9, 1e-3, 0.1, 0.1, untuned.tasks[key].key)
    with Database(database) as made:
        made.add(task, Record.of(key, conditions, untuned.tasks[key], good, untuned=True))
        made.add(task, Record.of(key, conditions, other, replace(good, seconds=5e-4)))
        made.add(task, Record.of(key, replace(conditions, version="0"), other, replace(good, seconds=1e-9)))
    return key, untuned.tasks[key], other


def test_compile_takes_what_was_measured_and_rebuilds_from_its_choices(tmp_path: Path, capsys) -> None:
    key, untuned, other = known_to_be_faster(tmp_path)
    path, database = tmp_path / "m.onnx", tmp_path / "d"

    def compiled(name: str, *more: object) -> dict[str, object]:
        with pytest.raises(SystemExit) as stop:
            main(["compile", str(path), "--no-verify", "--json", "-o", str(tmp_path / name), *map(str, more)])
        assert not stop.value.code
        return json.loads(capsys.readouterr().out)

    found = compiled("c.modelc", "--database", database)
    assert (found["measured_tasks"], found["constructed_tasks"], found["other_records"]) == (1, 0, 1)
    assert found["database"] == str(database)
    assert read_choices_file(tmp_path / "c.modelc").tasks[key].key == other.key
    rebuilt = compiled("r.modelc", "--choices", tmp_path / "c.modelc")
    assert (rebuilt["measured_tasks"], rebuilt["chosen_tasks"], rebuilt["database"]) == (0, 1, None)
    assert contents(tmp_path / "c.modelc") == contents(tmp_path / "r.modelc")
    for options in (["--no-database"], ["--database", database, "--run-threads", 2]):
        assert compiled("n.modelc", *options)["measured_tasks"] == 0
        assert read_choices_file(tmp_path / "n.modelc").tasks[key].key == untuned.key
        shutil.rmtree(tmp_path / "n.modelc")


def test_what_brings_nothing_for_the_whole_is_not_taken(
    tmp_path: Path, monkeypatch, capsys, first_finalist_wins
) -> None:
    key, untuned, other = known_to_be_faster(tmp_path)
    common = [str(tmp_path / "m.onnx"), "--database", str(tmp_path / "d"), "--json"]

    def ran(verb: str, name: str, *more: str) -> dict[str, object]:
        with pytest.raises(SystemExit) as stop:
            main([verb, *common, "-o", str(tmp_path / name), *more])
        assert not stop.value.code
        out = capsys.readouterr().out
        return json.loads(out.splitlines()[-1] if verb == "tune" else out)

    def taken(name: str) -> str:
        return read_choices_file(tmp_path / name).tasks[key].key

    for least, gained in ((100.0, False), (-100.0, True)):
        monkeypatch.setattr(whole, "LEAST_GAIN", least)
        found = ran("tune", "t.modelc", "--explorer", "random", "--budget", "1")
        assert found["tuned"] == gained and found["changed_tasks"] == gained
        assert min(found[f"{name}_ms"] for name in ("tuned", "untuned", "ort")) > 0
        compiled = ran("compile", "c.modelc", "--no-verify")
        assert compiled["measured_tasks"] == gained
        notes = [note for note in compiled["notes"] if note not in priced_as_another(load_target("native").cpu)]
        assert ["by turns" in note for note in notes] == ([] if gained else [True]), notes
        expected = other if gained else untuned
        assert taken("t.modelc") == taken("c.modelc") == expected.key != (untuned if gained else other).key
        with Database(tmp_path / "d", write=False) as opened:
            (one,) = opened.wholes()
        assert one.taken == {key: other.key}
        times = 1e3 * one.tuned_seconds, 1e3 * one.untuned_seconds
        assert times == pytest.approx((found["tuned_ms"], found["untuned_ms"]))
        for name in ("t.modelc", "c.modelc"):
            shutil.rmtree(tmp_path / name)


def test_compile_goes_on_beside_a_damaged_record(tmp_path: Path, capsys) -> None:
    key, untuned, other = known_to_be_faster(tmp_path)
    common = [str(tmp_path / "m.onnx"), "--no-verify", "--json", "--database", str(tmp_path / "d")]
    for number, taken in ((3, other), (2, untuned)):
        statement = f"candidate = substr(candidate, 1, 40), version = '{code_version()}' WHERE number = {number}"
        run(tmp_path / "d", f"UPDATE records SET {statement}")
        with pytest.raises(SystemExit) as stop:
            main(["compile", *common, "-o", str(tmp_path / f"{number}.modelc")])
        found = json.loads(capsys.readouterr().out)
        assert not stop.value.code and read_choices_file(tmp_path / f"{number}.modelc").tasks[key].key == taken.key
        assert any("damaged rows of the database" in note and "prune --damaged" in note for note in found["notes"])


def full_after(pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases that are opened have room for so many pages more, as on a disk that is nearly full."""
    real = store.opened

    def opened(path: Path, write: bool) -> sqlite3.Connection:
        connection = real(path, write)
        count = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={count + pages}")
        return connection

    monkeypatch.setattr(store, "opened", opened)


def test_where_the_disk_is_full_the_package_is_made_of_what_was_measured(
    tmp_path: Path, monkeypatch, capsys, first_finalist_wins
) -> None:
    monkeypatch.setattr(whole, "LEAST_GAIN", -100.0)
    full_after(3, monkeypatch)
    said = ["--explorer", "random", "--database", str(tmp_path / "d"), "--json", "-o", str(tmp_path / "t.modelc")]
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(network(tmp_path)), "--budget", "60", *said])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not stop.value.code and found["ended"] == "database" and 1 < found["measurements"] < 60
    (note,) = [note for note in found["notes"] if "measuring has ended early" in note]
    assert f"the database {tmp_path / 'd'} cannot be written: database or disk is full; make room" in note
    assert found["verification"]["passed"] and contents(tmp_path / "t.modelc")
    assert len(stored(tmp_path)) == found["measurements"] - 1


def test_where_the_disk_is_full_at_the_end_the_package_is_made_too(
    tmp_path: Path, monkeypatch, capsys, first_finalist_wins
) -> None:
    def put_wholes(self: Database, found: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Database, "put_wholes", put_wholes)
    said = ["--explorer", "random", "--database", str(tmp_path / "d"), "-o", str(tmp_path / "t.modelc")]
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(network(tmp_path)), "--budget", "2", *said])
    out = capsys.readouterr().out
    assert not stop.value.code and contents(tmp_path / "t.modelc") and len(stored(tmp_path)) == 2
    assert "note          what the network took is not written down: the database" in out


@pytest.mark.parametrize("step", ["compared", "_first_right"])
def test_an_interrupt_after_the_budget_leaves_the_package(
    tmp_path: Path, monkeypatch, capsys, first_finalist_wins, step: str
) -> None:
    real, interrupts = getattr(selection, step), [signal.SIGINT]

    def interrupted(*arguments: object) -> object:
        while interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
            os.kill(os.getpid(), interrupts.pop())
        return real(*arguments)

    monkeypatch.setattr(selection, step, interrupted)
    said = ["--explorer", "random", "--no-database", "--json", "-o", str(tmp_path / "t.modelc")]
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(network(tmp_path)), "--budget", "2", *said])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not stop.value.code and contents(tmp_path / "t.modelc") and found["verification"]["passed"]
    assert any("timing was interrupted" in note for note in found["notes"]) is (step == "compared")
    assert (found["untuned_ms"] > 0) is (step != "compared") and not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("verb", "arguments", "sentence"),
    [
        ("tune", ["--database", "d", "--no-database"], "--database and --no-database were both given"),
        ("compile", ["--database", "d", "--no-database"], "--database and --no-database were both given"),
        ("compile", ["--database", "d"], "there is no database d"),
        ("compile", ["--database", "m.onnx"], "it is no file of SQLite"),
        ("tune", ["--database", "m.onnx"], "it is no file of SQLite"),
        ("compile", ["--database", "d", "--choices", "m.onnx"], "either choices or a database"),
    ],
)
def test_databases_that_are_none_are_refused_first(tmp_path, monkeypatch, capsys, verb, arguments, sentence) -> None:
    before = network(tmp_path).read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([verb, "m.onnx", *arguments])
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == "" and sentence in said.err and "Traceback" not in said.err
    assert os.listdir(tmp_path) == ["m.onnx"] and (tmp_path / "m.onnx").read_bytes() == before
