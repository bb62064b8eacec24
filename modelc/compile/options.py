"""An option: a field of a request says name, type and default; what stands here are the other facts of its row, and how
texts of the command line are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modelc.compile.opened import Open

MOST_DIMENSIONS = 32
MOST_NUMBERS = 1 << 12  # of one --dim or --constant
MOST_MATTERING = 8  # sizes of one dimension: schedules are priced at each
_SIZE = re.compile(r"0|[1-9][0-9]{0,9}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_REAL = re.compile(r"[+-]?([0-9]{1,400}\.?[0-9]{0,400}|\.[0-9]{1,400})([eE][+-]?[0-9]{1,4})?|[+-]?inf|nan")
_SHARE = re.compile(r"([0-9]{1,3}\.?[0-9]{0,9}|\.[0-9]{1,9})( ?%)?")

Kind = type | range | Sequence[str]  # bool, str, Path; whole numbers; words to choose from


@dataclass(frozen=True)
class Option:
    """What a request's field is for users. `help` is what the command line says of it, and where there is no `doc` the
    library too: a field without that and a `metavar` has no flag. `flag` is the name with hyphens where nothing else is
    said, without its s where it may be given again, --no-NAME where the default is True; `off` is the help of a second
    flag, --no-NAME, which makes the value False. `read` makes the value of the flag's text, or texts, and raises
    ValueError. `yaml` is the part of a model in modelc.yaml that has it as a key: "model", "form" or "limits"."""

    doc: str
    help: str
    flag: str
    metavar: str | None
    kind: Kind
    several: bool
    read: Callable[[Any], Any] | None
    off: str
    envvar: str | None
    yaml: str


def option(
    default: Any,
    help: str = "",
    metavar: str | None = None,
    kind: Kind | None = None,
    *,
    doc: str = "",
    flag: str = "",
    several: bool = False,
    read: Callable[[Any], Any] | None = None,
    off: str = "",
    envvar: str | None = None,
    yaml: str = "",
) -> Any:
    """A field of a request, with the facts of an Option."""
    kind = kind if kind is not None else bool if isinstance(default, bool) else str
    row = Option(doc or help, help, flag, metavar, kind, several, read, off, envvar, yaml)
    return field(default=default, metadata={"option": row})


def argument(doc: str) -> Any:
    """A field of a request that has no default: an argument of the command."""
    return field(metadata={"option": Option(doc, "", "", None, str, False, None, "", None, "")})


# --- texts of the command line --------------------------------------------------------------------------------------


def shape_texts(texts: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """NAME=1,3,224,224 for each input; a name that comes again begins the next set."""
    sets: list[dict[str, tuple[int, ...]]] = []
    for text in texts:
        name, _, listed = text.rpartition("=")
        shape = [_size(size) for size in listed.split(",")] if listed else []
        if not name or len(shape) > MOST_DIMENSIONS or None in shape:
            expected = f"expected NAME=1,3,224,224, at most {MOST_DIMENSIONS} whole numbers below 2^31"
            raise ValueError(f"{text[:200]!r}: {expected}")
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = tuple(size for size in shape if size is not None)
    return tuple(sets)


def pairs(
    expected: str, read: Callable[[str], Any], first: bool = False
) -> Callable[[Sequence[str]], Mapping[str, Any]]:
    """The reader of NAME=VALUE, given once for each name, whose name ends at the last =, or at the `first` one. `read`
    gives None for what is no value, or raises ValueError that says what is expected of it."""

    def by_name(texts: Sequence[str]) -> Mapping[str, Any]:
        values: dict[str, Any] = {}
        for text in texts:
            name, _, said = text.partition("=") if first else text.rpartition("=")
            wanted, value = expected, None
            try:
                value = read(said) if name and said and name not in values else None
            except ValueError as error:
                wanted = str(error)
            if value is None:
                raise ValueError(f"{text[:200]!r}: expected {wanted}")
            values[name] = value
        return values

    return by_name


def sizes(text: str) -> Sequence[int] | None:
    """16, 16|32, or for a package of any size 1..512, 32..1280:32, or with the sizes that matter 1..512@16,128."""
    if ".." in text:
        limits, at, those = text.partition("@")
        limits, _, step = limits.partition(":")
        ends = [_size(number) for number in (*limits.split("..", 1), step or "1")]
        matter = tuple(dict.fromkeys(map(_size, those.split(",")))) if at else ()
        if None in ends or None in matter:
            raise ValueError(
                "NAME=1..512, or NAME=32..1280:32 in steps of 32, whole numbers below 2^31; the sizes that matter most "
                "behind: NAME=1..512@16,128"
            )
        least, most, by = (int(n) for n in ends if n is not None)
        if not by:
            return None
        numbers = Open(range(least, most + 1, by), tuple(int(n) for n in matter if n is not None))
        if outside := [n for n in numbers.matter if n not in numbers]:
            steps = f" in steps of {by}" * (by > 1)
            raise ValueError(
                f"sizes that matter among those of the dimension, {least} to {most}{steps}; {outside[0]} is not"
            )
        if len(numbers.matter) > MOST_MATTERING:
            raise ValueError(f"at most {MOST_MATTERING} sizes that matter")
        return numbers
    given = [_size(size) for size in text.split("|")[: MOST_NUMBERS + 1]]
    known = tuple(dict.fromkeys(size for size in given if size is not None))
    return None if None in given or len(given) > MOST_NUMBERS else known


def constant(text: str) -> Any:
    """A number, true, false, several of them with commas, or the path of a .npy file."""
    parts = text.split(",")
    if text.endswith(".npy"):
        return text
    numbers = [number(part) for part in parts[: MOST_NUMBERS + 1]]
    if len(parts) > MOST_NUMBERS or None in numbers:
        raise ValueError(f"a number, true, false, several with commas (at most {MOST_NUMBERS}), or a file .npy")
    return numbers[0] if len(numbers) == 1 else numbers


def number(text: str) -> bool | int | float | None:
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else None


def bound(text: str) -> int | None:
    return _size(text) or None


def share(text: str) -> float:
    """1% or 0.01 as a share."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:80]!r}: expected a share, such as 1% or 0.01")
    return float(match[1]) / (100 if match[2] else 1)


def listed(text: str) -> tuple[str, ...]:
    """so,a as names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def size(text: str) -> int | None:
    """A whole number below 2^31."""
    return _size(text)


def _size(text: str) -> int | None:
    return int(text) if _SIZE.fullmatch(text) and int(text) < 1 << 31 else None
