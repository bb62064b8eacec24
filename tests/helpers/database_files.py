"""Databases of measurements: a whole one, files that are none, and rows that nobody has measured."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from made_up_machines import MATMULS
from three_ways import host_target

from modelc.database import Conditions, Database, Record, code_version, file
from modelc.database.whole import Whole
from modelc.ir.candidate import key_of
from modelc.measure import Measurement
from modelc.policy import Policy
from modelc.tune.search.population import Space
from modelc.tune.search.resume import record_of

TASK = MATMULS[0]
CONDITIONS = Conditions.of(TASK, host_target(), code_version(), 1, 1 << 16, Policy())


@cache
def space() -> Space:
    return Space(TASK, host_target())


@cache
def made(count: int = 8) -> tuple[Record, ...]:
    """Records of different Candidates of TASK: the first is untuned, each later one is faster."""
    drawn = map(space().individual, space().random(16 * count, np.random.default_rng(0)))
    individuals = dict(list({one.candidate.key: one for one in drawn}.items())[:count])
    assert len(individuals) == count
    good = Measurement("ok", "", 1e-3, 0.001, 9, 1e-3, 0.1, 0.1, next(iter(individuals)))
    return tuple(
        record_of(TASK, CONDITIONS, one.candidate, one, replace(good, seconds=1e-3 * 0.9**k), k == 0)
        for k, one in enumerate(individuals.values())
    )


TAKEN = {TASK.hash: made()[1].key}
WHOLE = Whole("a" * 64, CONDITIONS.target, CONDITIONS.version, TAKEN, 2e-3, 1e-3, time.time())


def filled(path: Path) -> Path:
    with Database(path) as database:
        assert database.add(TASK, *made()) == len(made())
        database.settle(WHOLE)
    return path


def run(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def altered(*statements: str) -> Callable[[Path], None]:
    return lambda path: run(filled(path), *statements)


def damaged(path: Path) -> None:
    run(filled(path), "PRAGMA journal_mode=DELETE")
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 512):
        data[at : at + 64] = os.urandom(64)
    path.write_bytes(data)


def cut(path: Path) -> None:
    run(filled(path), "PRAGMA journal_mode=DELETE")
    path.write_bytes(path.read_bytes()[:6000])


def huge(path: Path) -> None:
    filled(path)
    with path.open("r+b") as stream:
        stream.truncate(file.LARGEST + 1)


HOSTILE = {
    "text": (lambda path: path.write_text("no database\n" * 500), "it is no file of SQLite"),
    "empty": (lambda path: path.write_text(""), "it is no file of SQLite"),
    "folder": (Path.mkdir, "it is no file"),
    "fifo": (os.mkfifo, "it is no file"),
    "another program's": (lambda path: run(path, "CREATE TABLE t (x)"), "another program's"),
    "a later schema": (altered("PRAGMA user_version=4"), "has schema 4"),
    "trigger": (altered("CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM tasks; END"), "its tables are"),
    "view": (altered("ALTER TABLE tasks RENAME TO t", "CREATE VIEW tasks AS SELECT * FROM t"), "its tables are"),
    "damaged": (damaged, "damaged"),
    "cut": (cut, "damaged"),
    "huge": (huge, "expected at most"),
}
BEST = "WHERE number = 8"  # of the eight that there are
NESTED = "'" + "[" * 200_000 + "'"
MADE_UP = '{"blocks":{}}'  # with the key that it would have: no Candidate
ROWS = {
    "nested": (f"UPDATE records SET candidate = {NESTED} {BEST}", "nested too deeply"),
    "long": (f"UPDATE records SET candidate = hex(zeroblob(1000000)) {BEST}", "no text of at most"),
    "truncated": (f"UPDATE records SET candidate = substr(candidate, 1, 40) {BEST}", "line 1 column"),
    "no candidate": (f"UPDATE records SET candidate = '{{}}' {BEST}", "the candidate's key is"),
    "another's key": (f"UPDATE records SET key = '{'0' * 32}' {BEST}", "is said"),
    "made up": (
        f"UPDATE records SET candidate = '{MADE_UP}', key = '{key_of(json.loads(MADE_UP))}' {BEST}",
        "does not fit candidate.schema.json",
    ),
    "a blob": (f"UPDATE records SET message = x'ff00' {BEST}", "message"),
    "no unicode": (f"UPDATE records SET message = CAST(x'ff00' AS TEXT) {BEST}", "message"),
    "no time": (f"UPDATE records SET seconds = -1.0 {BEST}", "seconds is -1"),
    "endless": (f"UPDATE records SET seconds = 9e999 {BEST}", "seconds is inf"),
    "always": (f"UPDATE records SET measured_at = 9e999 {BEST}", "measured_at is inf"),
    "words": (f"UPDATE records SET noise = 'x' {BEST}", "noise is 'x'; expected a number"),
    "threads": (f"UPDATE records SET threads = 'two' {BEST}", "threads is 'two'"),
    "knobs": (f"UPDATE records SET knobs = '[]' {BEST}", "knobs is []; expected a mapping"),
    "no outcome": (f"UPDATE records SET outcome = 'fine' {BEST}", "outcomes"),
    "a whole": ("UPDATE wholes SET tuned_seconds = 'x'", "tuned_seconds is 'x'"),
    "a whole of nothing": ("UPDATE wholes SET taken = '[]'", "taken is []; expected a mapping"),
    "a task": ("UPDATE tasks SET text = substr(text, 1, 50)", "cannot be read"),
    "another task": (f"UPDATE tasks SET text = '{MATMULS[1]}'", "what is called the task"),
    "no task": ("DELETE FROM tasks", "expected a text"),
}
