"""Reading the YAML of targets and intrinsics, which is not trusted: every error is a sentence with file and key."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml

from modelc.errors import TargetError
from modelc.target import strict_yaml

WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
MAX_FILE = 1 << 20
LONGEST_PATH = 200
T = TypeVar("T")


def targets_folder() -> Path:
    """Where the shipped files are: package data in a wheel; in a checkout they lie beside the package."""
    installed = Path(str(files("modelc"))) / "data" / "targets"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "targets"


def parse_yaml(text: str, source: str) -> Any:
    """The tree of the text; TargetError if it is not YAML."""
    try:
        return strict_yaml.load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise TargetError(f"{source} is not YAML that modelc reads: {' '.join(str(error).split())}") from None


def read_text(path: Path, what: str) -> str:
    """The text of a small file; `what` it should be is said in errors."""
    try:
        if path.exists() and not path.is_file():
            raise TargetError(f"{path} is not {what}: it is no file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        text = data.decode()
    except OSError as error:
        raise TargetError(f"{path} cannot be read as {what}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TargetError(f"{path} is not {what}: it is not UTF-8 text") from None
    if len(data) > MAX_FILE:
        raise TargetError(f"{path} is not {what}: it is larger than {MAX_FILE} bytes")
    return text


def file_beside(top: Section, key: str, name: object) -> Path:
    """The path of a file that a description names under `key`, beside it: it stays in that folder."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_PATH or not name.isprintable():
        raise top.wrong(key, name, f"a path of at most {LONGEST_PATH} printable characters")
    folder = Path(top.source).parent
    path = folder / name
    if os.path.isabs(name) or ".." in Path(name).parts or folder.resolve() not in path.resolve().parents:
        raise top.wrong(key, name, "a path that stays in the folder of this file")
    return path


@dataclass(frozen=True)
class Section:
    """One mapping of the file. Each reader returns the value or raises a sentence with its dotted path."""

    source: str
    path: str
    tree: Any

    def wrong(self, key: str, value: object, expected: str) -> TargetError:
        path = f"{self.path}.{key}" if self.path and key else self.path or key
        return TargetError(f"{self.source}: {path} is {shown(value)}; expected {expected}")

    def only(self, kind: type, optional: Sequence[str] = ()) -> None:
        names = tuple(f.name for f in fields(kind))
        self.only_keys(names, required=tuple(name for name in names if name not in optional))

    def only_keys(self, names: Sequence[str], required: Sequence[str]) -> None:
        if not isinstance(self.tree, dict):
            raise self.wrong("" if self.path else "the file", self.tree, f"a mapping with {', '.join(required)}")
        place = f"{self.source}: {self.path}" if self.path else self.source
        for key in self.tree:
            if key not in names:
                raise TargetError(f"{place} has an unknown key {shown(key)}; expected {', '.join(names)}")
        missing = [name for name in required if name not in self.tree]
        if missing:
            raise TargetError(f"{place} lacks the key {missing[0]!r}; expected {', '.join(required)}")

    def section(self, key: str) -> Section:
        return Section(self.source, f"{self.path}.{key}" if self.path else key, self.tree[key])

    def _typed(self, key: str, kind: type[T], expected: str) -> T:
        value = self.tree.get(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, value, expected)
        return value

    def text(self, key: str, pattern: re.Pattern[str], expected: str) -> str:
        value = self._typed(key, str, expected)
        if pattern.fullmatch(value) is None:
            raise self.wrong(key, value, expected)
        return value

    def flag(self, key: str) -> bool:
        return self._typed(key, bool, "true or false")

    def sequence(self, key: str, expected: str) -> list[Any]:
        return self._typed(key, list, expected)

    def integer(self, key: str, low: int, high: int) -> int:
        expected = f"a whole number from {low} to {high}"
        value = self._typed(key, int, expected)
        if not low <= value <= high:
            raise self.wrong(key, value, expected)
        return value

    def positive(self, key: str) -> float:
        value = self.tree[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise self.wrong(key, value, "a positive number such as 25.0")
        return float(value)


def shown(value: object) -> str:
    """A value for a sentence, bounded: YAML's aliases can make a few lines stand for billions of items."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a huge number"
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 1, 60, 60
    return short.repr(value)
