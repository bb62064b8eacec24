"""The database: records go in as they come, and come out by Task, conditions, target or version."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from modelc.database.file import SAY, SCHEMA, Damaged, explaining, opened, set_aside
from modelc.database.record import LONGEST, Conditions, Record, parsed
from modelc.database.whole import Whole
from modelc.errors import DatabaseError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.text import parse_task
from modelc.measure.measurement import Measurement
from modelc.scratch import user_cache

CONDITIONS = tuple(one.name for one in fields(Conditions))
MEASUREMENT = tuple(one.name for one in fields(Measurement))
COLUMNS = ("task", *CONDITIONS, "candidate", "key", "untuned", "sketch", "knobs", *MEASUREMENT, "measured_at")
_INSERT = f"INSERT OR IGNORE INTO records ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_SELECT = ", ".join(f"substr({name}, 1, {LONGEST + 1})" if name == "candidate" else name for name in COLUMNS)
WHOLE = tuple(one.name for one in fields(Whole))
_WHOLES = ", ".join(f"substr({name}, 1, {LONGEST + 1})" if name == "taken" else name for name in WHOLE)
_LATER = ", ".join(f"{name} = excluded.{name}" for name in WHOLE)
_SETTLE = (
    f"INSERT INTO wholes ({', '.join(WHOLE)}) VALUES ({', '.join('?' * len(WHOLE))}) "
    f"ON CONFLICT (network) DO UPDATE SET {_LATER} WHERE excluded.measured_at > measured_at"
)


def default_place() -> Path:
    """The user's own database, which need not be there. Another schema has another file."""
    return user_cache() / f"records-{SCHEMA}.sqlite"


@dataclass(frozen=True)
class Count:
    """How many records there are of one target, version and threads: of how many Tasks, and how many failed."""

    target: str
    version: str
    threads: int
    tasks: int
    records: int
    failures: int
    last: float  # when the latest was measured


