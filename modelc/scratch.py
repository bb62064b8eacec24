"""Folders and files that are there while something is made: locked by who makes it, removed by whoever comes next.

The lock is flock's, which ends with the process that holds it, however that ends. So what a killed process has left is
what has one of our names and a lock that nobody holds. But anybody can give a folder such a name, in a repository for
instance. So a name has the number of the inode, which a copy has not. Who comes next looks in the folder for temporary
files, and beside the place that is written for what was made or set aside there, and nowhere else; and cleaning up
makes nothing, but for put_back().
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import disk_usage

from modelc.errors import TemporaryError

NUMBER = "([0-9a-f]{8,16})"  # of an inode, as it stands in a name
DRAWN = "[a-z0-9_]{8}"  # by tempfile
TEMPORARY = re.compile(rf"modelc-tmp-\w+-{DRAWN}{NUMBER}")
PARTIAL, ASIDE = ".modelc.partial", ".modelc.old"  # how names end of what lies beside a place
NO_ROOM = 1 << 20  # bytes that are left: less is none
NAME_BYTES = 200  # of a place's name that go into the name of what lies beside it; a file system takes 255 in all

_held: set[str] = set()  # what this process would leave behind


class TemporaryFolder:
    """A folder in $TMPDIR, which is gone when it is closed, forgotten, or the process ends."""

    def __init__(self, what: str) -> None:
        _tidy_temporary(tempfile.gettempdir())
        self.name, lock = _made(lambda: tempfile.mkdtemp(prefix=f"modelc-tmp-{what}-"))
        self.cleanup = weakref.finalize(self, _remove, self.name, lock, os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        """Raises TemporaryError where an error is that there is no room in this folder, not elsewhere."""
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC and disk_usage(self.name).free < NO_ROOM
        self.cleanup()
        if full:
            folder = os.path.dirname(self.name)
            raise TemporaryError(
                f"there is no room for temporary files in {folder}: make some there, or name another folder by TMPDIR"
            ) from None


def user_cache() -> Path:
    """The folder for what modelc remembers of this user, which need not be there: $MODELC_CACHE, or one in
    $XDG_CACHE_HOME."""
    if os.environ.get("MODELC_CACHE"):
        return Path(os.environ["MODELC_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")) / "modelc"


def is_private(folder: Path) -> bool:
    """Whether nobody but this user can write in a folder, which is there. Raises OSError."""
    status = folder.stat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def make_private(folder: Path) -> None:
    """Makes a folder for this user alone, if it is not there. Raises OSError, also where others can write in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(folder):
        raise PermissionError(f"others can write in {folder}, or it is somebody else's")


@contextmanager
def beside(place: Path, folder: bool) -> Iterator[Path]:
    """An empty folder or file on the file system of `place`, with the permissions that a new one there would have. Gone
    afterwards, unless it has been renamed. Raises OSError."""
    for orphan, number in _beside(place, DRAWN + NUMBER, PARTIAL):
        with suppress(OSError), _orphan(orphan, number):
            _delete(orphan)
    mask = os.umask(0)
    os.umask(mask)
    made, lock = _made(lambda: _make_beside(place, folder), PARTIAL)
    try:
        os.chmod(made, (0o777 if folder else 0o666) & ~mask)
        yield Path(made)
    finally:
        _remove(made, lock, os.getpid())


def replace(made: Path, place: Path) -> None:
    """Puts the folder `made` where the folder `place` is, in two steps with the way back; what was there is removed."""
    lock = _opened(str(place))
    aside = place.with_name(f".{_cut(place.name)}.{_number(os.fstat(lock))}{ASIDE}")
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


def put_back(place: Path) -> None:
    """Where a process of this user was killed between the two steps of replace(), the folder that it had set aside
    takes its `place` again; where it was killed after them, the folder goes. One for a name that begins with a dot is
    left alone, for that says something to other programs (.git)."""
    if place.name.startswith(".") or place.name != _cut(place.name):
        return
    for aside, number in _beside(place, NUMBER, ASIDE):
        with suppress(OSError), _orphan(aside, number) as kind:
            if os.path.lexists(place):
                _delete(aside)
            elif stat.S_ISDIR(kind.st_mode) and any(aside.iterdir()):
                os.rename(aside, place)


def remove_temporary(folder: str | os.PathLike[str]) -> None:
    """Removes from a `folder` for temporary files what killed processes of this user have left in it; does nothing
    where it may not."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if ours := TEMPORARY.fullmatch(name):
                orphan = Path(folder, name)
                with suppress(OSError), _orphan(orphan, ours[1]):
                    _delete(orphan)


@cache
def _tidy_temporary(folder: str) -> None:
    remove_temporary(folder)


def held() -> bool:
    """Whether an end of this process without further ado would leave something behind."""
    return bool(_held)


def remove_held() -> None:
    """Removes what this process would leave behind, before it ends without further ado."""
    for path in (*_held, *_held):  # twice: other threads may still write there
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            os.unlink(path)


def _beside(place: Path, middle: str, suffix: str) -> list[tuple[Path, str]]:
    """What lies beside `place` and is called as what modelc makes or sets aside for it, with the number in the name."""
    names = re.compile(re.escape(f".{_cut(place.name)}.") + middle + re.escape(suffix))
    try:
        matches = map(names.fullmatch, os.listdir(place.parent))
        return [(place.with_name(match[0]), match[1]) for match in matches if match]
    except OSError:
        return []


@contextmanager
def _orphan(path: Path, number: str) -> Iterator[os.stat_result]:
    """The kind of what a killed process of this user has left, locked, where the number is its inode's. Raises OSError
    where it is something else."""
    descriptor = _opened(str(path))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kind = os.fstat(descriptor)
        if kind.st_uid != os.geteuid() or number != _number(kind) or not os.path.samestat(kind, os.lstat(path)):
            raise PermissionError(f"{path} is somebody else's")
        yield kind
    finally:
        os.close(descriptor)


def _delete(path: Path) -> None:
    """A folder with all that is in it, or a file; nothing else."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif path.is_file():
        path.unlink()


def _made(make: Callable[[], str], suffix: str = "") -> tuple[str, int]:
    """What `make` makes, with the lock on it, and then the number in its name, before a suffix."""
    drawn = make()
    lock = _opened(drawn)
    with suppress(OSError):  # a file system without locks: what is left there is not recognised
        fcntl.flock(lock, fcntl.LOCK_EX)
    name = f"{drawn.removesuffix(suffix)}{_number(os.fstat(lock))}{suffix}"
    os.rename(drawn, name)
    _held.add(name)
    return name, lock


def _make_beside(place: Path, folder: bool) -> str:
    prefix = f".{_cut(place.name)}."
    if folder:
        return tempfile.mkdtemp(PARTIAL, prefix, place.parent)
    descriptor, path = tempfile.mkstemp(PARTIAL, prefix, place.parent)
    os.close(descriptor)
    return path


def _number(kind: os.stat_result) -> str:
    """The inode's number, as it stands in the name of what is set aside."""
    return f"{kind.st_ino:08x}"


def _cut(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:NAME_BYTES])


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
