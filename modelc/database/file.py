"""The file of a database: opened only if it is one of ours, made whole or not at all, and what SQLite's errors mean.

A file may be anything: it is looked at before SQLite reads it, and its schema is compared word by word, so that no
trigger, view or virtual table of somebody else's is ever run.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from modelc.errors import DatabaseError
from modelc.scratch import beside

SCHEMA = 3
APPLICATION = 0x6D6F6463  # in the file's header: "modc"
PATIENCE = 20.0  # seconds that another process may hold the lock
LARGEST = 16 << 30  # bytes
CHECKED = 256 << 20  # bytes up to which every page is looked at when the file is opened
MAGIC = b"SQLite format 3\0"
STATEMENTS = (
    "CREATE TABLE tasks (hash TEXT PRIMARY KEY, text TEXT NOT NULL)",
    """CREATE TABLE records (
 number INTEGER PRIMARY KEY, task TEXT NOT NULL REFERENCES tasks, target TEXT NOT NULL, version TEXT NOT NULL,
 threads INTEGER NOT NULL, constants TEXT NOT NULL, policy TEXT NOT NULL, candidate TEXT NOT NULL, key TEXT NOT NULL,
 untuned INTEGER NOT NULL, sketch TEXT NOT NULL, knobs TEXT NOT NULL, outcome TEXT NOT NULL, message TEXT NOT NULL,
 seconds REAL NOT NULL, noise REAL NOT NULL, repeats INTEGER NOT NULL, reference_seconds REAL NOT NULL,
 build_seconds REAL NOT NULL, run_seconds REAL NOT NULL, reference TEXT NOT NULL, measured_at REAL NOT NULL,
 UNIQUE (task, target, version, threads, constants, policy, key, measured_at))""",
    "CREATE INDEX records_of ON records (target, version)",
    """CREATE TABLE wholes (
 network TEXT PRIMARY KEY, target TEXT NOT NULL, version TEXT NOT NULL, taken TEXT NOT NULL,
 untuned_seconds REAL NOT NULL, tuned_seconds REAL NOT NULL, measured_at REAL NOT NULL)""",
)


class Damaged(DatabaseError):
    """What is there is no database of ours, or cannot be read as one."""


def opened(path: Path, write: bool) -> sqlite3.Connection:
    """A connection to the database at `path`; with `write` it is made where there is none. Raises DatabaseError."""
    if write and not os.path.lexists(path):
        _make(path)
    size = _looked_at(path)
    with explaining(path):
        connection = sqlite3.connect(_address(path, write), uri=True, timeout=PATIENCE, isolation_level=None)
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA cell_size_check=ON")
            connection.execute("PRAGMA mmap_size=0")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA query_only={'OFF' if write else 'ON'}")
            _check_schema(connection, path)
            if size <= CHECKED and (verdict := connection.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                raise Damaged(f"the database {path} is damaged: {str(verdict[0])[:200]}; {_REMEDY}")
        except BaseException:
            connection.close()
            raise
    return connection


def set_aside(path: Path) -> Path | None:
    """Renames a database that is Damaged, with what SQLite keeps beside it, and returns its new name; None where it has
    become a good one meanwhile. Raises DatabaseError."""
    with explaining(path), _locked_folder(path.parent):
        try:
            opened(path, write=False).close()
            return None
        except Damaged:
            pass
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
            number += 1
        os.rename(path, aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")
        return aside


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Makes a sentence of what SQLite or the system raises. What a full disk or a lock refused is not written; what was
    written before stays."""
    try:
        yield
    except sqlite3.Error as error:
        said = str(error)
        if "locked" in said or "busy" in said:
            why = f"is locked by another process for more than {PATIENCE:.0f} s; wait for it, {_OTHER}"
        elif "full" in said:
            why = f"cannot be written: {said}; make room, {_OTHER}"
        elif "readonly" in said or "unable to open" in said:
            why = f"cannot be opened or written: {said}; see to its permissions and those of its folder, {_OTHER}"
        elif "I/O" in said:
            why = f"cannot be read or written: {said} (a full disk, or a limit of the file's size?); {SAY}"
        else:
            raise Damaged(f"the database {path} is damaged: {said[:200]}; {_REMEDY}") from None
        raise DatabaseError(f"the database {path} {why}") from None
    except OSError as error:
        raise DatabaseError(f"the database {path} cannot be opened or written: {error.strerror}; {SAY}") from None


SAY = "name another with --database, or say --no-database"
_OTHER = f"or {SAY}"
_REMEDY = "it was left as it is: name another file with --database, or move this one away"


def _make(path: Path) -> None:
    """A new database, which appears whole: two processes may do so at once."""
    with explaining(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with beside(path, folder=True) as folder:
            made = folder / "new"
            connection = sqlite3.connect(made, isolation_level=None)
            try:
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                connection.execute(f"PRAGMA user_version={SCHEMA}")
                for statement in STATEMENTS:
                    connection.execute(statement)
                connection.execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()
            with suppress(FileExistsError):
                os.link(made, path)


def _looked_at(path: Path) -> int:
    """The size of the file, if SQLite may read it."""
    with explaining(path):
        try:
            kind = path.stat()
        except FileNotFoundError:
            raise DatabaseError(f"there is no database {path}") from None
        if not stat.S_ISREG(kind.st_mode):
            raise Damaged(f"{path} is no database: it is no file; {_REMEDY}")
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
    if head != MAGIC:
        raise Damaged(f"{path} is no database of modelc: it is no file of SQLite; {_REMEDY}")
    if kind.st_size > LARGEST:
        raise Damaged(f"{path} has {kind.st_size} bytes; expected at most {LARGEST}; {_REMEDY}")
    return kind.st_size


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise Damaged(f"{path} is no database of modelc: it is another program's file of SQLite; {_REMEDY}")
    if version != SCHEMA:
        raise Damaged(f"the database {path} has schema {version}; this modelc knows {SCHEMA}; {_REMEDY}")
    schema = connection.execute("SELECT substr(sql, 1, 4000) FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if sorted(sql for (sql,) in schema) != sorted(STATEMENTS):
        raise Damaged(f"{path} is no database of modelc: its tables are others; {_REMEDY}")


def _address(path: Path, write: bool) -> str:
    """What SQLite calls the file. Who only reads opens it for writing all the same where that is possible, for then
    nothing is left beside it; where nobody can write beside it, there is nothing to wait for."""
    mode = "mode=rw"
    if not write and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        mode = "mode=ro" if os.path.exists(f"{path}-wal") else "immutable=1"
    return f"file:{quote(os.path.abspath(path))}?{mode}"


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
