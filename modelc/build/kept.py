"""The folder of cells that were made before. What is in it is proven by its key and checksums before it is used."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from modelc import scratch
from modelc.database import Database
from modelc.database.recorded import Consulted
from modelc.errors import MISFIT, PackageError
from modelc.package import Package, read_package
from modelc.package.read import sha256_of
from modelc.package.write import check_place, take_place

SCHEMA = 1
MANIFEST = "manifest.json"
NO_ENTRY = (OSError, RecursionError, AttributeError, *MISFIT)


@dataclass(frozen=True)
class Entry:
    """What is known of a cell that was made: its manifest's checksum, which has those of all other files; what became
    of it; what it has read of a database."""

    manifest: str
    outcome: Mapping[str, Any]
    consulted: Consulted | None
    answers: str

    def to_json(self) -> dict[str, Any]:
        consulted = None if self.consulted is None else self.consulted.to_json()
        said = {"schema": SCHEMA, "manifest": self.manifest, "outcome": self.outcome}
        return said | {"consulted": consulted, "answers": self.answers}

    @staticmethod
    def from_json(tree: Any) -> Entry:
        """Raises ValueError, KeyError, TypeError where it is none."""
        if tree["schema"] != SCHEMA:
            raise ValueError("another schema")
        manifest, outcome, answers = tree["manifest"], tree["outcome"], tree["answers"]
        if not isinstance(outcome, dict) or not isinstance(outcome["notes"], list):
            raise TypeError("the outcome is none")
        if not isinstance(outcome["seconds"], int | float) or not isinstance(answers, str):
            raise TypeError("the outcome is none")
        if not 0 <= outcome["seconds"] < inf or not all(isinstance(note, str) for note in outcome["notes"]):
            raise ValueError("the outcome is none")
        consulted = None if tree["consulted"] is None else Consulted.from_json(tree["consulted"])
        return Entry(manifest, outcome, consulted, answers)


class Kept:
    """The cells in `folder`, each in a folder of its key: the package, and beside it entry.json, which comes last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, key: str, name: str) -> Path:
        """Where the package of that key is, if it was made."""
        return self.folder / "cells" / key / f"{name}.modelc"

    def make_room(self, place: Path) -> None:
        """Makes the folder of a place, and removes what is there and is no package: it was damaged. Raises
        PackageError."""
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(place) and not _replaceable(place):
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                else:
                    place.unlink()
        except OSError as error:
            raise PackageError(f"cannot keep cells in {place.parent}: {error.strerror}; give --cache DIR") from None

    def entry(self, key: str, database: Database | None) -> Entry | None:
        """What is known of a cell, if it was made, and made of what the database says today."""
        try:
            entry = Entry.from_json(json.loads((self.folder / "cells" / key / "entry.json").read_text()))
        except NO_ENTRY:
            return None
        if entry.consulted is None:
            return entry if database is None or entry.outcome.get("tuned") else None
        if database is None or entry.consulted.answers(database) != entry.answers:
            return None
        return entry

    def write(self, key: str, entry: Entry) -> None:
        """Raises PackageError."""
        write_text(self.folder / "cells" / key / "entry.json", json.dumps(entry.to_json(), indent=1) + "\n")

    def look(self, model: str) -> Any:
        """What was seen when that model was looked at, as JSON; None if it was not."""
        try:
            return json.loads((self.folder / "looks" / f"{model}.json").read_text())
        except (OSError, ValueError, RecursionError):
            return None

    def saw(self, model: str, seen: Any) -> None:
        """Keeps it. Raises PackageError."""
        try:
            (self.folder / "looks").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PackageError(f"cannot write in {self.folder}: {error.strerror}; give --cache DIR") from None
        write_text(self.folder / "looks" / f"{model}.json", json.dumps(seen))


def proven(package: Path, manifest: str) -> Package | None:
    """The package, if it has that manifest, and each of its files the checksum that this says."""
    try:
        return read_package(package, check=True) if sha256_of(package / MANIFEST) == manifest else None
    except (OSError, PackageError):
        return None


def _replaceable(place: Path) -> bool:
    try:
        check_place(place)
    except PackageError:
        return False
    return True


def manifest_digest(package: Path) -> str:
    return sha256_of(package / MANIFEST)


def put(package: Path, place: Path) -> None:
    """A copy of a package takes a place, in one step. Raises PackageError."""
    check_place(place)
    try:
        with scratch.beside(place, folder=True) as made:
            for file in sorted(package.iterdir()):
                if file.is_file():
                    shutil.copyfile(file, made / file.name)
            take_place(made, place.resolve())
    except OSError as error:
        raise PackageError(f"cannot write the package {place}: {error.strerror}") from None


def write_text(path: Path, text: str) -> None:
    """Writes a file in one step. Raises PackageError."""
    try:
        with scratch.beside(path, folder=False) as made:
            made.write_text(text, encoding="utf-8")
            os.replace(made, path)
    except OSError as error:
        raise PackageError(f"cannot write {path}: {error.strerror}") from None
