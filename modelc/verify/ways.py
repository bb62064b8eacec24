"""The ways through a package's control flow: inputs that take each, and which ones the inputs of a verification left
out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.package.spec import Argument, Branch, Plan

Arrays = dict[str, NDArray[Any]]
MOST_FLAGS = 3  # that are set in every combination
TRIPS = (2, 0, 1)  # how often a loop is run whose trip count is an input
MORE = 6  # inputs beside those that were asked for, in the hope that they take the ways that are left


def least_samples(plan: Plan) -> int:
    """How many inputs it takes for every flag that decides to be set both ways, with each of the others."""
    if not plan.control:
        return 1
    counted = len(TRIPS) if any(_inputs(one.count for one in plan.control if not isinstance(one, Branch))) else 2
    return max(counted, 1 << min(len(_flags(plan)), MOST_FLAGS))


def deciding(plan: Plan, sample: int) -> Arrays:
    """The inputs by which control flow is decided: flags, in every combination from sample to sample, but for those
    without which a run ends with an error; and trip counts."""
    found = {k: np.asarray(sample >> (bit % MOST_FLAGS) & 1 == 0) for bit, k in enumerate(_flags(plan))}
    for one in plan.control:
        if not isinstance(one, Branch):
            found |= {k: np.asarray(TRIPS[sample % len(TRIPS)]) for k in _inputs([one.count])}
        elif one.refusal:
            found |= {k: np.asarray(one.middle == one.end) for k in _inputs([one.condition])}
    tensors = {k: plan.inputs[k] for k in found}
    return {t.name: np.full(t.shape, found[k]).astype(t.dtype) for k, t in tensors.items()}


def _flags(plan: Plan) -> list[int]:
    return [*dict.fromkeys(_inputs(one.condition for one in plan.control))]


def _inputs(places: Any) -> Iterator[int]:
    """Which inputs lie at these places."""
    at: Argument | None
    for at in places:
        if at is not None and at.space == "input":
            yield at.index


def not_run(plan: Plan, calls: Sequence[int]) -> list[str]:
    """What never ran, where each step was called so often: by the nodes' names, without what is within it."""
    found: list[str] = []
    known: list[tuple[int, int]] = []
    for one in plan.control:
        parts = [("the body of Loop", one.first, one.end)]
        if isinstance(one, Branch):
            ways = ("then_branch", one.first, one.middle), ("else_branch", one.middle, one.end)
            parts = [(f"the {which} of If", first, end) for which, first, end in ways]
        for what, first, end in parts:
            within = any(a <= first and end <= b for a, b in known)
            if first < end and not within and not any(calls[first:end]):
                found.append(f"{what} {one.name!r}")
                known.append((first, end))
    return found
