"""The database: records go in as they come, and come out by Task, conditions, target or version."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from modelc.database.file import SCHEMA, Damaged, explaining, opened, set_aside
from modelc.database.record import LONGEST, MEASUREMENT, RECORD, Conditions, Record, parsed
from modelc.database.whole import Whole
from modelc.errors import DatabaseError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.text import parse_task
from modelc.scratch import user_cache

JSON = {"candidate", "knobs", "taken"}  # columns
COLUMNS = {  # of each table, but for a record's number
    "records": (*(name for name in RECORD if name != "measurement"), *MEASUREMENT),
    "wholes": tuple(field.name for field in fields(Whole)),
}
_OWN_KEY = {"records": "number", "tasks": "hash", "wholes": "network"}  # by which a row of a table is called
_LATER = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS["wholes"])
_CONFLICT = {
    "records": "DO NOTHING",
    "wholes": f"(network) DO UPDATE SET {_LATER} WHERE excluded.measured_at > measured_at",
}

T = TypeVar("T")


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
    wherever something is in the way, and says what. A row that does not hold what it should is left out, and the others
    are not: `damaged` says what is wrong with those that were met so far, by table and key."""

    def __init__(self, path: str | Path, write: bool = True) -> None:
        self.path = Path(path)
        self.damaged: dict[tuple[str, object], str] = {}
        self._connection = opened(self.path, write)
        self._connection.text_factory = _text

    def __enter__(self) -> Database:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # --- in -----------------------------------------------------------------------------------------------------------

    def add(self, task: Task, *records: Record) -> int:
        """Adds records of the canonical `task`, at once and for good, and returns how many of them are new."""
        with self.changing():
            return self.put({task.hash: str(task)}, records)

    def put(self, tasks: Mapping[str, str], records: Sequence[Record]) -> int:
        """Adds the texts of Tasks by hash and records of them, within changing(); returns how many records are new."""
        self._connection.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", tasks.items())
        before = self._connection.total_changes
        self._insert("records", map(_fields_of, records))
        return self._connection.total_changes - before

    def settle(self, *wholes: Whole) -> None:
        """Adds what networks have taken; the latest of each counts."""
        with self.changing():
            self.put_wholes(wholes)

    def put_wholes(self, wholes: Sequence[Whole]) -> None:
        """The same within changing()."""
        self._insert("wholes", map(asdict, wholes))

    def _insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        columns = COLUMNS[table]
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self._connection.executemany(
            f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT {_CONFLICT[table]}",
            ([_text_of(row[name]) if name in JSON else row[name] for name in columns] for row in rows),
        )

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
        exactly = {} if conditions is None else asdict(conditions)
        return self._entries("records", _record, {"task": task, "target": target, "version": version} | exactly)

    def _entries(self, table: str, entry_of: Callable[[Sequence[Any]], T], wanted: Mapping[str, object]) -> Iterator[T]:
        """What rows say, but for damaged ones; None is whatever there is."""
        columns = [f"substr({name}, 1, {LONGEST + 1})" if name in JSON else name for name in COLUMNS[table]]
        clause, values = _where(wanted)
        select = f"SELECT {_OWN_KEY[table]}, {', '.join(columns)} FROM {table}{clause} ORDER BY {_OWN_KEY[table]}"
        with explaining(self.path):
            for key, *row in self._connection.execute(select, values):
                entry = self._read(table, key, partial(entry_of, row))
                if entry is not None:
                    yield entry

    def count(self, task: str, conditions: Conditions) -> int:
        """How many records of that Task were made under just these conditions."""
        clause, values = _where({"task": task} | asdict(conditions))
        return int(self._scalar(f"SELECT count(*) FROM records{clause}", values))

    def others(self, task: str, conditions: Conditions) -> int:
        """How many records of that Task were made under other conditions."""
        total = self._scalar("SELECT count(*) FROM records WHERE task = ?", [task])
        return int(total) - self.count(task, conditions)

    def candidate(self, record: Record) -> Candidate | None:
        """What was measured; None where a record of this database does not say it."""
        where = [record.task, record.key, record.measured_at]
        number = self._scalar("SELECT min(number) FROM records WHERE task = ? AND key = ? AND measured_at = ?", where)
        return self._read("records", number, lambda: record.candidate)

    def task(self, key: str) -> Task | None:
        """The Task of that hash, which some record is of; None where the database does not say it."""
        text = self._scalar(f"SELECT min(substr(text, 1, {LONGEST + 1})) FROM tasks WHERE hash = ?", [key])
        return self._read("tasks", key, lambda: checked_task(key, text))

    def tasks(self) -> Iterator[str]:
        """The hashes of all Tasks that there are records of."""
        with explaining(self.path):
            for (key,) in self._connection.execute("SELECT DISTINCT task FROM records ORDER BY task"):
                if isinstance(key, str):
                    yield key

    def wholes(
        self, network: str | None = None, target: str | None = None, version: str | None = None
    ) -> Iterator[Whole]:
        """Of one network_of(), of a target, of a version."""
        return self._entries("wholes", _whole, {"network": network, "target": target, "version": version})

    def counts(self) -> list[Count]:
        """One for each target, version and number of threads, the latest first."""
        groups: dict[tuple[str, str, int], list[tuple[str, bool, float]]] = {}
        for record in self.records():
            where = record.conditions
            facts = record.task, record.measurement.ok, record.measured_at
            groups.setdefault((where.target, where.version, where.threads), []).append(facts)
        counts = []
        for names, rows in groups.items():
            tasks, failures = {task for task, _, _ in rows}, sum(not ok for _, ok, _ in rows)
            counts.append(Count(*names, len(tasks), len(rows), failures, max(when for _, _, when in rows)))
        return sorted(counts, key=lambda count: -count.last)

    @property
    def note(self) -> str:
        """A sentence about what was left out so far; nothing where all is well."""
        if not self.damaged:
            return ""
        (table, key), wrong = next(iter(self.damaged.items()))
        where = "" if self.path == default_place() else f" --database {shlex.quote(str(self.path))}"
        return (
            f"damaged rows of the database {self.path} are left out: {len(self.damaged)} (the first, {key} of its "
            f"{table}: {wrong}); modelc database prune --damaged{where} removes them"
        )

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
            removed = self._connection.execute(f"DELETE FROM records WHERE {where}", values).rowcount
            self._connection.execute("DELETE FROM tasks WHERE hash NOT IN (SELECT task FROM records)")
            if not failed:
                self._connection.execute(f"DELETE FROM wholes WHERE {where}", values)
        self._shrink()
        return removed

    def remove_damaged(self) -> int:
        """Removes every row that does not hold what it should, and records of Tasks of which the database does not say
        what they are. Returns how many records."""
        for record in self.records():
            self.candidate(record)
        for key in self.tasks():
            self.task(key)
        list(self.wholes())
        with self.changing():
            before = self._scalar("SELECT count(*) FROM records", [])
            for table, own in self.damaged:
                self._connection.execute(f"DELETE FROM {table} WHERE {_OWN_KEY[table]} = ?", [own])
            self._connection.execute("DELETE FROM records WHERE task NOT IN (SELECT hash FROM tasks)")
            self._connection.execute("DELETE FROM tasks WHERE hash NOT IN (SELECT task FROM records)")
            after = self._scalar("SELECT count(*) FROM records", [])
        self._shrink()
        return int(before) - int(after)

    def _shrink(self) -> None:
        with explaining(self.path):
            self._connection.execute("VACUUM")

    def _scalar(self, statement: str, values: Sequence[object]) -> Any:
        with explaining(self.path):
            return self._connection.execute(statement, values).fetchone()[0]

    def _read(self, table: str, key: object, read: Callable[[], T]) -> T | None:
        """What a row holds; None, and it is one of those that are damaged, where that is not what it should be."""
        try:
            return read()
        except (ValueError, RecursionError) as wrong:
            self.damaged[table, key] = str(wrong)[:300]
            return None


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


