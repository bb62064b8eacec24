"""The database of measurements: nothing that was measured is lost, nothing that is not ours is used or touched."""

from __future__ import annotations

import ast
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from database_files import CONDITIONS, HOSTILE, ROWS, TASK, WHOLE, filled, made, run, space
from made_up_machines import MATMULS, Machine, subjects_of
from three_ways import host_target

import modelc
from modelc.database import Database, Record, code_version, database_for, default_place, file
from modelc.database.compare import apart, comparable, fastest
from modelc.database.exchange import exported
from modelc.database.recorded import Recorded
from modelc.database.summary import lines
from modelc.database.version import DECIDING, HERE, _version, deciding_files
from modelc.errors import DatabaseError
from modelc.measure import Measurement
from modelc.policy import Policy
from modelc.space.rules import derivation
from modelc.target.intrinsics import shipped_intrinsics
from modelc.tune.search.objectives import Weights, total
from modelc.tune.search.resume import Memory, individual_of
from modelc.tune.search.scheduler import Scheduler, Work
from modelc.tune.search.tune import Budget, Search, Tuned

# --- what goes in comes out -------------------------------------------------------------------------------------------


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    failed = replace(made()[1], measurement=Measurement("crashed", "signal 11 in it"), measured_at=5.0)
    with Database(filled(tmp_path / "d")) as database:
        assert database.add(TASK, failed, *made()) == 1, "equal records are one"
        assert list(database.records()) == [*made(), failed]
        assert list(database.records(TASK.hash, CONDITIONS)) == [*made(), failed]
        assert not list(database.records(TASK.hash, replace(CONDITIONS, threads=2)))
        assert database.others(TASK.hash, replace(CONDITIONS, threads=2)) == 9
        (count,) = database.counts()
        assert (count.tasks, count.records, count.failures, count.threads) == (1, 9, 1, 1)
    with Database(tmp_path / "d", write=False) as database:
        found = list(database.records(target=CONDITIONS.target, version=CONDITIONS.version))
        task = database.task(TASK.hash)
        assert not list(database.records(target=CONDITIONS.target, version="another"))
    assert task == TASK and [one.candidate.key for one in found] == [one.key for one in (*made(), failed)]
    assert all(individual_of(space(), one) is not None for one in found)


def test_the_latest_time_of_a_whole_counts(tmp_path: Path) -> None:
    later, earlier = (
        replace(WHOLE, tuned_seconds=3e-3, measured_at=WHOLE.measured_at + 1),
        replace(WHOLE, measured_at=1.0),
    )
    with Database(filled(tmp_path / "d")) as database:
        assert list(database.wholes()) == [WHOLE] and WHOLE.gained and not list(database.wholes("b" * 64))
        database.settle(later, earlier)
        assert list(database.wholes(WHOLE.network)) == [later] and not later.gained
        database.prune(failed=True)
        assert list(database.wholes()) == [later]
        database.prune(before=later.measured_at + 1)
        assert not list(database.wholes())


def write_alone(path: Path, name: int, each: int) -> None:
    for number in range(each):
        with Database(path) as database:
            database.add(TASK, replace(made()[number % 8], measured_at=float(each * name + number)))


def test_several_writers_make_and_fill_one(tmp_path: Path) -> None:
    made()
    with ThreadPoolExecutor(4) as pool:  # SQLite's locks are between connections, wherever these are
        list(pool.map(lambda k: write_alone(tmp_path / "d", k, 25), range(4)))
    with Database(tmp_path / "d") as database:
        assert len(list(database.records())) == 100
    assert [name for name in os.listdir(tmp_path) if not name.startswith("d")] == []


# --- tuning goes on ---------------------------------------------------------------------------------------------------


def tuned(path: Path, trials: int, until: int = 1 << 30) -> tuple[Tuned, Machine, int]:
    subjects = subjects_of(MATMULS)
    machine = Machine([s.untuned for s in subjects], until=until)
    scheduler = Scheduler([Work(1e-3), Work(2e-3)], total(Weights.of(np.array([[3.0, 1.0]]))))
    with Database(path) as database:
        memory = Memory(database, lambda task, cold: replace(CONDITIONS, threads=1))
        known = memory.recall(subjects, scheduler)
        return Search(subjects, scheduler, machine, Budget(trials=trials), memory, batch=12).run(), machine, known


