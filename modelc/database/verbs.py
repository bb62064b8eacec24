"""What users do with a database: `modelc.database` as the command line has it. `database` is a file, by default the
user's own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modelc.database.exchange import Taken, exported, imported, lines_of, merged
from modelc.database.store import Database, default_place
from modelc.database.summary import lines
from modelc.database.version import code_version
from modelc.errors import ConfigError, DatabaseError
from modelc.scratch import beside
from modelc.target import load_target
from modelc.verb import Progress

DAY = 86400.0


@dataclass(frozen=True)
class Written:
    """How many records were written; `note` says what was left out."""

    records: int
    note: str = ""


@dataclass(frozen=True)
class Best:
    """How many `records` were written, of how many Candidates that finals took; `note` says what was left out."""

    records: int
    candidates: int
    note: str = ""


def show(database: str | Path | None = None, tasks: bool = False, target: str | None = None) -> dict[str, Any]:
    """Says what was measured for which targets, by which versions of the code.

    Args:
        database: The file.
        tasks: Whether each Task is listed too that this version of the code has measured.
        target: Of the Tasks those for the target of this key (modelc.targets.load(NAME).key).

    Returns:
        By the keys `path`, `bytes`, `modelc` (this version of the code) and `notes` what it is; `groups` the numbers of
        tasks, records and failures by target, version and threads; `tasks` each with its untuned and best seconds.

    Raises:
        DatabaseError: There is no such database, or it is damaged.

    Example:
        >>> modelc.database.show("measured.db")["groups"][0]["records"]
        4
    """
    ours = code_version()
    with Database(database or default_place(), write=False) as opened:
        counts = opened.counts()
        listed = [line for line in lines(opened, target) if line.conditions.version.startswith(ours)] if tasks else []
        size = opened.path.stat().st_size
    summary = {
        "path": str(opened.path),
        "bytes": size,
        "modelc": ours,
        "groups": [asdict(count) for count in counts],
        "notes": list(filter(None, [opened.note])),
    }
    return summary | ({"tasks": [asdict(line) for line in listed]} if tasks else {})


def export(
    output: str | Path, database: str | Path | None = None, target: str | None = None, version: str | None = None
) -> Written:
    """Writes records as JSON lines.

    Args:
        output: The file that is written.
        database: The file that is read.
        target: Records for the target of this key alone.
        version: Records of this version of the code alone.

    Returns:
        A Written: how many `records` were written.

    Raises:
        DatabaseError: There is no such database, or the file cannot be written.

    Example:
        >>> modelc.database.export("measured.jsonl", "measured.db")
        Written(records=4, note='')
    """
    place = Path(output)
    with Database(database or default_place(), write=False) as opened:
        count = _write(place, exported(opened, target, version))
        return Written(count, opened.note)


def _write(place: Path, lines: Iterable[str]) -> int:
    """Writes lines, all or none; returns how many of them are records of a database. Raises DatabaseError."""
    count = 0
    try:
        with beside(place, folder=False) as made:
            with made.open("w") as file:
                for line in lines:
                    file.write(line + "\n")
                    count += line.startswith('{"record"')
            os.replace(made, place)
    except OSError as error:
        raise DatabaseError(f"{place} cannot be written: {error.strerror}") from None
    return count


def import_(file: str | Path, database: str | Path | None = None) -> Taken:
    """Adds records that `export` wrote. Every line is checked, and all are added or none.

    Args:
        file: The JSON lines; "-": those of stdin.
        database: The file that they are added to.

    Returns:
        A Taken: how many `records` were read, how many of them were `new`.

    Raises:
        DatabaseError: A line is no record, which is named, or a file cannot be read or written.

    Example:
        >>> modelc.database.import_("measured.jsonl", "copied.db")
        Taken(records=4, new=4, note='')
    """
    try:
        with (
            sys.stdin.buffer if str(file) == "-" else Path(file).open("rb") as stream,
            Database(database or default_place()) as opened,
        ):
            return imported(opened, lines_of(stream, str(file)), str(file))
    except OSError as error:
        raise DatabaseError(f"{file} cannot be read: {error.strerror}") from None


def merge(others: str | Path | Sequence[str | Path], database: str | Path | None = None) -> tuple[Taken, ...]:
    """Adds the records of other databases, checked like what is imported: of each file all, or none; but what is
    damaged there is left out.

    Args:
        others: The files that are read, one or several.
        database: The file that their records are added to.

    Returns:
        A Taken for each.

    Raises:
        DatabaseError: A file is no database, or cannot be read or written.

    Example:
        >>> modelc.database.merge("measured.db", "copied.db")
        (Taken(records=4, new=0, note=''),)
    """
    paths = [Path(other) for other in ((others,) if isinstance(others, str | Path) else others)]
    for path in paths:
        Database(path, write=False).close()  # before a database is made of nothing
    with Database(database or default_place()) as opened:
        return tuple(merged(opened, path) for path in paths)


def best(
    output: str | Path,
    database: str | Path | None = None,
    target: str | Path = "native",
    threads: int = 1,
    progress: Progress | None = None,
) -> Best:
    """Writes the records that travel to other machines like this one, in the file that a target's YAML names: of every
    Task what the finals of a network took, measured once more, where it is at least 5 % faster than without tuning.

    Args:
        output: The file that is written.
        database: The file that is read.
        target: This machine, as it was tuned for: a shipped target's name, or a file.
        threads: On which kernels were measured, and are now.
        progress: Is told how far it is: a stage, and a text.

    Returns:
        A Best: how many `records` were written, of how many `candidates`.

    Raises:
        DatabaseError: There is no such database, or the file cannot be written.
        MeasureError: Nothing can be measured.

    Example:
        >>> modelc.database.best("mine.jsonl", "measured.db")
        Best(records=0, candidates=0, note='')
    """
    from modelc.database.family import best_records  # which measures

    place, described = Path(output), load_target(target)
    with Database(database or default_place(), write=False) as opened:
        records, candidates, left_out = best_records(opened, described, threads, progress)
        note = "; ".join(filter(None, (left_out, opened.note)))
    _write(place, records.lines())
    return Best(len(records), candidates, note)


def prune(
    database: str | Path | None = None,
    stale: bool = False,
    target: str | None = None,
    older_than: float | None = None,
    failed: bool = False,
    damaged: bool = False,
) -> int:
    """Removes records: those that fulfil all of the conditions that are given, or those that are damaged.

    Args:
        database: The file.
        stale: Of other versions of the code than this modelc's.
        target: For the target of this key.
        older_than: Measured longer ago than so many days.
        failed: Of schedules that failed; tuning would try them again.
        damaged: What cannot be read, which goes with no other condition.

    Returns:
        How many records were removed.

    Raises:
        ConfigError: There is no condition, or one beside `damaged`.
        DatabaseError: There is no such database, or it cannot be written.

    Example:
        >>> modelc.database.prune("copied.db", older_than=0)
        4
    """
    conditions = stale or failed or target is not None or older_than is not None
    if conditions == damaged:
        raise ConfigError(
            "say which records are to go: stale, target, older_than, failed; or damaged alone, for what is damaged "
            "does not say what it is of"
        )
    place = Path(database or default_place())
    if not os.path.lexists(place):
        raise DatabaseError(f"there is no database {place}")
    with Database(place) as opened:
        if damaged:
            return opened.remove_damaged()
        before = None if older_than is None else time.time() - older_than * DAY
        return opened.prune(target, code_version() if stale else None, before, failed)
