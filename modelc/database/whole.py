"""A Whole: a network with the Candidates that measuring found for its Tasks, timed beside the one without. What each
Task gains by itself need not be gained together: its neighbours leave other things in the caches."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from modelc.database.record import LONGEST_WORD
from modelc.policy import Policy

LEAST_GAIN = 0.01  # of the median time, below which a whole has not become faster
CHOICE = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Whole:
    """`choice` is choice_of() what was taken; seconds are medians of runs by turns."""

    choice: str
    target: str
    version: str
    untuned_seconds: float
    tuned_seconds: float
    measured_at: float

    @staticmethod
    def of(choice: str, target: str, version: str, untuned_seconds: float, tuned_seconds: float) -> Whole:
        """What was timed now."""
        return Whole(choice, target, version, untuned_seconds, tuned_seconds, time.time())

    @property
    def gained(self) -> bool:
        return gains(self.untuned_seconds, self.tuned_seconds)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Whole:
        """Reads what to_json() gives. Raises ValueError."""
        names = [one.name for one in fields(Whole)]
        if not isinstance(data, dict) or set(data) != set(names):
            raise ValueError(f"a whole has {', '.join(names)}")
        if not isinstance(data["choice"], str) or not CHOICE.fullmatch(data["choice"]):
            raise ValueError(f"choice is {str(data['choice'])[:80]!r}; expected {CHOICE.pattern}")
        for name in ("target", "version"):
            if not isinstance(data[name], str) or len(data[name]) > LONGEST_WORD:
                raise ValueError(f"{name} is no text of at most {LONGEST_WORD} characters")
        for name in ("untuned_seconds", "tuned_seconds", "measured_at"):
            number = data[name]
            if type(number) not in (int, float) or not 0 < number < math.inf:
                raise ValueError(f"{name} is {str(number)[:40]}; expected a number above 0")
        return Whole(**data)


def gains(untuned_seconds: float, tuned_seconds: float) -> bool:
    """Whether a whole has become faster, of times by turns."""
    return tuned_seconds < (1 - LEAST_GAIN) * untuned_seconds


def choice_of(
    occurrences: Mapping[str, int],
    taken: Mapping[str, str],
    target: str,
    version: str,
    threads: int,
    constants: str,
    policy: Policy,
) -> str:
    """A digest of a network's Tasks and how often each occurs, of the keys of the Candidates `taken` in place of the
    untuned ones, and of the conditions under which it runs."""
    tasks = [(key, occurrences[key], taken.get(key, "")) for key in sorted(occurrences)]
    allowed = sorted(asdict(policy).items())
    text = json.dumps([tasks, target, version, threads, constants, allowed])
    return hashlib.sha256(text.encode()).hexdigest()
