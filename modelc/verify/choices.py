"""Outputs that are orders or choices: where scores are nearly equal, either may be chosen.

Which of two scores is the greater may hang on the last bit of a sum. So where outputs are farther away than the
tolerances allow, and the model chooses (TopK, ArgMax, ArgMin), our choices take the place of ONNX Runtime's in the
model, which then computes everything that follows from them. They are right where it scores what we chose nearly as
high as what it chose itself; and outputs have to be near what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.surgery import Choice, choices_of, cut
from modelc.scratch import TemporaryFolder
from modelc.verify.engine import Engine

Array = NDArray[Any]
SIDES = 2  # scores that both are off by a tolerance, and so their difference by two


@dataclass(frozen=True)
class Followed:
    """What ONNX Runtime computes with our choices: `outputs` of the model, and how many numbers of each choice are
    others than its own, for scores that are nearly equal."""

    outputs: Mapping[str, Array]
    traded: Mapping[str, int]


def followed(
    model: Path, feed: Mapping[str, Array], chosen: Mapping[str, Array], engine: str, rtol: float, atol: float
) -> Followed | None:
    """None where a choice of ours is none of nearly equal scores, or where nothing is chosen otherwise."""
    choices = {choice.chosen: choice for choice in choices_of(model) if choice.chosen in chosen}
    with TemporaryFolder("choices") as folder:
        path = Path(folder) / "model.onnx"
        made = cut(model, {name: chosen[name] for name in choices}, path, (c.scores for c in choices.values()))
        with Engine(engine, path) as running:
            given = {made.given[name]: np.ascontiguousarray(chosen[name]) for name in choices}
            found = running.run({**feed, **given})
    traded = {}
    for name, choice in choices.items():
        scores = found[choice.scores] if choice.scores in found else feed.get(choice.scores)
        count = None if scores is None else traded_places(chosen[name], found[name], scores, choice, rtol, atol)
        if count is None:
            return None
        traded[name] = count
    return Followed({**found, **{name: chosen[name] for name in choices}}, traded) if any(traded.values()) else None


def traded_places(ours: Array, reference: Array, scores: Array, choice: Choice, rtol: float, atol: float) -> int | None:
    """How many places of a choice are others than the reference's, each of a score that is nearly the same; None where
    one is not, is none of the scores, or is chosen twice."""
    if (ours.dtype, ours.shape) != (reference.dtype, reference.shape) or not scores.ndim:
        return None
    axis = choice.axis % scores.ndim
    one, two = (x if choice.keeps else np.expand_dims(x, axis) for x in (ours, reference))
    if one.size and (one.min() < 0 or one.max() >= scores.shape[axis]):
        return None
    if (np.diff(np.sort(one, axis), axis=axis) == 0).any():
        return None
    numbers = scores.astype(np.float64)
    a, b = np.take_along_axis(numbers, one, axis), np.take_along_axis(numbers, two, axis)
    with np.errstate(all="ignore"):
        near = (one == two) | (np.abs(a - b) <= SIDES * (atol + rtol * np.abs(b)))
    return int((one != two).sum()) if near.all() else None
