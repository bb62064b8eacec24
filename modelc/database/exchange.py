"""Records as JSON lines, out and in. What comes in is not trusted: every line is checked, and all are taken or none.

{"modelc_records": 3}
{"task": "60df04c10275ed4d", "text": "task task(b0, b1) -> ..."}        before the first record of that Task
{"record": {"task": "60df04c10275ed4d", "target": ..., "candidate": {...}, "measurement": {...}, ...}}
{"whole": {"network": ..., "taken": {...}, "untuned_seconds": ..., "tuned_seconds": ..., ...}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from modelc.database.record import LONGEST, Record, parsed
from modelc.database.store import Database, checked_task
from modelc.database.whole import Whole
from modelc.errors import DatabaseError

FORMAT = 3
LONGEST_LINE = 4 * LONGEST  # bytes


@dataclass(frozen=True)
class Taken:
    """How many records were read, and how many of them were new; `note` says what was left out."""

    records: int
    new: int
    note: str = ""


def exported(database: Database, target: str | None = None, version: str | None = None) -> Iterator[str]:
    """The lines of every record, or of those of a `target` or `version`, but for what is damaged."""
    yield _line({"modelc_records": FORMAT})
    for key in database.tasks():
        task = None
        for record in database.records(key, target=target, version=version):
            if task is None:
                task = database.task(key)
                if task is None:
                    break
                yield _line({"task": key, "text": str(task)})
            yield _line({"record": record.to_json()})
    for whole in database.wholes(target=target, version=version):
        yield _line({"whole": whole.to_json()})


def imported(database: Database, lines: Iterable[str | bytes], source: str) -> Taken:
    """Adds what exported() gave. Raises DatabaseError, which names the line, and then nothing was added. Everything is
    checked before the database is locked: others write there meanwhile."""
    tasks: dict[str, str] = {}
    records: list[Record] = []
    wholes: list[Whole] = []
    stream = enumerate(lines, 1)
    _check_first(next(stream, (1, ""))[1], source)
    for number, line in stream:
        place = f"{source}, line {number}"
        with _refusing(f"{place} is not JSON: "):
            entry = parsed(_text(line))
        if not isinstance(entry, dict) or set(entry) not in ({"task", "text"}, {"record"}, {"whole"}):
            raise DatabaseError(f"{place} is neither a task with its text nor a record nor a whole")
        if "record" in entry:
            with _refusing(f"{place} is no record: "):
                record = Record.from_json(entry["record"])
                _ = record.candidate
            if record.task not in tasks:
                raise DatabaseError(
                    f"{place} is a record of the task {record.task}, of which no line before says what it is"
                )
            records.append(record)
        elif "whole" in entry:
            with _refusing(f"{place} is no whole: "):
                wholes.append(Whole.from_json(entry["whole"]))
        else:
            with _refusing(f"{place}: "):
                tasks[str(entry["task"])] = str(checked_task(entry["task"], entry["text"]))
    used = {record.task: tasks[record.task] for record in records}
    with database.changing():
        database.put_wholes(wholes)
        return Taken(len(records), database.put(used, records))


def merged(database: Database, other: Path) -> Taken:
    """Adds every record of another database but for what is damaged there, checked like what is imported."""
    with Database(other, write=False) as theirs:
        taken = imported(database, exported(theirs), f"the database {other}")
        return replace(taken, note=theirs.note)


def lines_of(file: BinaryIO, source: str) -> Iterator[bytes]:
    """The lines of a file, none of which may be endless."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise DatabaseError(f"{source}, line {number} has more than {LONGEST_LINE} bytes: it holds no record")
        yield line


def _check_first(line: str | bytes, source: str) -> None:
    with suppress(ValueError):
        if parsed(_text(line)) == {"modelc_records": FORMAT}:
            return
    raise DatabaseError(f"{source} holds no records: its first line is not {_line({'modelc_records': FORMAT})}")


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Makes a sentence of a ValueError."""
    try:
        yield
    except ValueError as wrong:
        raise DatabaseError(f"{what}{str(wrong)[:300]}") from None


def _text(line: str | bytes) -> str:
    return line if isinstance(line, str) else line.decode()  # UnicodeDecodeError is a ValueError


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
