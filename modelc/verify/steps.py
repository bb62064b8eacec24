"""Whole numbers that stand for real ones: two that are a step apart are both right where the real one is at a tie.

A real number that float32 has to within its rounding error, on the border between two whole numbers, becomes either.
What is judged here was computed from the very same inputs on both sides, so that nothing but this makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.witness.surgery import Rounding, Span
from modelc.verify.compare import Distance, differences, distance

NEAR = 0.02  # of a step: what is as near to a tie may be rounded either way
FLIPPED = 1e-3  # of the numbers, at most, may follow from a tie on the way that is no value of a kernel
FLIPPED_STEPS = 2  # by which these may be off where they are whole

Array = NDArray[Any]


def judged(
    ours: Array, reference: Array, span: Span, value: Callable[[str], Array], rtol: float, atol: float
) -> tuple[Distance, int]:
    """How far `ours` is from the reference's result for the same inputs, and how many whole numbers are a step apart
    at ties. `value` gives what the roundings of `span` name."""
    measured = distance(ours, reference, rtol, atol)
    if measured.passed or ours.shape != reference.shape:
        return measured, 0
    if reference.dtype.kind in "iu":
        apart = differences(ours, reference)
        wrong = (apart > 0) & ~at_ties(ours, reference, span, value)
        near, steps = bool((apart <= FLIPPED_STEPS).all()), int(((apart > 0) & ~wrong).sum())
    else:
        with np.errstate(all="ignore"):
            excess = np.abs(ours.astype(np.float64) - reference) > atol + rtol * np.abs(reference)
        wrong, near, steps = excess | (np.isnan(ours) != np.isnan(reference)), True, 0
    allowed = FLIPPED * wrong.size if span.rounds and near else 0.0
    return replace(measured, passed=bool(wrong.sum() <= allowed)), steps


def at_ties(ours: Array, reference: Array, span: Span, value: Callable[[str], Array]) -> NDArray[np.bool_]:
    """Which whole numbers of `ours` are a right rounding of what `span` rounds, where that is known: next to a tie both
    ways are, and of a quotient that is a tie exactly the even one."""
    if reference.dtype.kind not in "iu" or span.rounding is None:
        return np.zeros(reference.shape, bool)
    quotient, zero, exact = _quotient(span.rounding, value)
    limits = _limits(reference.dtype)
    real, even = np.clip(quotient + zero, *limits), np.clip(np.rint(quotient) + zero, *limits)
    apart = np.abs(ours.astype(np.float64) - np.where(exact, even, real))
    return np.asarray(apart <= np.where(exact, 0.0, 0.5 + NEAR))


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _quotient(rounding: Rounding, value: Callable[[str], Array]) -> tuple[Array, Array, Array]:
    """What is rounded, in steps, the zero point that is added, and where the quotient is a tie exactly."""
    x, scale = value(rounding.x).astype(np.float64), value(rounding.scale).astype(np.float64)
    if rounding.lowest:
        return np.asarray(-min(float(x.min(initial=0.0)), 0.0) / scale), np.zeros(()), np.zeros((), bool)
    zero = value(rounding.zero).astype(np.float64) if rounding.zero else np.zeros_like(scale)
    scale, zero = (_over(parameter, rounding, x) for parameter in (scale, zero))
    quotient = x / scale
    return quotient, zero, (np.mod(quotient, 1.0) == 0.5) & (quotient * scale == x)


def _over(parameter: Array, rounding: Rounding, x: Array) -> Array:
    """A scale or zero point at every element of `x`, or what broadcasts to that."""
    axis = rounding.axis % max(x.ndim, 1)
    if parameter.size == 1:
        return parameter.reshape(())
    if rounding.block:
        return np.repeat(parameter, rounding.block, axis).take(range(x.shape[axis]), axis)
    return parameter.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
