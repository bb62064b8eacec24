"""The graph of a package's steps as a picture: a box for each kernel, edges for the values between them.

Boxes lie in layers, each below all that it reads (the longest path), as Sugiyama, Tagawa and Toda (1981) place them:
within a layer in the order of the middle of what they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelc.package.spec import Plan
from modelc.runtime.shown import size

WIDTH, HEIGHT = 220, 44  # of a box, in pixels
ACROSS, DOWN = 24, 44  # between boxes and between layers
LETTERS = 30  # of a line in a box
PLAIN = "row-major"
SHOWN = 4  # nodes of a kernel that its tooltip lists before their count


@dataclass(frozen=True)
class Box:
    """A kernel, an input or an output; `heat` is its share of the time beside the largest, from 0 to 1."""

    x: int
    y: int
    title: str
    subtitle: str
    tooltip: str
    heat: float


@dataclass(frozen=True)
class Edge:
    """A value, from below its writer to above its reader; `label` is the layout in which it lies."""

    path: str
    x: int
    y: int
    label: str
    tooltip: str


@dataclass(frozen=True)
class Drawing:
    width: int
    height: int
    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class _Value:
    """A value between two boxes, by their numbers."""

    writer: int
    reader: int
    layout: str
    tooltip: str


def drawing_of(plan: Plan, kernels: Sequence[Mapping[str, Any]], lives: Sequence[Mapping[str, Any]]) -> Drawing:
    """The picture of a plan whose `kernels` and arena are as facts.py has them, in the plan's order."""
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (plan.inputs, plan.outputs))
    steps = len(plan.steps)
    values = [
        _Value(writer, reader, plan.steps[writer].layout, f"{life['tensor']}, {size(life['bytes'])}")
        for life in lives
        for reader in life["readers"]
        for writer in life["writers"]
        if writer < reader
    ]
    for number, step in enumerate(plan.steps):
        for k, argument in enumerate(step.arguments):
            if argument.space == "input":
                values.append(_Value(steps + argument.index, number, "", inputs[argument.index]))
            elif argument.space == "output" and k in step.written:
                values.append(_Value(number, steps + len(inputs) + argument.index, "", outputs[argument.index]))
    values = list(dict.fromkeys(values))
    count = steps + len(inputs) + len(outputs)
    places = _places(count, values)
    longest = max((k.get("us") or 0.0 for k in kernels), default=0.0)
    boxes = [_kernel(places[number], k, longest) for number, k in enumerate(kernels)]
    named = [(name, "input") for name in inputs] + [(name, "output") for name in outputs]
    for place, (name, kind) in zip(places[steps:], named, strict=True):
        boxes.append(Box(*place, _short(name), kind, name, 0.0))
    edges = tuple(_edge(value, places[value.writer], places[value.reader]) for value in values)
    width, height = (max(place[k] for place in places) for k in (0, 1))
    return Drawing(width + WIDTH + ACROSS, height + HEIGHT + ACROSS, tuple(boxes), edges)


def _kernel(place: tuple[int, int], kernel: Mapping[str, Any], longest: float) -> Box:
    nodes, time = kernel["nodes"], kernel.get("us")
    listed = ", ".join(nodes[:SHOWN]) + f" and {len(nodes) - SHOWN} more" * (len(nodes) > SHOWN)
    timed = "" if time is None else f"{time:.1f} us, {kernel['share']:.1%} of the whole"
    tooltip = "\n".join(filter(None, (kernel["kernel"], listed, timed, f"{kernel['dtype']}, {kernel['instruction']}")))
    subtitle = f"{time:.0f} us · {', '.join(nodes)}" if time is not None else ", ".join(nodes)
    return Box(*place, _short(kernel["kernel"]), _short(subtitle), tooltip, (time or 0.0) / longest if longest else 0.0)


def _places(count: int, values: Sequence[_Value]) -> list[tuple[int, int]]:
    """Where each box lies: its left upper corner."""
    read: list[list[int]] = [[] for _ in range(count)]
    written: list[list[int]] = [[] for _ in range(count)]
    for value in values:
        read[value.reader].append(value.writer)
        written[value.writer].append(value.reader)
    layer = [0] * count
    pending = [number for number in range(count) if not read[number]]
    waiting = [len(set(writers)) for writers in read]
    while pending:
        number = pending.pop()
        for reader in set(written[number]):
            layer[reader] = max(layer[reader], layer[number] + 1)
            waiting[reader] -= 1
            if not waiting[reader]:
                pending.append(reader)
    for number in range(count):  # inputs lie right above what reads them first
        if not read[number] and written[number]:
            layer[number] = max(0, min(layer[reader] for reader in written[number]) - 1)
    rows: dict[int, list[int]] = {}
    for number in range(count):
        rows.setdefault(layer[number], []).append(number)
    widest = max(map(len, rows.values()))
    middle = [0.0] * count
    for height in sorted(rows):
        row = sorted(rows[height], key=lambda n: (_mean([middle[writer] for writer in read[n]]), n))
        for place, number in enumerate(row):
            middle[number] = place + (widest - len(row)) / 2
    return [(round(ACROSS + middle[n] * (WIDTH + ACROSS)), ACROSS + layer[n] * (HEIGHT + DOWN)) for n in range(count)]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _edge(value: _Value, begin: tuple[int, int], end: tuple[int, int]) -> Edge:
    x, y = begin[0] + WIDTH // 2, begin[1] + HEIGHT
    to_x, to_y = end[0] + WIDTH // 2, end[1]
    bend = max(DOWN // 2, (to_y - y) // 3)
    path = f"M{x},{y} C{x},{y + bend} {to_x},{to_y - bend} {to_x},{to_y}"
    label = "" if value.layout == PLAIN else value.layout
    tooltip = f"{value.tooltip}, layout {value.layout}" if value.layout else value.tooltip
    return Edge(path, (x + to_x) // 2, (y + to_y) // 2, label, tooltip)


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
