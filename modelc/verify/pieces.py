"""A value that a kernel wrote, beside what ONNX Runtime's piece of the model makes of what the kernel read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.witness.surgery import Rounding, Span
from modelc.verify.compare import (
    ROUNDOFF,
    Distance,
    Tolerance,
    differences,
    distance,
    filtered_distance,
    rounded_distance,
    scaled,
    unsettled,
)
from modelc.verify.kernels.reading import UNEXPLAINED, Explanation
from modelc.verify.report import AGREES, CONTRADICTS, EXPLAINED, SILENT, TIES, LayerReport

Array = NDArray[Any]
Values = Callable[[str], Array]  # what the model's values are in this run, by name
MOST_MOVES = 3.0  # how often as far as ONNX Runtime's numbers on moved inputs ours may be from its own
UNITS_OF_ONE = 4.0  # roundoffs of 1 that functions with limits leave in results near 0
LEAST_MORE = 2.0  # how often as far a smooth function's numbers move at least, when its inputs move FARTHER
MOST_FARTHER = 3.0  # how often as far from a third engine's as ONNX Runtime's ours may be, to mean the same
NEAR = 0.02  # of a step: what is as near to a tie may be rounded either way
FLIPPED = 1e-3  # of the numbers, at most, may follow from a tie on the way that is no value of a kernel
FLIPPED_STEPS = 2  # by which these may be off where they are whole


@dataclass(frozen=True)
class Written:
    """A value as a kernel wrote it, as the model has it; `narrow`: the 16-bit floats that it was computed through."""

    kernel: str
    nodes: tuple[str, ...]
    array: Array
    narrow: str = ""

    def within(self, shape: tuple[int, ...]) -> Written:
        """As much of the value as there is in a run, where its size depends on data."""
        array = self.array
        if array.ndim == len(shape) and all(n >= m for n, m in zip(array.shape, shape, strict=True)):
            array = array[tuple(slice(m) for m in shape)]
        return replace(self, array=array)

    def unsettled(self, theirs: Array) -> Array:
        """Which elements are not those of another engine to roundoff."""
        return unsettled(self.array, theirs, ROUNDOFF[self.narrow] if self.narrow else None)


@dataclass(frozen=True)
class Limits:
    """What is near: within `atol`, in proportion for what is small all over, and `rtol`; what is computed through
    16-bit floats as `policy` says. `filters`: some kernel makes fewer multiplications. `units`: so
    many roundoffs of its scale the roundings of all kernels ordinarily take a value away."""

    rtol: float
    atol: float
    policy: Tolerance
    filters: bool
    units: float


@dataclass(frozen=True, eq=False)
class Piece:
    """The value `name` as it was `written`, and as ONNX Runtime has it (`theirs`); `span` is what of the nodes between
    rounds to whole numbers."""

    written: Written
    name: str
    theirs: Array
    span: Span
    limits: Limits

    @cached_property
    def _apart(self) -> Array:
        """The elements that are not the same to roundoff."""
        return self.written.unsettled(self.theirs)

    def is_settled(self, values: Values) -> bool:
        """Whether all elements are the same to roundoff, or whole numbers that either way of a tie gives."""
        if self.written.array.shape != self.theirs.shape:
            return False
        return not self._apart.any() or not (self._apart & ~self._tied(values)).any()

    def report(self, explained: Explanation, values: Values) -> LayerReport:
        """What is to be said of the value as far as there are two readings; SILENT where a third has to decide.
        `explained`: each element that is not settled is right by its meaning."""
        near, steps = self._near(values, self.limits.atol)
        report = LayerReport(self.written.kernel, self.name, self.written.nodes, near, steps)
        if self.is_settled(values):
            return report
        if self.written.array.shape != self.theirs.shape:
            return replace(report, referee=SILENT)
        if explained.ours and explained.theirs:
            return replace(report, referee=EXPLAINED)
        if explained.theirs is None and self._follows_from_ties:
            return replace(report, referee=TIES)
        return replace(report, referee=SILENT)

    def decided(self, explained: Explanation, third: Array | None) -> str:
        """What the reference evaluator of onnx says, which makes `third` of the piece; None where it cannot."""
        if third is None or third.shape != self.theirs.shape or self.written.array.shape != self.theirs.shape:
            return SILENT
        return AGREES if self._is_with_ours(third, explained) else CONTRADICTS

    def may_move(self, explained: Explanation) -> bool:
        """Whether it says something that ONNX Runtime's own numbers move as far: where ours are right by their meaning,
        or something is rounded to whole numbers on the way."""
        return self.written.array.shape == self.theirs.shape and (explained.ours or self.span.rounds > 0)

    def moves_as_far(self, moved: Sequence[Array], explained: Explanation = UNEXPLAINED) -> bool:
        """Whether ONNX Runtime's numbers for inputs that are `moved` are as far from its own as ours are; False where
        their count changes, and without any. A rounding to whole numbers that falls the other way moves a few elements
        as far as no other one does: where there are such, and ours are right by their meaning, the mean decides."""
        if not moved or any(array.shape != self.theirs.shape for array in moved):
            return False
        return moves_as_far(self.written.array, self.theirs, moved, explained.ours and self.span.rounds > 0)

    def _near(self, values: Values, atol: float) -> tuple[Distance, int]:
        """How far the two are apart, whether that is within the limits, and how many whole numbers are at ties."""
        ours, limits = self.written.array, self.limits
        if self.written.narrow:
            return rounded_distance(ours, self.theirs, limits.policy), 0
        apart, steps = judged(ours, self.theirs, self.span, values, limits.rtol, atol)
        if not apart.passed and limits.filters and ours.dtype.kind == "f":
            apart = filtered_distance(ours, self.theirs, limits.rtol, atol)
        return apart, steps

    def _tied(self, values: Values) -> Array:
        return at_ties(self.written.array, self.theirs, self.span, values)

    @property
    def _follows_from_ties(self) -> bool:
        """Whether so few elements differ that a tie on the way, at no value of a kernel, may be why."""
        ours, theirs = self.written.array, self.theirs
        if theirs.dtype.kind in "iu" and (differences(ours, theirs) > FLIPPED_STEPS).any():
            return False
        return self.span.rounds > 0 and bool(self._apart.sum() <= FLIPPED * self._apart.size)

    def _is_as_near(self, third: Array) -> bool:
        """Whether the third reading is about as near to ours as to ONNX Runtime's; or as near as fewer multiplications
        leave it, which other engines do not make."""
        ours, limits = self.written.array, self.limits
        if limits.filters and filtered_distance(ours, third, limits.rtol, scaled(limits.atol, self.theirs)).passed:
            return True
        return _is_as_near(third, ours, self.theirs, self._apart)

    def _is_with_ours(self, third: Array, explained: Explanation) -> bool:
        """Whether the third reading is with ours wherever these are not ONNX Runtime's: to roundoff; where ours are
        right by their meaning, within the limits, and about as near as to ONNX Runtime's where these surely mean
        another thing."""
        ours = self.written.array
        if ours.dtype.kind in "iu" and (self.span.rounding is not None or self.span.rounds):
            apart = (differences(ours, third) > 1) | (self.theirs == third)  # a step, at ties
        elif explained.ours and explained.theirs is False and not self._is_as_near(third):
            return False
        elif explained.ours:
            apart = _beyond(ours, third, self.limits.rtol, scaled(self.limits.atol, self.theirs))
        else:
            apart = self.written.unsettled(third.astype(self.theirs.dtype))
        return not (self._apart & apart).any()


def moves_as_far(ours: Array, theirs: Array, moved: Sequence[Array], mean_alone: bool = False) -> bool:
    """Whether another engine's numbers for inputs that are `moved` are as far from its own as ours are: in the root
    mean square, and in the element that is farthest off unless `mean_alone` is asked."""
    rms, largest = (max(distances) for distances in zip(*(_apart(array, theirs) for array in moved), strict=True))
    our_rms, our_largest = _apart(ours, theirs)
    return bool(our_rms <= MOST_MOVES * rms and (mean_alone or our_largest <= MOST_MOVES * largest))


def moves_on(theirs: Array, little: Sequence[Array], farther: Sequence[Array]) -> bool:
    """Whether another engine's numbers move on where its inputs move `farther`, as a smooth function's: where something
    is rounded or chosen at a tie, they jump by as much for the least move. What moves by roundoffs of 1 alone, as a
    saturated sigmoid, is no jump. False where their count changes, and without any."""
    distances = [_apart(array, theirs) for array in little]
    if max(largest for _, largest in distances) <= UNITS_OF_ONE * ROUNDOFF["float32"]:
        return True
    if not farther or any(array.shape != theirs.shape for array in farther):
        return False
    return max(_apart(array, theirs)[0] for array in farther) > LEAST_MORE * max(rms for rms, _ in distances)


def _is_as_near(third: Array, ours: Array, theirs: Array, where: Array) -> bool:
    """Whether the third reading is about as near to ours as to theirs, at the elements `where` these differ: three
    that mean the same are about as far from each other, and another meaning is farther from both that it is not."""
    our_rms, their_rms = (_apart(array[where], third[where])[0] for array in (ours, theirs))
    return not our_rms > MOST_FARTHER * their_rms  # NaN: the limits say


def _beyond(ours: Array, reference: Array, rtol: float, atol: float) -> Array:
    """Where numbers are farther apart than that; whole ones, where they are not equal."""
    if ours.dtype.kind in "iu":
        return np.asarray(ours != reference)
    a, b = np.asarray(ours, np.float64), np.asarray(reference, np.float64)
    with np.errstate(all="ignore"):
        near = (np.abs(a - b) <= atol + rtol * np.abs(b)) | (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(~near)


def _apart(array: Array, wanted: Array) -> tuple[float, float]:
    """The root mean square, and the largest, of the differences."""
    apart = differences(array, wanted)
    return float(np.sqrt(np.mean(apart**2))), float(apart.max(initial=0.0))


# --- whole numbers that stand for real ones: two that are a step apart are both right where the real one is at a tie --


def judged(ours: Array, reference: Array, span: Span, value: Values, rtol: float, atol: float) -> tuple[Distance, int]:
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


def at_ties(ours: Array, reference: Array, span: Span, value: Values) -> NDArray[np.bool_]:
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


def _quotient(rounding: Rounding, value: Values) -> tuple[Array, Array, Array]:
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