class Database:
    """An open database. `write`: records may be added, and it is made where there is none. Raises DatabaseError
    wherever something is in the way, and says what."""

    def __init__(self, path: str | Path, write: bool = True) -> None:
        self.path = Path(path)
        self._connection = opened(self.path, write)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # --- in -----------------------------------------------------------------------------------------------------------

    def add(self, task: Task, *found: Record) -> int:
        """Adds records of the canonical `task`, at once and for good, and returns how many of them are new."""
        with self.changing():
            return self.put({task.hash: str(task)}, found)

    def put(self, tasks: Mapping[str, str], found: Sequence[Record]) -> int:
        """Adds the texts of Tasks by hash and records of them, within changing(); returns how many records are new."""
        self._connection.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", tasks.items())
        before = self._connection.total_changes
        self._connection.executemany(_INSERT, map(_row, found))
        return self._connection.total_changes - before

    def settle(self, *found: Whole) -> None:
        """Adds what networks have taken; the latest of each counts."""
        with self.changing():
            self.put_wholes(found)

    def put_wholes(self, found: Sequence[Whole]) -> None:
        """The same within changing()."""
        self._connection.executemany(_SETTLE, map(_whole_row, found))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Everything within it, or nothing."""
        with explaining(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    # --- out ----------------------------------------------------------------------------------------------------------

    def records(
        self,
        task: str | None = None,
        conditions: Conditions | None = None,
        target: str | None = None,
        version: str | None = None,
    ) -> Iterator[Record]:
        """Records in the order in which they came: of the Task with the hash `task`, of exactly these `conditions`, or
        of a target or version."""
        where = {"task": task, "target": target, "version": version}
        if conditions is not None:
            where |= {name: getattr(conditions, name) for name in CONDITIONS}
        clause, values = _where({name: value for name, value in where.items() if value is not None})
        with explaining(self.path):
            for number, *row in self._connection.execute(
                f"SELECT number, {_SELECT} FROM records{clause} ORDER BY number", values
            ):
                yield self._record(number, row)

    def count(self, task: str, conditions: Conditions) -> int:
        """How many records of that Task were made under just these conditions."""
        clause, values = _where({"task": task} | {name: getattr(conditions, name) for name in CONDITIONS})
        return int(self._one(f"SELECT count(*) FROM records{clause}", values))

    def others(self, task: str, conditions: Conditions) -> int:
        """How many records of that Task were made under other conditions."""
        every = self._one("SELECT count(*) FROM records WHERE task = ?", [task])
        return int(every) - self.count(task, conditions)

    def candidate(self, record: Record) -> Candidate:
        """What was measured. Raises DatabaseError where a record of this database does not say it."""
        try:
            return record.candidate
        except ValueError as wrong:
            raise Damaged(
                f"a record of the task {record.task} in the database {self.path} has no candidate: {str(wrong)[:300]}; "
                f"{SAY}"
            ) from None

    def task(self, key: str) -> Task:
        """The Task of that hash, which some record is of."""
        with explaining(self.path):
            row = self._connection.execute(
                f"SELECT substr(text, 1, {LONGEST + 1}) FROM tasks WHERE hash = ?", [key]
            ).fetchone()
        if row is None:
            raise Damaged(f"the database {self.path} has records of the task {key}, and not the task")
        return checked_task(key, row[0], f"the database {self.path}")

    def tasks(self) -> Iterator[str]:
        """The hashes of all Tasks."""
        with explaining(self.path):
            for (key,) in self._connection.execute("SELECT hash FROM tasks ORDER BY hash"):
                yield str(key)

    def wholes(
        self, network: str | None = None, target: str | None = None, version: str | None = None
    ) -> Iterator[Whole]:
        """Of one network_of(), of a target, of a version."""
        where = {"network": network, "target": target, "version": version}
        clause, values = _where({name: value for name, value in where.items() if value is not None})
        with explaining(self.path):
            rows = self._connection.execute(f"SELECT {_WHOLES} FROM wholes{clause} ORDER BY network", values)
            for row in rows:
                try:
                    data = dict(zip(WHOLE, row, strict=True))
                    if not isinstance(data["taken"], str) or len(data["taken"]) > LONGEST:
                        raise ValueError(f"its taken is no text of at most {LONGEST} characters")
                    yield Whole.from_json(data | {"taken": parsed(data["taken"])})
                except ValueError as wrong:
                    raise Damaged(f"a whole of the database {self.path} is none: {str(wrong)[:300]}; {SAY}") from None

    def counts(self) -> list[Count]:
        """One for each target, version and number of threads, the latest first."""
        with explaining(self.path):
            rows = self._connection.execute(
                "SELECT target, version, threads, count(DISTINCT task), count(*), sum(outcome <> 'ok'), "
                "max(measured_at) FROM records GROUP BY target, version, threads ORDER BY max(measured_at) DESC"
            ).fetchall()
        return [Count(str(t), str(v), int(n), int(k), int(r), int(f), float(at)) for t, v, n, k, r, f, at in rows]

    # --- less ---------------------------------------------------------------------------------------------------------

    def prune(
        self, target: str | None = None, stale: str | None = None, before: float | None = None, failed: bool = False
    ) -> int:
        """Removes the records of a `target`, whose version does not begin with `stale`, measured `before` then, that
        `failed`: those for which all hold that are given, and one has to be. Tasks without records go too. Returns how
        many. Wholes go with the records of their target, version and age."""
        conditions = {
            "target = ?": target,
            "instr(version, ?) <> 1": stale,
            "measured_at < ?": before,
            "outcome <> ?": "ok" if failed else None,
        }
        given = {clause: value for clause, value in conditions.items() if value is not None}
        if not given:
            raise DatabaseError("nothing says which records are to go")
        with self.changing():
            where, values = " AND ".join(given), list(given.values())
            found = self._connection.execute(f"DELETE FROM records WHERE {where}", values).rowcount
            self._connection.execute("DELETE FROM tasks WHERE hash NOT IN (SELECT task FROM records)")
            if not failed:
                self._connection.execute(f"DELETE FROM wholes WHERE {where}", values)
        with explaining(self.path):
            self._connection.execute("VACUUM")
        return found

    def _one(self, statement: str, values: Sequence[object]) -> Any:
        with explaining(self.path):
            return self._connection.execute(statement, values).fetchone()[0]

    def _record(self, number: int, row: Sequence[Any]) -> Record:
        data = dict(zip(COLUMNS, row, strict=True))
        try:
            for name in ("candidate", "knobs"):
                if not isinstance(data[name], str) or len(data[name]) > LONGEST:
                    raise ValueError(f"its {name} is no text of at most {LONGEST} characters")
                data[name] = parsed(data[name])
            data["untuned"] = {0: False, 1: True}.get(data["untuned"])
            data["measurement"] = {name: data.pop(name) for name in MEASUREMENT}
            return Record.from_json(data)
        except ValueError as wrong:
            raise Damaged(f"record {number} of the database {self.path} is none: {str(wrong)[:300]}; {SAY}") from None


def database_for(given: str | Path | bool, write: bool) -> tuple[Database | None, str]:
    """The database that a command was `given`: a file; True, the user's own, as far as it is there or `write` makes it;
    False, none. With a sentence about what was noteworthy: the user's own is renamed where it is damaged."""
    if given is False:
        return None, ""
    path = default_place() if given is True else Path(given)
    if given is True and not write and not os.path.lexists(path):
        return None, ""
    try:
        return Database(path, write), ""
    except Damaged as wrong:
        if given is not True:
            raise
        said, aside = str(wrong).split(";")[0], set_aside(path)
    note = said if aside is None else f"{said}; it is kept as {aside.name}, and a new one is begun"
    return (Database(path, write) if write or os.path.lexists(path) else None), note


