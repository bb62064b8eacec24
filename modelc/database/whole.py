"""A Whole: a network with the Candidates that tuning took for its Tasks, timed beside the one without. What a Task
gains by itself need not be gained among others: its neighbours leave other things in the caches."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from modelc.database.record import HASH, KEY, LONGEST_WORD
from modelc.policy import Policy

LEAST_GAIN = 0.01  # of the median time, below which a whole has not become faster
DIGEST = re.compile("[0-9a-f]{64}")


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

    @staticmethod
    def of(
        network: str,
        target: str,
        version: str,
        taken: Mapping[str, str],
        untuned_seconds: float,
        tuned_seconds: float,
    ) -> Whole:
        """What was timed now."""
        return Whole(network, target, version, dict(taken), untuned_seconds, tuned_seconds, time.time())

    @property
    def gained(self) -> bool:
        return gains(self.untuned_seconds, self.tuned_seconds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Whole:
        """Reads what to_json() gives. Raises ValueError."""
        names = [field.name for field in fields(Whole)]
        if not isinstance(data, dict) or set(data) != set(names):
            raise ValueError(f"a whole has {', '.join(names)}")
        if not isinstance(data["network"], str) or not DIGEST.fullmatch(data["network"]):
            raise ValueError(f"network is {str(data['network'])[:80]!r}; expected {DIGEST.pattern}")
        for name in ("target", "version"):
            if not isinstance(data[name], str) or len(data[name]) > LONGEST_WORD:
                raise ValueError(f"{name} is no text of at most {LONGEST_WORD} characters")
        if not isinstance(taken := data["taken"], dict) or not all(
            isinstance(key, str) and HASH.fullmatch(task) and KEY.fullmatch(key) for task, key in taken.items()
        ):
            raise ValueError(f"taken is no mapping from {HASH.pattern} to {KEY.pattern}")
        for name in ("untuned_seconds", "tuned_seconds", "measured_at"):
            number = data[name]
            if type(number) not in (int, float) or not 0 < number < math.inf:
                raise ValueError(f"{name} is {str(number)[:40]}; expected a number above 0")
        return Whole(**data)


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
