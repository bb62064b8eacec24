"""How far two tensors are apart, and whether that is near enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

TINY = 1e-30


@dataclass(frozen=True)
class Tolerance:
    """How near outputs have to be as a whole: `rms`, the relative root mean square error, and `largest`, the largest
    error over the largest element."""

    rms: float
    largest: float


BF16 = Tolerance(2e-2, 1e-1)  # of what is computed through bfloat16
QUANTIZED = Tolerance(2e-1, np.inf)  # through whole numbers: one that falls the other way can move an output by a tenth
FILTERED = Tolerance(
    1e-4, 1e-4
)  # by Winograd's or Strassen's rule, whose errors are those of sums that cancel, however small these


@dataclass(frozen=True)
class Distance:
    """`max_rel` is the largest |a - b| / |b|, `rms_rel` the root mean square of a - b over that of b."""

    max_abs: float
    max_rel: float
    rms_rel: float
    cosine: float
    passed: bool

    def worse(self, other: Distance) -> Distance:
        """The worse of the two in every figure."""
        return Distance(
            max(self.max_abs, other.max_abs),
            max(self.max_rel, other.max_rel),
            max(self.rms_rel, other.rms_rel),
            min(self.cosine, other.cosine),
            self.passed and other.passed,
        )


def distance(ours: NDArray[Any], reference: NDArray[Any], rtol: float, atol: float) -> Distance:
    """Passed: |a - b| <= atol + rtol * |b| everywhere; whole numbers and truth values must be equal. NaNs and
    infinities in equal places are equal, in different places infinitely far apart. What has no elements is equal."""
    if not ours.size and not reference.size and ours.ndim == reference.ndim:
        return Distance(0.0, 0.0, 0.0, 1.0, True)  # of nothing the open dimensions say nothing
    if ours.shape != reference.shape:
        return Distance(np.inf, np.inf, np.inf, 0.0, False)
    exact = reference.dtype.kind in "biu"
    a, b = ours.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.where(same, 0.0, np.abs(a - b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        size = np.where(np.isfinite(b), np.abs(b), 0.0)
        passed = same if exact else apart <= atol + rtol * size
        finite = np.isfinite(a) & np.isfinite(b)
        norm_a, norm_b = np.linalg.norm(a[finite]), np.linalg.norm(b[finite])
        cosine = 1.0 if norm_a == norm_b == 0 else float(a[finite] @ b[finite] / max(norm_a * norm_b, TINY))
        norm_of_difference = float(np.linalg.norm(apart))
        return Distance(
            max_abs=float(apart.max(initial=0.0)),
            max_rel=float((apart / np.maximum(size, TINY)).max(initial=0.0)) if apart.any() else 0.0,
            rms_rel=norm_of_difference / float(norm_b) if norm_b else norm_of_difference,
            cosine=cosine,
            passed=bool(passed.all()),
        )


def rounded_distance(ours: NDArray[Any], reference: NDArray[Any], policy: Tolerance) -> Distance:
    """Passed: near as a whole, as `policy` says; whole numbers and truth values must be equal, for a policy of
    rounding says nothing of them; NaNs and infinities have to be in the same places."""
    found = distance(ours, reference, 0, 0)
    if reference.dtype.kind in "biu" or not np.isfinite(found.max_abs):
        return found
    finite = np.abs(reference[np.isfinite(reference)], dtype=np.float64)
    largest = float(finite.max(initial=0.0))
    return replace(found, passed=found.rms_rel <= policy.rms and found.max_abs <= policy.largest * largest)


def filtered_distance(ours: NDArray[Any], reference: NDArray[Any], rtol: float, atol: float) -> Distance:
    """Passed: near in every element, as `distance` says, or near as a whole, as FILTERED says."""
    found = distance(ours, reference, rtol, atol)
    return found if found.passed else rounded_distance(ours, reference, FILTERED)