def records(path: str | Path, target: str, version: str) -> Iterator[tuple[Task, list[Record]]]:
    """What a database knows of one target and version of the code, Task by Task: what a cost is learned from."""
    with Database(path, write=False) as database:
        for key in database.tasks():
            if found := list(database.records(key, target=target, version=version)):
                yield database.task(key), found


def checked_task(key: str, text: object, source: str) -> Task:
    """The Task that `text` says, if it has the hash `key`. Raises DatabaseError."""
    try:
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError(f"expected a text of at most {LONGEST} characters")
        task = parse_task(text)
        found = task.hash
    except (ValueError, RecursionError, MemoryError) as wrong:
        raise DatabaseError(f"{source}: the task {key} cannot be read: {str(wrong)[:300]}") from None
    if found != key or text != str(task.canonical()):
        raise DatabaseError(f"{source}: what is called the task {key} is {found}")
    return task


def _row(record: Record) -> tuple[object, ...]:
    conditions = [getattr(record.conditions, name) for name in CONDITIONS]
    measurement = [getattr(record.measurement, name) for name in MEASUREMENT]
    knobs = json.dumps(dict(record.knobs), separators=(",", ":"))
    point = record.untuned, record.sketch, knobs
    return (record.task, *conditions, record.text, record.key, *point, *measurement, record.measured_at)


def _whole_row(whole: Whole) -> list[object]:
    data = whole.to_json()
    return [json.dumps(data[name], separators=(",", ":")) if name == "taken" else data[name] for name in WHOLE]


def _where(given: Mapping[str, object]) -> tuple[str, list[object]]:
    assert set(given) <= {*COLUMNS, *WHOLE}
    clause = " AND ".join(f"{name} = ?" for name in given)
    return f" WHERE {clause}" if clause else "", list(given.values())


__all__ = ["Count", "Database", "checked_task", "default_place", "records"]
