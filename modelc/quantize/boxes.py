"""Detections: outputs that are recognised as boxes with scores by their numbers, and how seldom a quantized model finds
the same boxes.

Two forms are recognised: an output of corners [..., N, 4] (left, top, right, bottom) beside one of scores from 0 to 1,
[..., N] or [..., N, C]; and an output of rows of six, corners with score and class before or behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.quantize.drop import Drop
from modelc.quantize.samples import Arrays

CONFIDENT = 0.5  # the score from which a box has to be found by the other model
HEEDED = 0.25  # the score from which a box counts as found
OVERLAP = 0.5  # of intersection over union, from which two boxes are the same
SIX = ((slice(0, 4), 4, 5), (slice(2, 6), 1, 0))  # corners, score and class in rows of six

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Detections:
    """Where boxes are: in the outputs `names`, of corners and of scores; or in rows of six, in `columns`."""

    names: tuple[str, ...]
    columns: tuple[slice, int, int] | None = None

    def of(self, outputs: Arrays) -> tuple[Numbers, Numbers, Numbers]:
        """Corners [n, 4], scores [n] and classes [n] of one sample."""
        if self.columns is not None:
            rows = outputs[self.names[0]].reshape(-1, 6)
            sides, score, kind = self.columns
            return rows[:, sides], rows[:, score], rows[:, kind]
        corners = outputs[self.names[0]].reshape(-1, 4)
        scores = outputs[self.names[1]].reshape(len(corners), -1)
        return corners, scores.max(-1), scores.argmax(-1)

    def fit(self, wanted: Sequence[Arrays]) -> bool:
        """Whether the numbers are corners, scores and classes, and some of the scores high."""
        found = False
        for corners, scores, classes in map(self.of, wanted):
            if not len(corners):
                continue
            ordered = (corners[:, 2:] >= corners[:, :2]).all() and (corners[:, 2:] > corners[:, :2]).any()
            whole = (classes == np.rint(classes)).all() and (classes >= 0).all()
            if not (ordered and whole and scores.min() >= 0 and scores.max() <= 1):
                return False
            found = found or bool(scores.max() >= CONFIDENT)
        return found


def boxes_among(wanted: Sequence[Arrays], names: Sequence[str]) -> Detections | None:
    """The detections among outputs `names` of the float model; None where nothing is recognised for sure."""
    return next((detections for detections in _forms(wanted, names) if detections.fit(wanted)), None)


def _forms(wanted: Sequence[Arrays], names: Sequence[str]) -> Iterator[Detections]:
    shapes = {name: wanted[0][name].shape for name in names}
    for name, shape in shapes.items():
        if len(shape) in (2, 3) and shape[-1] == 6:
            yield from (Detections((name,), columns) for columns in SIX)
    for boxes, scores in permutations(shapes, 2):
        shape = shapes[boxes]
        if len(shape) in (2, 3) and shape[-1] == 4 and shape[:-1] in (shapes[scores], shapes[scores][:-1]):
            yield Detections((boxes, scores))


class Boxes:
    """How seldom a box that one model is confident of is also the other's: of the same class, and overlapping."""

    def __init__(self, wanted: Sequence[Arrays], detections: Detections) -> None:
        self.detections, self.each = detections, [detections.of(outputs) for outputs in wanted]
        self.what = f"boxes of {', '.join(map(repr, detections.names))}"
        self.step = 1 / max(sum(int((scores >= CONFIDENT).sum()) for _, scores, _ in self.each), 1)

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        agreeing = total = 0
        for wanted, made in zip(self.each, map(self.detections.of, outputs), strict=True):
            for here, there in ((wanted, made), (made, wanted)):
                agreeing += _matched(here, there)
                total += int((here[1] >= CONFIDENT).sum())
        said = f"{agreeing} of {total} boxes of {self.detections.names[0]!r}, of either model, are the other's"
        return Drop(1 - agreeing / max(total, 1), said)


def _matched(here: tuple[Numbers, Numbers, Numbers], there: tuple[Numbers, Numbers, Numbers]) -> int:
    """How many of the confident boxes `here` have one `there` of their own, the most confident first."""
    corners, scores, classes = here
    free, count = there[1] >= HEEDED, 0
    for k in np.argsort(-scores, kind="stable")[: int((scores >= CONFIDENT).sum())]:
        overlaps = np.where(free & (there[2] == classes[k]), _overlaps(corners[k], there[0]), 0)
        if overlaps.size and overlaps.max() >= OVERLAP:
            free[overlaps.argmax()] = False
            count += 1
    return count


def _overlaps(box: Numbers, boxes: Numbers) -> Numbers:
    """Intersection over union of a box with others."""
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    common = np.prod(np.maximum(sides, 0), axis=-1)
    areas = np.prod(box[2:] - box[:2]) + np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    overlaps: Numbers = common / np.maximum(areas - common, 1e-30)
    return overlaps