def test_tuning_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    first, machine, known = tuned(tmp_path / "d", 48, until=30)
    assert (first.ended, first.trials, known) == ("interrupted", 30, 0)
    second, again, known = tuned(tmp_path / "d", 24)
    assert (second.ended, second.trials, known, again.calls) == ("budget", 24, 30, 24)
    with Database(tmp_path / "d") as database:
        found = list(database.records())
    assert len(found) == 54
    measured = [(one.task, one.key) for one in found if not one.untuned]
    assert len(measured) == len(set(measured)) >= 50, "a known Candidate was measured again"
    for subject in second.subjects:
        mine = [one for one in found if one.task == subject.key and one.measurement.ok]
        best = min(machine.seconds(one.candidate) for one in mine)
        assert again.seconds(subject.best) == pytest.approx(best) and best < 1e-3
        assert machine.seconds(fastest(mine).candidate) == pytest.approx(best)
    assert second.log[0].predicted <= first.log[-1].predicted


def test_tuners_go_on_from_what_the_other_measures(tmp_path: Path) -> None:
    """Two with equal seeds, which would propose the same: a round of one, then a round of the other."""
    tuners = []
    with Database(tmp_path / "d") as first, Database(tmp_path / "d") as second:
        for database in (first, second):
            (subject,) = subjects_of(MATMULS[:1])
            tuners.append((subject, Machine([subject.untuned]), Memory(database, lambda task, cold: CONDITIONS)))
        for _ in range(4):
            for subject, machine, memory in tuners:
                scheduler = Scheduler([Work(1e-3)], total(Weights.of(np.ones((1, 1)))))
                assert memory.recall([], scheduler) == 0
                Search([subject], scheduler, machine, Budget(trials=8), memory, batch=8).run()
        found = list(first.records())
    assert len(found) == 64
    measured = [one.key for one in found if not one.untuned]
    assert len(measured) == len(set(measured)) == 62, "one measured what the other had"
    (one, machine, _), (two, *_) = tuners
    best = min(machine.seconds(r.candidate) for r in found if r.measurement.ok)
    assert two.best.key in {r.key for r in found} and machine.seconds(two.best) == pytest.approx(best)
    assert machine.seconds(one.best) <= 1.1 * best and {c.key for c, _ in one.earlier} & {
        c.key for c, _ in two.measured
    }


def test_all_that_is_known_needs_no_measurement(tmp_path: Path) -> None:
    subjects = subjects_of(MATMULS[:1])
    with Database(filled(tmp_path / "d")) as database:
        scheduler = Scheduler([Work(1e-3)], total(Weights.of(np.ones((1, 1)))))
        untuned = Record.of(TASK.hash, CONDITIONS, subjects[0].untuned, made()[0].measurement, True)
        database.add(TASK, untuned)
        assert Memory(database, lambda task, cold: CONDITIONS).recall(subjects, scheduler) == 9
    assert subjects[0].best.key == made()[-1].key and subjects[0].gain == pytest.approx(0.9**-7)
    assert scheduler.histories == [[pytest.approx(1e-3 * 0.9**7)]]


def test_times_of_other_sessions_are_compared_by_what_both_measured() -> None:
    slow = [
        replace(one, measurement=replace(one.measurement, reference="f" * 32, reference_seconds=2e-3)) for one in made()
    ]
    anchor = made()[0].key
    scaled = comparable([*made()[:4], *slow[3:], slow[0]], anchor)
    relative = [scaled[one.key][1].relative for one in made()]
    assert relative == pytest.approx([0.9**k for k in range(8)])
    assert [one.key for one in apart([*made()[:4], *slow[3:]], anchor)] == [made()[-1].key]
    assert fastest([*made()[:4], *slow[3:]]).key == made()[3].key
    noisy = replace(made()[1], measurement=replace(made()[1].measurement, noise=0.2))
    assert fastest([made()[0], noisy]) is None and fastest(made()[1:]) is None


