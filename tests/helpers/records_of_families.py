"""Records of a family of machines that nobody has measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from three_ways import task_of

from modelc.ir.block import Task
from modelc.space.choose import Schedules
from modelc.space.construct import constructed
from modelc.target import Target, load_target
from modelc.target.records import FamilyRecord, FamilyRecords, Point, parse_records

TARGET = load_target("x86-64-v4")
NONE = "none"  # of a Task without constants
PRODUCT, TALLER, WIDER, FAR = (
    task_of("MatMul", {}, [(m, 64), (64, n)]).canonical() for m, n in ((32, 96), (48, 96), (32, 128), (32, 512))
)
OTHER = task_of("Softmax", {"axis": -1}, [(32, 96)]).canonical()


def schedules() -> Schedules:
    return Schedules(TARGET)


def others_of(task: Task, by: Schedules, most: float = 1.3) -> Iterator[tuple[Point, float]]:
    """Other points of the Sketch of what a Task gets by the price, up to `most` times as expensive, with that
    factor."""
    first = by.ranked(task)[0]
    sketch = by.families(task)[first.family][first.number]
    for other in constructed(sketch, by.target.cores, 200):
        if tuple(map(int, other.point)) != first.point and other.seconds <= most * first.seconds:
            yield Point(sketch.name, sketch.recorded(other.point)), other.seconds / first.seconds


def untuned_of(task: Task, by: Schedules) -> Point:
    first = by.ranked(task)[0]
    sketch = by.families(task)[first.family][first.number]
    return Point(sketch.name, sketch.recorded(first.point))


def record_of(task: Task, relative: float = 0.5, by: Schedules | None = None, constants: str = NONE) -> FamilyRecord:
    """As if the point next best by the price took `relative` of the time of the best."""
    by = by or schedules()
    faster, _ = next(others_of(task, by))
    return FamilyRecord(task, constants, untuned_of(task, by), faster, relative)


def family(*records: FamilyRecord, target: Target | None = None, **changes: Any) -> FamilyRecords:
    machine = (target or TARGET).machine
    return replace(FamilyRecords("made up", "", machine, 1, "nothing", records), **changes)


def written(path: Path, records: FamilyRecords) -> Path:
    path.write_text("".join(line + "\n" for line in records.lines()))
    return path


def changed(records: FamilyRecords, line: int, change: Callable[[dict[str, Any]], object]) -> str:
    """The text of a file in which the tree of one line is changed."""
    lines = records.lines()
    tree = json.loads(lines[line])
    change(tree)
    lines[line] = json.dumps(tree)
    return "\n".join(lines)


def read_back(records: FamilyRecords) -> FamilyRecords:
    return parse_records("\n".join(records.lines()), "made up")
