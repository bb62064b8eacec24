"""A Whole: a network with the Candidates that tuning took for its Tasks, timed beside the one without. What a Task
gains by itself need not be gained among others: its neighbours leave other things in the caches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from modelc.database.record import read
from modelc.policy import Policy

LEAST_GAIN = 0.01  # of the median time, below which a whole has not become faster


@dataclass(frozen=True)
class Whole:
    """`network` is network_of() it; `taken` says by the Task's hash which Candidate each Task has that is not the
    untuned one, by its key; seconds are medians of runs by turns."""

    network: str
    target: str
    version: str
    taken: Mapping[str, str]
    untuned_seconds: float
    tuned_seconds: float
    measured_at: float

    @property
    def gained(self) -> bool:
        return gains(self.untuned_seconds, self.tuned_seconds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Whole:
        """Reads what to_json() gives. Raises ValueError."""
        return Whole(**read(data, "a whole", [field.name for field in fields(Whole)]))


def gains(untuned_seconds: float, tuned_seconds: float) -> bool:
    """Whether a whole has become faster, of times by turns."""
    return tuned_seconds < (1 - LEAST_GAIN) * untuned_seconds


def network_of(
    occurrences: Mapping[str, int], target: str, version: str, threads: int, constants: str, policy: Policy
) -> str:
    """A digest of a network's Tasks, how often each occurs, and the conditions under which it runs."""
    text = json.dumps(
        [sorted(occurrences.items()), target, version, threads, constants, sorted(asdict(policy).items())]
    )
    return hashlib.sha256(text.encode()).hexdigest()
