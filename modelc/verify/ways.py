"""The ways through a package's control flow: inputs that take each, and which ones the inputs of a verification left
out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.package.spec import Argument, Branch, Plan

Arrays = dict[str, NDArray[Any]]
MOST_FLAGS = 3  # that are set in every combination
TRIPS = (2, 0, 1)  # how often a loop is run whose trip count is an input
MORE = 6  # inputs beside those that were asked for, in the hope that they take the ways that are left


def least_samples(plan: Plan) -> int:
    """This says how many inputs it takes for every flag that decides to be set both ways, with each of the others."""
    if not plan.control:
        return 1
    counts = (control.count for control in plan.control if not isinstance(control, Branch))
    least = len(TRIPS) if any(True for _ in _input_indices(counts)) else 2
    return max(least, 1 << min(len(_flags(plan)), MOST_FLAGS))


def deciding(plan: Plan, sample: int) -> Arrays:
    """The inputs by which control flow is decided: flags, in every combination from sample to sample, but for those
    without which a run ends with an error; and trip counts."""
    numbers = {k: np.asarray(sample >> (bit % MOST_FLAGS) & 1 == 0) for bit, k in enumerate(_flags(plan))}
    for control in plan.control:
        if not isinstance(control, Branch):
            numbers |= {k: np.asarray(TRIPS[sample % len(TRIPS)]) for k in _input_indices([control.count])}
        elif control.refusal:
            numbers |= {k: np.asarray(control.middle == control.end) for k in _input_indices([control.condition])}
    tensors = {k: plan.inputs[k] for k in numbers}
    return {tensor.name: np.full(tensor.shape, numbers[k]).astype(tensor.dtype) for k, tensor in tensors.items()}


def _flags(plan: Plan) -> list[int]:
    return [*dict.fromkeys(_input_indices(control.condition for control in plan.control))]


def _input_indices(arguments: Iterable[Argument | None]) -> Iterator[int]:
    """This says which inputs the arguments are."""
    for argument in arguments:
        if argument is not None and argument.space == "input":
            yield argument.index


def not_run(plan: Plan, calls: Sequence[int]) -> list[str]:
    """This says what never ran, where each step was called so often: by the nodes' names, without what is within it."""
    sentences: list[str] = []
    spans: list[tuple[int, int]] = []
    for control in plan.control:
        parts = [("the body of Loop", control.first, control.end)]
        if isinstance(control, Branch):
            branches = (control.first, control.middle), (control.middle, control.end)
            parts = [
                (f"the {which}_branch of If", *steps) for which, steps in zip(("then", "else"), branches, strict=True)
            ]
        for what, first, end in parts:
            within = any(begin <= first and end <= last for begin, last in spans)
            if first < end and not within and not any(calls[first:end]):
                sentences.append(f"{what} {control.name!r}")
                spans.append((first, end))
    return sentences