# --- only what was measured of this ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["target", "version", "threads", "constants", "policy"])
def test_records_of_other_conditions_are_left_alone(tmp_path: Path, name: str) -> None:
    target = host_target()
    with Database(filled(tmp_path / "d")) as database:
        found = Recorded(database, target, 1)
        assert found.candidate(TASK, Policy(), 1 << 16).key == made()[-1].key == found.candidates[TASK.hash].key
        assert found.others == {TASK.hash: 0}
        found.target = replace(target, cores=target.cores + 1) if name == "target" else target
        found.threads = 2 if name == "threads" else 1
        policy, cold = Policy(winograd=name != "policy"), 1 << 40 if name == "constants" else 1 << 16
        if name == "version":
            database.prune(target=CONDITIONS.target)
            stale = replace(CONDITIONS, version=code_version() + "0")
            database.add(TASK, *(replace(one, conditions=stale) for one in made()))
        assert found.candidate(TASK, policy, cold) is None and (found.candidates, found.others) == ({}, {TASK.hash: 8})


def test_what_users_bring_is_part_of_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = host_target()
    assert code_version(target) == code_version()
    own = replace(shipped_intrinsics()[0], architecture=target.architecture.name, features=(), file="mine.yaml")
    slower = replace(own, latency=own.latency + 1)
    monkeypatch.setattr(derivation, "_RULES", dict(derivation._RULES))
    found = [code_version(replace(target, intrinsics=(one,))) for one in (own, replace(own, file="moved"), slower)]
    modelc.register_rule(modelc.Rule("mine", lambda task: task))
    found.append(code_version())
    assert found[0] == found[1] and len({*found, code_version(), _version()}) == 4
    assert all(one.startswith(f"{_version()}.") for one in found)


def test_the_version_covers_what_decides_code() -> None:
    files = [path for path in deciding_files() if path.suffix == ".py"]
    modules = {".".join(("modelc", *path.relative_to(HERE).with_suffix("").parts)) for path in files}
    modules |= {name.removesuffix(".__init__") for name in modules}
    around = (
        "errors",
        "python_worker",
        "scratch",
        "policy",
        "frontend.building.limits",
        "package",
        "package.objects",
        "plan.program",
    )
    modules |= {f"modelc.{name}" for name in around}
    modules |= {"modelc.ops", "modelc.ops.opaque", "modelc.space.choose"}  # what outputs should be; what proposes
    for path in files:
        if path.parent.name == "sketches":  # Nests ask for a few functions there, not for what proposes
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modelc."):
                assert node.module in modules, f"{path} imports {node.module}, of which the version does not depend"
    assert all((HERE / place).exists() for place in DECIDING)
    assert len(files) > 60 and {path.suffix for path in deciding_files()} == {".py", ".c", ".h", ".yaml"}


# --- files that are something else ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_sentence_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    make, sentence = HOSTILE[name]
    make(path := tmp_path / "d")

    def state() -> object:
        seen = path.stat()
        return (seen.st_mtime_ns, seen.st_size) if name in ("folder", "fifo", "huge") else path.read_bytes()

    before = state()
    with pytest.raises(DatabaseError) as error:
        database_for(path, write=True)
    assert sentence in str(error.value) and str(path) in str(error.value) and "--database" in str(error.value)
    after = state()
    assert after == before and os.listdir(tmp_path)[0] == "d"


# --- rows that are something else -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.sweep(8)
def test_a_damaged_row_is_left_out_and_said(tmp_path: Path, name: str) -> None:
    """All that reads a database goes on with what is right in it; and what is wrong can be removed."""
    statement, sentence = ROWS[name]
    run(filled(path := tmp_path / "d"), statement)
    before = path.read_bytes()
    left = 0 if "task" in name else 8 if "whole" in name else 7
    with Database(path, write=False) as database:
        assert database.note == ""
        recorded = Recorded(database, host_target(), 1)
        best = recorded.candidate(TASK, Policy(), 1 << 16)
        assert best is not None and best.key == made()[(left or 8) - 1].key
        assert len(recorded.measured(TASK, made()[0].candidate, Policy(), 1 << 16)) == (left or 8)
        recorded.take({TASK.hash: TASK}, {TASK.hash: 1}, Policy(), 1 << 16)
        assert len(list(database.wholes())) == (0 if "whole" in name else 1)
        assert sum(count.records for count in database.counts()) == (left if name != "made up" and left else 8)
        assert sum(line.records for line in lines(database)) in (left, left + (name == "made up"))
        exported_records = [line for line in exported(database) if line.startswith('{"record"')]
        assert len(exported_records) in (left, left + (name == "made up"))
        assert sentence in database.note and database.note.startswith(
            f"damaged rows of the database {path} are left out: 1 ("
        )
        assert f"modelc database prune --damaged --database {path}" in database.note
    assert path.read_bytes() == before
    with Database(path) as database:
        assert database.remove_damaged() == 8 - left
    with Database(path, write=False) as database:
        assert len(list(database.records())) == left and len(list(database.wholes())) == (0 if "whole" in name else 1)
        assert database.note == "" and len(list(database.tasks())) == bool(left)