def checked_task(key: str, text: object) -> Task:
    """The Task that `text` says, if it has the hash `key`. Raises ValueError."""
    try:
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError(f"expected a text of at most {LONGEST} characters")
        task = parse_task(text)
        actual = task.hash
    except (ValueError, RecursionError, MemoryError) as wrong:
        raise ValueError(f"the task {key} cannot be read: {str(wrong)[:300]}") from None
    if actual != key or text != str(task.canonical()):
        raise ValueError(f"what is called the task {key} is {actual}")
    return task


def _text(data: bytes) -> str | bytes:
    """What SQLite says is text, which need not be."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _fields_of(record: Record) -> dict[str, Any]:
    data = record.to_json()
    measurement: dict[str, Any] = data.pop("measurement")
    return data | measurement


def _record(row: Sequence[Any]) -> Record:
    data = _cells("records", row)
    data["untuned"] = {0: False, 1: True}.get(data["untuned"])
    data["measurement"] = {name: data.pop(name) for name in MEASUREMENT}
    return Record.from_json(data)


def _whole(row: Sequence[Any]) -> Whole:
    return Whole.from_json(_cells("wholes", row))


def _cells(table: str, row: Sequence[Any]) -> dict[str, Any]:
    """A row by its columns. Raises ValueError."""
    cells = dict(zip(COLUMNS[table], row, strict=True))
    for name in JSON & cells.keys():
        if not isinstance(cells[name], str) or len(cells[name]) > LONGEST:
            raise ValueError(f"its {name} is no text of at most {LONGEST} characters")
        cells[name] = parsed(cells[name])
    return cells


def _text_of(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _where(wanted: Mapping[str, object]) -> tuple[str, list[object]]:
    given = {name: value for name, value in wanted.items() if value is not None}
    clause = " AND ".join(f"{name} = ?" for name in given)
    return f" WHERE {clause}" if clause else "", list(given.values())
