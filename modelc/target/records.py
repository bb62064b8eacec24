"""Records of a family of machines: schedules that were measured to be faster than those of the least price, as JSON
lines that travel with targets. Those of `targets/records/` are for the machines that they describe; a target's YAML may
name another file beside it. A file is not trusted: it is read strictly, and every error says file, line and key.

    {"modelc_family_records": 1, "machine": {"architecture": "x86_64", ...}, "threads": 1, "measured": "on what"}
    {"task": "task task(b0) -> ...", "constants": "L3", "untuned": {"sketch": ..., "knobs": {...}}, "faster": {...},
     "relative": 0.91}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from modelc.errors import TargetError
from modelc.ir.block import Task
from modelc.ir.text import parse_task
from modelc.target.section import WORD, Section, file_beside, read_text, shown, targets_folder

FORMAT = 1
MOST_BYTES = 200_000  # of a file
MOST_KNOBS, LONGEST_NAME = 100, 200
MOST_THREADS = 1 << 12
_FILE = "records of a family of machines"
_TASK = re.compile(r"[\s\S]{1,20000}")
_LINE = re.compile(r"[^\n]{1,200}")


@dataclass(frozen=True)
class Point:
    """The values of all knobs of the Sketch of that name, as Sketch.recorded() has them."""

    sketch: str
    knobs: Mapping[str, int | str]

    def to_json(self) -> dict[str, Any]:
        return {"sketch": self.sketch, "knobs": dict(self.knobs)}


@dataclass(frozen=True)
class FamilyRecord:
    """Of a canonical Task whose parameters lie in the cache `constants` (a cache's name, "memory" or "none"): the point
    `faster` takes `relative` of the time of the `untuned` one, which compile chose by the price."""

    task: Task
    constants: str
    untuned: Point
    faster: Point
    relative: float

    def to_json(self) -> dict[str, Any]:
        points = {"untuned": self.untuned.to_json(), "faster": self.faster.to_json()}
        return {"task": str(self.task), "constants": self.constants, **points, "relative": self.relative}


@dataclass(frozen=True)
class FamilyRecords:
    """The records of a file, of kernels on so many `threads` of a `machine` (Target.machine); `digest` is of its
    text."""

    source: str
    digest: str
    machine: Mapping[str, Any] = field(hash=False, repr=False)
    threads: int
    measured: str
    records: tuple[FamilyRecord, ...] = field(compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.records)

    def lines(self) -> list[str]:
        """The lines of the file."""
        header = {"modelc_family_records": FORMAT, "machine": dict(self.machine), "threads": self.threads}
        trees = [header | {"measured": self.measured}, *(record.to_json() for record in self.records)]
        return [json.dumps(tree, separators=(",", ":"), allow_nan=False) for tree in trees]


@cache
def shipped_records() -> tuple[FamilyRecords, ...]:
    """Those of every shipped file, in the order of their names."""
    return tuple(read_records(path) for path in sorted((targets_folder() / "records").glob("*.jsonl")))


def named_records(top: Section, machine: Mapping[str, Any]) -> FamilyRecords:
    """Those of the file that the YAML of a target which is such a `machine` names under `records`, beside it."""
    path = file_beside(top, "records", top.tree["records"])
    records = read_records(path)
    for key, ours in machine.items():
        if records.machine[key] != ours:
            expected = f"records of a machine whose {key} is {ours}, as this target's"
            raise top.wrong("records", f"{path.name}, of {key} {records.machine[key]}", expected)
    return records


def read_records(path: Path) -> FamilyRecords:
    """Reads a file of records."""
    return parse_records(read_text(path, _FILE), str(path))


def parse_records(text: str, source: str) -> FamilyRecords:
    """Reads the text of a file of records; `source` names it in errors."""
    if len(text) > MOST_BYTES:
        raise TargetError(f"{source} has {len(text)} characters; expected {_FILE}, which has at most {MOST_BYTES}")
    sections = [_section(line, f"{source}, line {n}") for n, line in enumerate(text.splitlines(), 1)]
    if not sections:
        raise TargetError(f"{source} is empty; expected {_FILE}")
    top = sections[0]
    keys = ("modelc_family_records", "machine", "threads", "measured")
    top.only_keys(keys, required=keys)
    if top.tree["modelc_family_records"] != FORMAT:
        expected = f"{FORMAT}: this modelc reads no other format; make the file again by modelc database best"
        raise top.wrong("modelc_family_records", top.tree["modelc_family_records"], expected)
    return FamilyRecords(
        source,
        hashlib.sha256(text.encode()).hexdigest()[:16],
        _machine(top.section("machine")),
        top.integer("threads", 1, MOST_THREADS),
        top.text("measured", _LINE, "a line of at most 200 characters"),
        tuple(map(_record, sections[1:])),
    )


def _section(line: str, source: str) -> Section:
    try:
        return Section(source, "", json.loads(line, parse_constant=_no_number))
    except (ValueError, RecursionError) as wrong:
        raise TargetError(f"{source} is not JSON: {str(wrong)[:200]}") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _machine(part: Section) -> dict[str, Any]:
    keys = ("architecture", "vector", "fma_ports", "caches", "cores")
    part.only_keys(keys, required=keys)
    for key in ("vector", "caches"):
        numbers = part.sequence(key, "a list of whole numbers")
        if len(numbers) > 8 or any(type(n) is not int for n in numbers):
            raise part.wrong(key, numbers, "a list of at most eight whole numbers")
    part.text("architecture", WORD, "a name such as x86_64")
    part.integer("fma_ports", 1, 16)
    part.integer("cores", 1, 4096)
    return dict(part.tree)


def _record(part: Section) -> FamilyRecord:
    keys = ("task", "constants", "untuned", "faster", "relative")
    part.only_keys(keys, required=keys)
    relative = part.positive("relative")
    if relative >= 1:
        raise part.wrong("relative", relative, "a number below 1: what is not faster is no record")
    points = _point(part.section("untuned")), _point(part.section("faster"))
    return FamilyRecord(_task(part), part.text("constants", WORD, "the name of a cache"), *points, relative)


def _task(part: Section) -> Task:
    text = part.text("task", _TASK, "the text of a task, of at most 20000 characters")
    try:
        task = parse_task(text)
        canonical = str(task.canonical())
    except (ValueError, RecursionError, MemoryError, OverflowError) as wrong:
        raise part.wrong("task", text, f"the text of a task: {str(wrong)[:200]}") from None
    if text != canonical:
        raise part.wrong("task", text, "the text of a canonical task, as modelc database best writes it")
    return task


def _point(part: Section) -> Point:
    part.only_keys(("sketch", "knobs"), required=("sketch", "knobs"))
    knobs = part.tree["knobs"]
    if not isinstance(knobs, dict) or len(knobs) > MOST_KNOBS or not all(map(_is_value, (*knobs, *knobs.values()))):
        raise part.wrong("knobs", shown(knobs), f"a mapping of at most {MOST_KNOBS} names to whole numbers and words")
    return Point(part.text("sketch", _LINE, "the name of a Sketch"), knobs)


def _is_value(value: object) -> bool:
    return (type(value) is int and abs(value) < 1 << 31) or (isinstance(value, str) and len(value) <= LONGEST_NAME)
