"""How far two tensors are apart, and whether that is near enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
RTOL, ATOL = 1e-3, 1e-4  # of outputs in float32
TINY = 1e-30
NORMAL = 2.0**-126  # what is smaller is a subnormal float32, which engines may take for zero
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
UNITS = 16  # of roundoff: numbers of two engines that are as near are the same
PIECE = 1 << 13  # elements compared at a time: they stay in the caches, and BLAS asks no other thread
SEARCHED = 1 << 20  # elements, of whole channels, that are looked at at a time


@dataclass(frozen=True)
class Tolerance:
    """How near outputs have to be as a whole: `rms`, the relative root mean square error, and `largest`, the largest
    error over the largest element."""

    rms: float
    largest: float


BF16 = Tolerance(2e-2, 1e-1)  # of what is computed through bfloat16: five times what one kernel is off by, 2^-8
F16 = Tolerance(1e-2, 5e-2)  # in float16: five times 2^-11 sqrt(1 + n / 6), the mean of sums of n up to 256 terms
HALVES = Tolerance(2.5e-3, 1.25e-2)  # with weights and results in float16, whose roundings are 1/8 of those of bfloat16
QUANTIZED = Tolerance(2e-1, np.inf)  # through whole numbers: one that falls the other way can move an output by a tenth
FILTERED = Tolerance(
    1e-4, 1e-4
)  # by Winograd's or Strassen's rule, whose errors are those of sums that cancel, however small these


@dataclass(frozen=True)
class Distance:
    """`max_rel` is the largest |a - b| / |b|, `rms_rel` the root mean square of a - b over that of b, `of_scale` the
    largest |a - b| over the root mean square of b. `share` is the largest |a - b| over what is allowed: at most 1 where
    it passed."""

    max_abs: float
    max_rel: float
    rms_rel: float
    cosine: float
    passed: bool
    of_scale: float = 0.0
    share: float = 0.0

    def worse(self, other: Distance) -> Distance:
        """The worse of the two in every figure."""
        return Distance(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            max(self.rms_rel, other.rms_rel),
            min(self.cosine, other.cosine),
            self.passed and other.passed,
            max(self.of_scale, other.of_scale),
            max(self.share, other.share),
        )


def largest_of(array: Array) -> float:
    """The largest finite |element|; 0 where there is none."""
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    return float(np.abs(finite, dtype=np.float64).max(initial=0.0))


def scaled(atol: float, reference: Array) -> float:
    """The absolute part of what is allowed to an output like this: `atol` where its largest element is 1 or more, less
    in proportion where that is smaller, so that it hides no output that is small all over."""
    return atol * min(1.0, max(largest_of(reference), TINY))


def unsettled(ours: Array, theirs: Array, roundoff: float | None = None, units: float = UNITS) -> NDArray[np.bool_]:
    """The elements that are not the same to within so many `units` of roundoff (that of the dtype of `theirs`, where
    none is given), of the element or of the root mean square of its channel, whichever is larger. Channels are along
    axis 1 where there are more than two axes; a matrix or a vector is one channel. Whole numbers have to be equal,
    NaNs and infinities in the same places. Both have the same shape."""
    if theirs.dtype.name not in ROUNDOFF or not theirs.size:
        return np.asarray(ours != theirs)
    unit = units * (ROUNDOFF[theirs.dtype.name] if roundoff is None else roundoff)
    channels = [np.moveaxis(x, 1, 0) if x.ndim > 2 else x[None] for x in (ours, theirs)]
    apart = np.zeros(channels[0].shape, bool)
    count = max(1, SEARCHED * len(apart) // apart.size)
    for k in range(0, len(apart), count):
        first, second = (x[k : k + count] for x in channels)
        doubtful = k + np.flatnonzero(~_surely_settled(first, second, unit))
        if not doubtful.size:
            continue
        a, b = (x[doubtful].astype(np.float64) for x in channels)
        with np.errstate(all="ignore"):
            size = np.where(np.isfinite(b), np.abs(b), 0.0)
            scale = np.sqrt(np.mean(size**2, axis=tuple(range(1, size.ndim)), keepdims=True))
            near = np.abs(a - b) <= np.maximum(unit * np.maximum(size, scale), NORMAL)
            apart[doubtful] = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    return np.moveaxis(apart, 0, 1) if theirs.ndim > 2 else apart[0]


def _surely_settled(ours: Array, theirs: Array, unit: float) -> NDArray[np.bool_]:
    """The channels all of whose differences are well within `unit` of their root mean square: arithmetic in their own
    dtype says so in a quarter of the time. Infinities and NaNs are in none."""
    a, b = (x.reshape(len(x), -1) for x in (ours, theirs))
    if b.dtype not in (np.float32, np.float64) or a.dtype != b.dtype:
        return np.zeros(len(b), bool)
    with np.errstate(all="ignore"):
        largest = np.abs(a - b).max(axis=1)
        scale = np.sqrt(np.einsum("ij,ij->i", b, b, dtype=np.float64, casting="safe") / b.shape[1])
        return np.asarray((largest <= 0.9 * unit * scale) & np.isfinite(scale))


def differences(ours: Array, theirs: Array) -> NDArray[np.float64]:
    """|ours - theirs| in float64; at least 1 for whole numbers that are not equal, of which float64 holds not all."""
    with np.errstate(all="ignore"):
        apart = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    if ours.dtype.kind in "iu":
        return np.where(ours == theirs, 0.0, np.maximum(apart, 1.0))
    return apart


def distance(ours: NDArray[Any], reference: NDArray[Any], rtol: float, atol: float) -> Distance:
    """Passed: |a - b| <= atol + rtol * |b| everywhere; whole numbers and truth values must be equal. NaNs and
    infinities in equal places are equal, in different places infinitely far apart. What has no elements is equal."""
    if not ours.size and not reference.size and ours.ndim == reference.ndim:
        return Distance(0.0, 0.0, 0.0, 1.0, True)  # of nothing the open dimensions say nothing
    if ours.shape != reference.shape:
        return Distance(np.inf, np.inf, np.inf, 0.0, False, np.inf, np.inf)
    exact = reference.dtype.kind in "biu"
    a, b = ours.reshape(-1), reference.reshape(-1)
    parts = [_Part.of(a[k : k + PIECE], b[k : k + PIECE], rtol, atol, exact) for k in range(0, a.size, PIECE)]
    norm_a, norm_b, norm = (math.sqrt(sum(getattr(part, name) for part in parts)) for name in ("aa", "bb", "dd"))
    cosine = 1.0 if norm_a == norm_b == 0 else sum(part.ab for part in parts) / max(norm_a * norm_b, TINY)
    max_abs, scale = max(part.max_abs for part in parts), norm_b / math.sqrt(a.size)
    return Distance(
        max_abs=max_abs,
        max_rel=max(part.max_rel for part in parts),
        rms_rel=norm / norm_b if norm_b else norm,
        cosine=cosine,
        passed=all(part.passed for part in parts),
        of_scale=max_abs / max(scale, TINY),
        share=max(part.share for part in parts),
    )


class _Part(NamedTuple):
    """Of a piece: the squares of finite numbers, of their products and of differences; the largest differences."""

    aa: float
    bb: float
    ab: float
    dd: float
    max_abs: float
    max_rel: float
    passed: bool
    share: float

    @classmethod
    def of(cls, ours: Array, reference: Array, rtol: float, atol: float, exact: bool) -> _Part:
        a, b = ours.astype(np.float64), reference.astype(np.float64)
        with np.errstate(all="ignore"):
            apart = differences(ours, reference)
            size = np.abs(b)
            if not np.isfinite(apart.sum()):  # somewhere is an infinity or a NaN
                same = (a == b) | (np.isnan(a) & np.isnan(b))
                apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
                finite = np.isfinite(a) & np.isfinite(b)
                size, a, b = np.where(np.isfinite(b), size, 0.0), np.where(finite, a, 0.0), np.where(finite, b, 0.0)
            largest = float(apart.max())
            allowed = np.zeros(1) if exact else atol + rtol * size
            passed = bool((apart <= allowed).all())
            relative = float((apart / np.maximum(size, TINY)).max()) if largest else 0.0
            share = float(np.where(apart > 0, apart / allowed, 0.0).max())
            norms = (float(a @ a), float(b @ b), float(a @ b), float(apart @ apart))
            return cls(*norms, largest, relative, passed, share)


def rounded_distance(ours: NDArray[Any], reference: NDArray[Any], policy: Tolerance) -> Distance:
    """Passed: near as a whole, as `policy` says; whole numbers and truth values must be equal, for a policy of
    rounding says nothing of them; NaNs and infinities have to be in the same places."""
    measured = distance(ours, reference, 0, 0)
    if reference.dtype.kind in "biu" or not np.isfinite(measured.max_abs):
        return measured
    allowed = policy.largest * largest_of(reference) if measured.max_abs else 1.0
    share = max(measured.rms_rel / policy.rms, measured.max_abs / max(allowed, TINY))
    return replace(measured, passed=measured.rms_rel <= policy.rms and measured.max_abs <= allowed, share=share)


def filtered_distance(ours: NDArray[Any], reference: NDArray[Any], rtol: float, atol: float) -> Distance:
    """Passed: near in every element, as `distance` says, or near as a whole, as FILTERED says."""
    measured = distance(ours, reference, rtol, atol)
    return measured if measured.passed else rounded_distance(ours, reference, FILTERED)