@pytest.mark.parametrize("name", ["nested", "made up", "threads"])
def test_tuning_goes_on_beside_a_damaged_row(tmp_path: Path, name: str) -> None:
    run(filled(tmp_path / "d"), ROWS[name][0])
    subjects = subjects_of(MATMULS[:1])
    machine = Machine([subjects[0].untuned])
    scheduler = Scheduler([Work(1e-3)], total(Weights.of(np.ones((1, 1)))))
    with Database(tmp_path / "d") as database:
        memory, read = Memory(database, lambda task, cold: CONDITIONS), database.records
        assert memory.recall(subjects, scheduler) == 7
        database.records = lambda *given: pytest.fail("nobody else has added anything")
        found = Search(subjects, scheduler, machine, Budget(trials=40), memory, batch=8).run()
        database.records = read
        assert found.ended == "budget" and len(list(database.records())) == 7 + 40 + (name == "made up")
        assert "are left out: 1 (" in database.note


def test_the_users_own_is_renamed_where_it_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert database_for(True, write=False) == (None, "") and not default_place().exists()
    for number in (1, 2):
        default_place().parent.mkdir(exist_ok=True)
        default_place().write_text(f"{number}")
        database, note = database_for(True, write=True)
        aside = default_place().with_name(f"records-3.sqlite.damaged-{number}")
        assert aside.name in note and aside.read_text() == f"{number}"
        with database:
            assert not list(database.records())
        default_place().unlink()


# --- no room, no right, no patience ---------------------------------------------------------------------------------


def test_a_full_disk_ends_measuring_with_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    subjects = subjects_of(MATMULS[:1])
    machine = Machine([subjects[0].untuned])
    with Database(filled(tmp_path / "d")) as database:
        pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
        database._connection.execute(f"PRAGMA max_page_count={pages + 12}")
        scheduler = Scheduler([Work(1e-3)], total(Weights.of(np.ones((1, 1)))))
        memory = Memory(database, lambda task, cold: CONDITIONS)
        found = Search(subjects, scheduler, machine, Budget(trials=500), memory, batch=4).run()
        assert found.ended == "database" and found.stopped and "is full; make room" in found.trouble
        assert found.trials == machine.calls > 1 and len(list(database.records())) == 8 + machine.calls - 1
    fastest_seconds = min(machine.seconds(c) for c, m in subjects[0].measured if m.ok)
    assert machine.seconds(subjects[0].best) == fastest_seconds < 1e-3
    with Database(tmp_path / "d") as database:
        assert list(database.records())[:8] == list(made())


def test_a_lock_that_stays_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "PATIENCE", 0.05)
    other = sqlite3.connect(filled(tmp_path / "d"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Database(tmp_path / "d") as database, pytest.raises(DatabaseError, match="locked by another process"):
        database.add(TASK, *made())
    other.execute("ROLLBACK")
    other.close()


@pytest.mark.parametrize("place", ["/proc/none/d", "/dev/null/d", "none/d"])
def test_where_there_can_be_none_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatabaseError, match=r"there is no database|cannot be opened or written: \w"):
        Database(place, write=place != "none/d")


def test_nothing_is_made_where_reading_is_all(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="there is no database"):
        Database(tmp_path / "d", write=False)
    assert os.listdir(tmp_path) == []
