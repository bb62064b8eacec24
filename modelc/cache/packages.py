"""Packages of models that sessions have compiled, kept by their content: a folder each, which takes its place when it
is whole. One process at a time makes a package; others wait for it, and take it."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from modelc.scratch import TemporaryFolder, make_private, user_cache

FOLDER, PACKAGE, LOCK, REFUSED = "sessions", ".modelc", ".lock", ".refused"
MOST_BYTES = 4 << 30  # of all packages; beyond it, what was not used for longest goes
LEFT = 0.7  # of MOST_BYTES, that stay then
YOUNG = 3600  # seconds since the last use, within which a package may be about to be opened


def package_of(key: str, make: Callable[[Path], None]) -> Path:
    """The package under this key. Where there is none, `make` makes it at the path that it is given."""
    folder = _folder()
    place = folder / f"{key}{PACKAGE}"
    if not place.exists():
        with _locked(folder / f"{key}{LOCK}"):
            if not place.exists():
                _make_room(folder)
                make(place)
    with suppress(OSError):
        os.utime(place)
    return place


def refuse(key: str, sentence: str) -> None:
    """Notes that there is no package under this key, and why."""
    with suppress(OSError):
        (_folder() / f"{key}{REFUSED}").write_text(sentence)


def is_refused(key: str) -> bool:
    """Whether that was noted."""
    return (_folder() / f"{key}{REFUSED}").exists()


def discard(place: Path) -> None:
    """Removes a package that turned out to be damaged."""
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    with suppress(OSError):
        os.rename(place, aside)
        os.unlink(place.with_suffix(LOCK))  # whoever waits for it makes the package beside somebody else, at worst
    shutil.rmtree(aside, ignore_errors=True)


def kept_packages() -> tuple[int, int]:
    """How many packages there are in the user's cache, and their bytes."""
    sizes = [_bytes(place) for place in _packages(user_cache() / FOLDER)]
    return len(sizes), sum(sizes)


def clear_packages() -> int:
    """Removes them all, and says how many bytes they had. What is open goes on to run."""
    removed = 0
    for place in _packages(user_cache() / FOLDER):
        removed += _bytes(place)
        discard(place)
    for note in (user_cache() / FOLDER).glob(f"*{REFUSED}"):
        note.unlink(missing_ok=True)
    return removed


def _folder() -> Path:
    """That of this user; where it cannot be written, one for as long as the process is there."""
    folder = user_cache() / FOLDER
    try:
        make_private(folder.parent)
        make_private(folder)
    except OSError:
        return Path(_of_process().name)
    return folder if os.access(folder, os.W_OK) else Path(_of_process().name)


@cache
def _of_process() -> TemporaryFolder:
    return TemporaryFolder("sessions")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While it holds a lock that ends with the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):  # a file system without locks: two processes may both make a package
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _packages(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{PACKAGE}"))


def _bytes(place: Path) -> int:
    """Of a package; 0 where another process removes it."""
    with suppress(OSError):
        return sum(entry.stat().st_size for entry in os.scandir(place))
    return 0


def _make_room(folder: Path) -> None:
    """Removes what was not used for longest, where packages take more than there is room for."""
    used, sizes = dict[Path, float](), dict[Path, int]()
    for place in _packages(folder):
        with suppress(OSError):
            used[place], sizes[place] = place.stat().st_mtime, _bytes(place)
    excess = sum(sizes.values()) - MOST_BYTES
    if excess <= 0:
        return
    excess += int((1 - LEFT) * MOST_BYTES)
    for place in sorted(used, key=lambda place: used[place]):
        if excess <= 0 or time.time() - used[place] < YOUNG:
            return
        discard(place)
        excess -= sizes[place]
