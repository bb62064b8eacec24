"""The file of the cache. All of its content can be worked out again, so a damaged file costs time and nothing else: a
file that cannot be read or written is not used, and `trouble` says why.

    kept (kind, key, data, digest, used)   key: sha256 of all that decides the data; used: the day of the last use

Each row has a digest of its content; a row with a wrong digest is left out. The file lies in a private folder. Several
processes may use it; a connection is never shared with a fork.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from modelc.scratch import make_private, user_cache

T = TypeVar("T")
NAME = "kept.sqlite"
MOST_BYTES = 1 << 30  # of the file; beyond it, what was not used for longest goes
LEFT = 0.7  # of MOST_BYTES, that stay then
NEAR_BYTES = 64 << 20  # that a process keeps itself
PATIENCE = 2.0  # seconds that another process may hold the lock
AT_ONCE = 500  # keys that are asked for by one statement
DAY = 86400
SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
 kind TEXT NOT NULL, key BLOB NOT NULL, data BLOB NOT NULL, digest BLOB NOT NULL, used INTEGER NOT NULL,
 PRIMARY KEY (kind, key))"""


@dataclass(frozen=True)
class Kind:
    """Of what is kept: how many rows and bytes."""

    name: str
    rows: int
    bytes: int


class Store:
    """What is kept in a file; None: as long as the process has room for it."""

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.most_bytes = path, most_bytes
        self.trouble = ""
        self._near: dict[tuple[str, bytes], bytes] = {}  # of this process; the oldest first
        self._near_bytes = 0

    def get(self, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """What is kept of a kind under these keys."""
        near = {key: self._near.get((kind, key)) for key in keys}
        far = [key for key, data in near.items() if data is None]
        rows = dict[bytes, bytes]()
        if far:
            rows = self._with(lambda connection: self._rows(connection, kind, far), rows, make=False)
        return {key: data for key, data in near.items() if data is not None} | rows

    def put(self, kind: str, rows: Mapping[bytes, bytes]) -> None:
        """Keeps data by their keys."""
        for key, data in rows.items():
            self._near_bytes += len(data) - len(self._near.pop((kind, key), b""))
            self._near[kind, key] = data
        while self._near_bytes > NEAR_BYTES:
            self._near_bytes -= len(self._near.pop(next(iter(self._near))))
        today = int(time.time()) // DAY
        marked = [(kind, key, data, _digest(kind, key, data), today) for key, data in rows.items()]

        def written(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", marked)
            self._bound(connection)

        if marked:
            self._with(written, None, make=True)

    def kinds(self) -> list[Kind]:
        """How much is kept of each kind."""
        statement = "SELECT kind, COUNT(*), SUM(LENGTH(data)) FROM kept GROUP BY kind ORDER BY kind"
        return self._with(lambda connection: [Kind(*row) for row in connection.execute(statement)], [], make=False)

    def clear(self) -> int:
        """Removes the file, and says how many bytes it had. Raises OSError."""
        removed = 0
        for path in [] if self.path is None else [f"{self.path}{suffix}" for suffix in ("", "-journal")]:
            with suppress(FileNotFoundError):
                size = os.stat(path).st_size
                os.unlink(path)
                removed += size
        self._near, self._near_bytes = {}, 0
        return removed

    def _with(self, work: Callable[[sqlite3.Connection], T], otherwise: T, make: bool) -> T:
        """What `work` gives of a connection; `otherwise` where there is no file, or it cannot be used."""
        if self.path is None or self.trouble or not (make or self.path.exists()):
            return otherwise
        try:
            make_private(self.path.parent)
            with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as connection:
                connection.execute("PRAGMA trusted_schema=OFF")
                connection.execute("PRAGMA synchronous=OFF")  # a power cut may damage it
                if make:
                    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                    connection.execute(SCHEMA)
                return work(connection)
        except sqlite3.Error as error:
            remedy = "" if "locked" in str(error) else "; `modelc cache clear` begins it anew"
            self.trouble = f"the cache {self.path} is not used: {error}{remedy}"
            return otherwise
        except OSError as error:
            self.trouble = f"the cache {self.path} is not used: {error.strerror or error}"
            return otherwise

    def _rows(self, connection: sqlite3.Connection, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        kept, today, old = dict[bytes, bytes](), int(time.time()) // DAY, list[bytes]()
        for piece in _pieces(dict.fromkeys(keys)):
            places = ",".join("?" * len(piece))
            statement = f"SELECT key, data, digest, used FROM kept WHERE kind = ? AND key IN ({places})"
            for key, data, digest, used in connection.execute(statement, (kind, *piece)):
                if digest == _digest(kind, key, data):
                    kept[key] = data
                    old += [key] if used != today else []
        with connection:
            used_today = ((today, kind, key) for key in old)
            connection.executemany("UPDATE kept SET used = ? WHERE kind = ? AND key = ?", used_today)
        return kept

    def _bound(self, connection: sqlite3.Connection) -> None:
        """Makes room where the file has grown too large."""
        (pages,), (size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        if pages * size <= self.most_bytes:
            return
        excess = pages * size - LEFT * self.most_bytes
        with connection:
            going = []
            for row, length in connection.execute("SELECT rowid, LENGTH(data) FROM kept ORDER BY used, rowid"):
                if excess <= 0:
                    break
                going.append((row,))
                excess -= length
            connection.executemany("DELETE FROM kept WHERE rowid = ?", going)
        connection.execute("PRAGMA incremental_vacuum").fetchall()


def _pieces(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    unread = iter(keys)
    while piece := list(islice(unread, AT_ONCE)):
        yield piece


def _digest(kind: str, key: bytes, data: bytes) -> bytes:
    return hashlib.sha256(kind.encode() + b"\0" + key + data).digest()[:16]


@lru_cache(8)
def _store(path: Path) -> Store:
    return Store(path)


def user_store() -> Store:
    """That of this user: in $MODELC_CACHE, or where caches are."""
    return _store(user_cache() / NAME)
