"""modelc database: what is in one goes out and comes in whole, and nothing else comes in."""

from __future__ import annotations

import io
import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from database_files import CONDITIONS, HOSTILE, ROWS, TASK, WHOLE, filled, made, run

from modelc.cli import main
from modelc.database import Database, code_version
from modelc.database.exchange import exported
from modelc.ir.candidate import key_of
from modelc.measure import Measurement


def modelc(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """What `modelc database` prints: on stderr, where it fails."""
    try:
        main(["database", *map(str, arguments)])
        found = 0
    except SystemExit as stop:
        found = int(stop.code or 0)
    said = capsys.readouterr()
    assert found == code and "Traceback" not in said.err, said.err
    return said.out if not code else said.err


def contents(path: Path) -> list[str]:
    with Database(path, write=False) as database:
        return list(exported(database))


def test_export_import_and_merge_are_a_round_trip(tmp_path: Path, monkeypatch, capsys) -> None:
    database = filled(tmp_path / "d")
    stale = replace(CONDITIONS, version="0.0.1")
    failed = replace(made()[1], conditions=stale, measurement=Measurement("timeout", "after 10 s"), measured_at=7.5)
    with Database(database) as opened:
        opened.add(TASK, failed)
    text = modelc(capsys, "export", "--database", database)
    assert text.splitlines() == contents(database) and len(text.splitlines()) == 2 + 9 + 1
    assert (
        modelc(capsys, "export", "--database", database, "-o", tmp_path / "x")
        == f"9 records were written to {tmp_path / 'x'}\n"
    )
    assert (tmp_path / "x").read_text() == text
    again = modelc(capsys, "export", "--database", database, "-o", tmp_path / "x", "--json")
    assert (
        json.loads(again) == {"schema": "database-export", "version": 1, "records": 9, "notes": []}
        and (tmp_path / "x").read_text() == text
    )
    assert len(modelc(capsys, "export", "--database", database, "--version", "0.0.1").splitlines()) == 3

    def taken(*arguments: object) -> tuple[int, int]:
        found = json.loads(modelc(capsys, *arguments, "--json"))
        return found["records"], found["new"]

    assert taken("import", tmp_path / "x", "--database", tmp_path / "e") == (9, 9)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    assert taken("import", "-", "--database", tmp_path / "e") == (9, 0)
    assert contents(tmp_path / "e") == contents(database)
    with Database(tmp_path / "f") as opened:
        opened.add(TASK, replace(made()[2], measured_at=1.0))
    assert taken("merge", tmp_path / "e", tmp_path / "f", "--database", tmp_path / "g") == (10, 10)
    assert taken("merge", database, "--database", tmp_path / "g") == (9, 0)
    assert sorted(contents(tmp_path / "g")) == sorted({*contents(database), *contents(tmp_path / "f")})
    assert sorted(os.listdir(tmp_path)) == ["d", "e", "f", "g", "x"], "something was left behind"


def lines(**changes: object) -> str:
    """What export gives of one record, with other values in it; None takes one out."""
    record = made()[0].to_json()
    for name, value in changes.items():
        *path, last = name.split("__")
        inner = record
        for part in path:
            inner = inner[part]
        inner |= {last: value}
        if value is None:
            del inner[last]
    if any(name.startswith("candidate") for name in changes):
        record["key"] = key_of(record["candidate"])
    head = [{"modelc_records": 3}, {"task": TASK.hash, "text": str(TASK)}, {"record": made()[1].to_json()}]
    return "\n".join(json.dumps(line) for line in (*head, {"record": record}))


def whole(**changes: object) -> str:
    """What export gives of one whole, with other values in it."""
    return "\n".join(json.dumps(line) for line in ({"modelc_records": 3}, {"whole": WHOLE.to_json() | changes}))


LINES = {
    "a whole's network": (whole(network="../x"), "line 2 is no whole: network is '../x'"),
    "what a whole took": (whole(taken={TASK.hash: "x"}), "line 2 is no whole: taken is {"),
    "a whole's time": (whole(tuned_seconds=0), "line 2 is no whole: tuned_seconds is 0"),
    "a whole's fields": (whole(more=1), "line 2 is no whole: a whole has network"),
    "nothing": ("", "holds no records: its first line"),
    "another format": ('{"modelc_records": 2}\n', "holds no records: its first line"),
    "bytes": ("\xff\xfe\x00", "holds no records: its first line"),
    "text": (lines() + "\nfine", "line 5 is not JSON"),
    "a list": (lines() + "\n[]", "line 5 is neither a task with its text nor a record nor a whole"),
    "nested": (lines() + "\n" + "[" * 100_000, "line 5 is not JSON: JSON that is nested too deeply"),
    "endless": (lines() + "\n" + " " * (5 << 20), "line 5 has more than"),
    "cut": (lines()[:-100], "line 4 is not JSON"),
    "an unknown task": (lines(task="0" * 16), "of which no line before says what it is"),
    "another task's text": (
        lines().replace("float32[24, 64]", "float32[24, 65]", 1),
        f"called the task {TASK.hash} is",
    ),
    "no task": (lines().replace(str(TASK).split("(")[0], "tsk", 1), "cannot be read: line 1"),
    "no task's hash": (lines(task="../../x"), "expected [0-9a-f]{16}"),
    "a field more": (lines(more=1), "a record has"),
    "a field less": (lines(threads=None), "a record has"),
    "threads": (lines(threads=0), "threads is 0"),
    "many threads": (lines(threads=1e9), "threads is 1000000000.0"),
    "when": (lines(measured_at=float("nan")), "measured_at is nan"),
    "seconds": (lines(measurement__seconds=0), "seconds is 0; expected a number above 0"),
    "noise": (lines(measurement__noise=float("inf")), "noise is inf"),
    "repeats": (lines(measurement__repeats=1.5), "repeats is 1.5; expected a whole number"),
    "outcome": (lines(measurement__outcome="fine"), "outcomes"),
    "a number": (lines(measurement__seconds="1"), "seconds is '1'; expected a number"),
    "a measurement": (lines(measurement={"outcome": "ok"}), "a measurement has outcome"),
    "message": (lines(measurement__message="x" * 20_000), "expected a text of at most"),
    "key": (lines(key="0" * 32), f"and {'0' * 32} is said"),
    "candidate": (lines(candidate={"blocks": {}}), "candidate.schema.json"),
    "layouts": (lines(candidate__layouts={"b1": "split(0)" * 9}), "layouts.b1"),
    "stages": (lines(candidate__stages=[{"rule": [1]}]), "candidate.schema.json"),
    "knobs": (lines(knobs={"a": [1]}), "knobs"),
    "untuned": (lines(untuned=1), "untuned is 1; expected true or false"),
}


@pytest.mark.parametrize("name", LINES)
def test_what_is_no_record_is_refused_whole(tmp_path: Path, capsys, name: str) -> None:
    text, sentence = LINES[name]
    database = filled(tmp_path / "d")
    before = contents(database)
    (tmp_path / "x").write_bytes(text.encode("latin-1"))
    said = modelc(capsys, "import", tmp_path / "x", "--database", database, code=2)
    assert sentence in said and str(tmp_path / "x") in said and len(said) < 1500
    assert contents(database) == before and not said.count("\n") > 1


def test_what_is_right_is_taken(tmp_path: Path, capsys) -> None:
    (tmp_path / "x").write_text(lines())
    assert "2 records were read, 2 of them are new" in modelc(
        capsys, "import", tmp_path / "x", "--database", tmp_path / "d"
    )


@pytest.mark.parametrize("name", ["nested", "another's key", "a whole", "a task"])
def test_damaged_rows_are_said_and_removed(tmp_path: Path, capsys, name: str) -> None:
    statement, sentence = ROWS[name]
    damaged = filled(tmp_path / "damaged")
    run(damaged, statement)
    left = {"a whole": 8, "a task": 0}.get(name, 7)

    def found(*arguments: object) -> dict:
        main_said = modelc(capsys, *arguments, "--json")
        answer = json.loads(main_said)
        (note,) = answer["notes"]
        assert sentence in note and "are left out: 1 (" in note and f"prune --damaged --database {damaged}" in note
        return answer

    if name not in ("a whole", "a task"):  # of which this says nothing
        assert found("show", "--database", damaged)["groups"][0]["records"] == left
    if name != "a whole":
        assert len(found("show", "--tasks", "--database", damaged)["tasks"]) == bool(left)
    assert found("export", "--database", damaged, "-o", tmp_path / "x")["records"] == left
    assert found("merge", damaged, "--database", tmp_path / "merged")["new"] == left
    assert "goes with no other flag" in modelc(capsys, "prune", "--damaged", "--failed", "--database", damaged, code=2)
    removed = json.loads(modelc(capsys, "prune", "--damaged", "--database", damaged, "--json"))["removed"]
    assert removed == 8 - left and contents(damaged) == contents(tmp_path / "merged")
    assert json.loads(modelc(capsys, "show", "--tasks", "--database", damaged, "--json"))["notes"] == []


def test_what_is_damaged_is_said_beside_text(tmp_path: Path, capsys) -> None:
    run(filled(tmp_path / "d"), ROWS["nested"][0])
    for verb in ("show", "export", f"merge {tmp_path / 'd'}"):
        with suppress(SystemExit):
            main(["database", *verb.split(), "--database", str(tmp_path / ("e" if "merge" in verb else "d"))])
        said = capsys.readouterr()
        assert said.err.startswith("modelc: damaged rows of the database") and said.err.count("\n") == 1, verb
        assert "damaged rows" not in said.out and said.out


@pytest.mark.parametrize("name", ["text", "trigger", "damaged"])
def test_merging_what_is_none_changes_nothing(tmp_path: Path, capsys, name: str) -> None:
    HOSTILE[name][0](tmp_path / "other")
    database = filled(tmp_path / "d")
    before = contents(database)
    said = modelc(capsys, "merge", tmp_path / "other", "--database", database, code=2)
    assert HOSTILE[name][1] in said and contents(database) == before


def test_show_says_what_there_is(tmp_path: Path, capsys) -> None:
    database = filled(tmp_path / "d")
    text = modelc(capsys, "show", "--tasks", "--database", database)
    assert f"{code_version()} (this)" in text and CONDITIONS.target in text and TASK.hash in text
    assert f"{0.9**-7:.2f}" in text and "float32[24, 96]" in text
    found = json.loads(modelc(capsys, "show", "--tasks", "--database", database, "--json"))
    (group,), (line,) = found["groups"], found["tasks"]
    assert (group["records"], group["failures"], group["tasks"]) == (8, 0, 1)
    assert line["untuned_seconds"] == pytest.approx(1e-3) and line["best_seconds"] == pytest.approx(1e-3 * 0.9**7)
    assert "there is no database" in modelc(capsys, "show", "--database", tmp_path / "none", code=2)


@pytest.mark.parametrize("verb", ["show", "export -o x", "import none", "merge none", "prune --stale"])
def test_errors_are_said_as_json(tmp_path: Path, monkeypatch, capsys, verb: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["database", *verb.split(), "--database", "none", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert stop.value.code == error["exit_code"] == 2 and error["kind"] == "DatabaseError"
    assert "none" in error["message"] and "x" not in os.listdir(tmp_path)


def test_prune_removes_that_alone_for_which_all_holds(tmp_path: Path, capsys) -> None:
    database = filled(tmp_path / "d")
    with Database(database) as opened:
        stale = replace(made()[0], conditions=replace(CONDITIONS, version="0"), measured_at=1.0)
        fails = replace(
            made()[1], measurement=Measurement("crashed", "signal 11"), measured_at=time.time() - 10 * 86400
        )
        opened.add(TASK, stale, replace(stale, measured_at=time.time()), fails)

    def removed(*arguments: object) -> int:
        return json.loads(modelc(capsys, "prune", "--database", database, "--json", *arguments))["removed"]

    assert "say which records" in modelc(capsys, "prune", "--database", database, code=2)
    assert "there is no database" in modelc(capsys, "prune", "--failed", "--database", tmp_path / "none", code=2)
    assert removed("--stale", "--older-than", "5") == 1
    assert removed("--stale", "--target", "another") == 0
    assert removed("--stale") == 1
    assert removed("--failed", "--older-than", "20") == 0
    assert removed("--failed") == 1
    assert contents(database) == contents(filled(tmp_path / "e"))
    assert removed("--target", CONDITIONS.target) == 8
    assert contents(database) == ['{"modelc_records":3}'] and not (tmp_path / "none").exists()
