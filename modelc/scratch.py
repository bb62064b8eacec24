"""Folders and files that are there while something is made: locked by who makes it, removed by whoever comes next.

The lock is flock's, which ends with the process that holds it, however that ends. So what a killed process has left is
what has one of our names and a lock that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

TEMPORARY = re.compile(r"modelc-tmp-\w+-[a-z0-9_]{8}")
PARTIAL = re.compile(r"\..*\.[a-z0-9_]{8}\.modelc\.partial", re.DOTALL)
ASIDE = re.compile(r"\.(.*)\.[a-z0-9_]{8}\.modelc\.old", re.DOTALL)
NAME_BYTES = 200  # of a place's name that go into the name of what lies beside it; a file system takes 255 in all

_held: set[str] = set()  # what this process would leave behind


class TemporaryFolder:
    """A folder in $TMPDIR, which is gone when it is closed, forgotten, or the process ends."""

    def __init__(self, what: str) -> None:
        _clean(tempfile.gettempdir())
        self.name, lock = _made(lambda: tempfile.mkdtemp(prefix=f"modelc-tmp-{what}-"))
        self.cleanup = weakref.finalize(self, _remove, self.name, lock, os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def user_cache() -> Path:
    """The folder for what modelc remembers of this user, which need not be there."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")) / "modelc"


@contextmanager
def beside(place: Path, folder: bool) -> Iterator[Path]:
    """An empty folder or file on the file system of `place`, with the permissions that a new one there would have. Gone
    afterwards, unless it has been renamed. Raises OSError."""
    remove_orphans(place.parent)
    mask = os.umask(0)
    os.umask(mask)
    made, lock = _made(lambda: _make_beside(place, ".modelc.partial", folder))
    try:
        os.chmod(made, (0o777 if folder else 0o666) & ~mask)
        yield Path(made)
    finally:
        _remove(made, lock, os.getpid())


def replace(made: Path, place: Path) -> None:
    """Puts the folder `made` where the folder `place` is, in two steps with the way back; what was there is removed."""
    aside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.modelc.old")
    lock = _opened(str(place))
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(place, aside)
        os.rename(made, place)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        if not os.path.lexists(place):
            os.rename(aside, place)
        os.close(lock)


def remove_orphans(folder: str | os.PathLike[str]) -> None:
    """Removes from `folder` what killed processes of this user have left in it; does nothing where it may not."""
    with suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries]:
            if any(pattern.fullmatch(name) for pattern in (TEMPORARY, PARTIAL, ASIDE)):
                with suppress(OSError):
                    _remove_orphan(os.path.join(folder, name))


@cache
def _clean(folder: str) -> None:
    remove_orphans(folder)


def held() -> bool:
    """Whether an end of this process without further ado would leave something behind."""
    return bool(_held)


def _remove_orphan(path: str) -> None:
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kind = os.fstat(descriptor)
        if kind.st_uid != os.geteuid() or not os.path.samestat(kind, os.lstat(path)):
            return
        folder, name = os.path.split(path)
        old = ASIDE.fullmatch(name)
        if old and not os.path.lexists(os.path.join(folder, old[1])) and any(os.scandir(path)):
            os.rename(path, os.path.join(folder, old[1]))  # it was killed between the two steps
        elif stat.S_ISDIR(kind.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(kind.st_mode):
            os.unlink(path)
    finally:
        os.close(descriptor)


def _made(make: Callable[[], str]) -> tuple[str, int]:
    """What `make` makes, with the lock on it: again where somebody took it for an orphan before it was locked."""
    while True:
        name = make()
        with suppress(FileNotFoundError):
            lock = _opened(name)
            with suppress(OSError):  # a file system without locks: what is left there is not recognised
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.lexists(name):
                _held.add(name)
                return name, lock
            os.close(lock)


def _make_beside(place: Path, suffix: str, folder: bool) -> str:
    cut = len(os.fsencode(place.name)) > NAME_BYTES
    name = os.fsdecode(os.fsencode(place.name)[:NAME_BYTES]) if cut else place.name
    if folder:
        return tempfile.mkdtemp(suffix, f".{name}.", place.parent)
    descriptor, path = tempfile.mkstemp(suffix, f".{name}.", place.parent)
    os.close(descriptor)
    return path


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _remove(path: str, lock: int, process: int) -> None:
    if os.getpid() != process:  # a fork that ends: the folder is its parent's
        return
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        os.unlink(path)
    os.close(lock)
    _held.discard(path)
