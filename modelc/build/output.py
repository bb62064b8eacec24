"""Where packages and summaries go: by the file inside its own folder, by a flag anywhere; and nothing is replaced there
but what modelc has made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from modelc.build.matrix import Matrix
from modelc.build.summary import BEGINNINGS
from modelc.errors import ConfigError

HEAD = 256  # bytes that a summary is recognised by


def output_of(matrix: Matrix, given: str | Path | None) -> Path:
    """The folder that a flag names, or the file. Raises ConfigError where the file's leads out of its own folder."""
    if given is not None:
        return Path(given)
    if not _inside(matrix.output, matrix.source.parent):
        raise ConfigError(
            f"{matrix.source}: output is {str(matrix.output)[:200]!r}; expected a folder inside the one in which the "
            "file lies: -o names any other"
        )
    return matrix.output


def check_places(folder: Path, packages: Iterable[Path], summaries: Iterable[Path]) -> None:
    """Raises ConfigError where a package's place in a folder leads out of it, or where a summary would replace what is
    none of modelc's."""
    for place in packages:
        if not _inside(place, folder):
            raise ConfigError(f"{place} is a link that leads out of {folder}: remove it, or name another folder by -o")
    for place in summaries:
        if (place.exists() or place.is_symlink()) and not _is_summary(place):
            raise ConfigError(f"{place} is no summary of a build, and is not replaced: name another folder by -o")


def _inside(place: Path, folder: Path) -> bool:
    try:
        return place.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def _is_summary(place: Path) -> bool:
    """Whether a file begins as the summary of that name."""
    if not place.is_file():
        return False
    try:
        with place.open("rb") as file:
            head = file.read(HEAD).decode(errors="replace")
    except OSError:
        return False
    return any(place.name.endswith(suffix) and begins in head for suffix, begins in BEGINNINGS.items())
