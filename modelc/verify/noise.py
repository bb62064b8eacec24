"""How still the machine is while something is timed: a fixed loop beside it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

ROUNDS = 64  # of a hash of some bytes, which leaves caches to what is timed: tens of microseconds
TIMES = 20  # in each look
MOST_SPREAD, MOST_DRIFT = 1.25, 1.1  # beyond which times of this machine tell little


class Noise(NamedTuple):
    """`spread`: the loop's 90th percentile over its 10th. `drift`: its slowest look over its fastest, by the 10th
    percentile of each, which other processes change little: the clock's."""

    spread: float
    drift: float

    @property
    def busy(self) -> bool:
        return self.spread > MOST_SPREAD or self.drift > MOST_DRIFT

    def sentence(self) -> str:
        moved = f"a fixed loop beside took {self.spread:.2f} times as long at its p90 as at its p10, and the clock "
        moved += f"drifted by {self.drift - 1:.0%}"
        return f"this machine is too busy to tell: {moved}; times and ratios are rough" if self.busy else moved

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Noise:
        """What to_json() gave."""
        return cls(document["spread"], document["drift"])

    def to_json(self) -> dict[str, Any]:
        return {"spread": self.spread, "drift": self.drift, "busy": self.busy}


class FixedLoop:
    """Something that takes the same work each time; it is timed by turns with engines, and takes milliseconds."""

    def time(self, seconds: float) -> list[float]:
        """Milliseconds of TIMES runs, however many `seconds` others have."""
        times = []
        for _ in range(TIMES):
            begun = time.perf_counter()
            hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)
            times.append(1e3 * (time.perf_counter() - begun))
        return times


def noise_of(looks: Sequence[Sequence[float]]) -> Noise:
    """What the times of a fixed loop say, look by look."""
    low, high = np.percentile(np.concatenate(looks), (10, 90))
    each = [float(np.percentile(look, 10)) for look in looks]
    return Noise(float(high / low), max(each) / min(each))
