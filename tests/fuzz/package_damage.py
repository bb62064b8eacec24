"""Edits that damage a package: its manifest as JSON and as text, the bytes of its files, what is in a file's place."""

from __future__ import annotations

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

Edit = dict[str, Any]  # JSON; "kind" names a row of DAMAGES

FILES = ("manifest.json", "libsmall.so", "params.bin", "small.h", "example.c", "loader.py", "choices.json")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 63, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30),
    *(0.5, 1.0, -0.0, 1e300, "", "x", "0" * 64, "\0", "\ud800", "../params.bin", "/etc/passwd", ".", "%s%n", "[/b]"),
    *([], {}, [0], [[]], {"": 0}, [1 << 62] * 3, [65536] * 8, [0] * 100, "float32", "params", "x86_64", "y" * 100000),
)
TEXTS = (
    *("", "[]", "null", "{", '{"a":' * 100000, "[" * 200000, "{}\0", "\ufeff{}", '{"schema_version": NaN}', "1" * 5000),
    '{"schema_version": 2, "files": {"libsmall.so": {"bytes": 1e999}}}',
    '{"schema_version": 2, "files": {}, "schema_version": 3}',
    "[" + "{}," * 12_000_000 + "{}]",
    '{"a":[' + "[]," * 1_000_000 + "[]]}",
    " " * (1 << 26),
)
THINGS = ("folder", "fifo", "loop", "dangling", "outside", "zero", "inside", "socket", "device")


def drawn_edit(rng: random.Random) -> Edit:
    """One edit: half of them in the manifest's JSON."""
    kind = rng.choices(("json", "text", "bytes", "thing", "extra"), (50, 6, 20, 16, 8))[0]
    if kind == "json":
        how = rng.choices(("set", "remove", "repeat", "swap", "add", "grow"), (12, 3, 2, 2, 1, 3))[0]
        return {"kind": kind, "how": how, "at": rng.random(), "deep": rng.random(), "value": rng.randrange(len(VALUES))}
    if kind == "text":
        return {"kind": kind, "value": rng.randrange(len(TEXTS))}
    if kind == "bytes":
        how = rng.choice(("flip", "flip", "cut", "append", "zero", "empty", "remove"))
        return {"kind": kind, "how": how, "file": rng.choice(FILES), "at": rng.random(), "bit": rng.randrange(8)}
    if kind == "thing":
        return {"kind": kind, "file": rng.choice((*FILES, "", "manifest.json")), "what": rng.choice(THINGS)}
    return {"kind": kind, "what": rng.choice(THINGS), "listed": rng.random() < 0.5}


def apply(package: Path, edit: Edit) -> None:
    """Damages the package in place. An edit of what another has removed does nothing."""
    try:
        DAMAGES[edit["kind"]](package, edit)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, FileExistsError, UnicodeDecodeError):
        return


def _json(package: Path, edit: Edit) -> None:
    file = package / "manifest.json"
    if not file.is_file() or file.is_symlink() or file.stat().st_size > 1 << 24:
        return
    try:
        data = json.loads(file.read_text())
    except (ValueError, RecursionError):
        return
    places = list(_places(data))
    if not places:
        return
    # Deep places are many: half of the draws are among the shallow ones.
    near = [place for place in places if place[2] <= 3]
    among = near if near and edit["deep"] < 0.5 else places
    holder, key, _ = among[int(edit["at"] * len(among))]
    value, how = VALUES[edit["value"]], edit["how"]
    if how == "set":
        holder[key] = value
    elif how == "remove":
        del holder[key]
    elif how == "repeat":
        holder[key] = [holder[key]] * 3
    elif how == "swap":
        other, name, _ = among[int(edit["deep"] * len(among))]
        if isinstance(other[name], str | int | float):
            holder[key], other[name] = other[name], holder[key]
    elif how == "add" and isinstance(holder[key], dict):
        holder[key]["extra"] = value
    elif how == "grow" and type(holder[key]) is int:
        holder[key] += (-1, 1, 64, 2**20, 2**31, 2**62)[edit["value"] % 6]
    file.write_text(json.dumps(data))


def _places(value: Any, depth: int = 1) -> Any:
    """Every (object or list, key, depth) of JSON data."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key, depth
        yield from _places(value[key], depth + 1)


def _text(package: Path, edit: Edit) -> None:
    file = package / "manifest.json"
    if file.is_file() and not file.is_symlink():
        file.write_text(TEXTS[edit["value"]], encoding="utf-8")


def _bytes(package: Path, edit: Edit) -> None:
    file, how = package / edit["file"], edit["how"]
    if not file.is_file() or file.is_symlink():
        return
    if how == "remove":
        file.unlink()
        return
    data = bytearray(file.read_bytes())
    at = int(edit["at"] * len(data))
    if how == "flip" and data:
        data[at] ^= 1 << edit["bit"]
    elif how == "cut":
        del data[at:]
    elif how == "append":
        data += b"\0" * (at + 1)
    elif how == "zero":
        data[at : at + 64] = bytes(min(64, len(data) - at))
    elif how == "empty":
        data.clear()
    file.write_bytes(data)


def _thing(package: Path, edit: Edit) -> None:
    """Something else where a file was; a name of "" is the package's folder itself."""
    file = package / edit["file"] if edit["file"] else package
    aside = package.with_name("aside")
    if edit["file"]:
        file.unlink()
    else:
        os.rename(package, aside)
    _make(file, edit["what"], aside if not edit["file"] else package / "small.h")


def _extra(package: Path, edit: Edit) -> None:
    _make(package / "extra", edit["what"], package / "small.h")
    file = package / "manifest.json"
    if edit["listed"] and file.is_file() and not file.is_symlink():
        text = file.read_text()
        file.write_text(text.replace('"files": {', '"files": {"extra": {"bytes": 0, "sha256": "' + "0" * 64 + '"},', 1))


def _make(path: Path, what: str, inside: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(path)
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(path))
    elif what == "device" and os.geteuid() == 0:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero
    else:
        leads = {"loop": path.name, "dangling": "nowhere", "outside": "/etc/passwd", "zero": "/dev/zero"}
        path.symlink_to(leads.get(what, inside))


DAMAGES = {"json": _json, "text": _text, "bytes": _bytes, "thing": _thing, "extra": _extra}
