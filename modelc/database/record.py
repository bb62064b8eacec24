"""A Record: one Candidate of one Task that was measured, under which conditions, and what became of it."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, get_args

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate, key_of
from modelc.measure.measurement import Measurement, Outcome
from modelc.policy import SCHEDULES, Policy
from modelc.target import Target

LONGEST = 1 << 20  # characters of a Candidate, or of a Task
LONGEST_WORD = 10_000  # of anything else
MOST_THREADS = 1 << 16
DEEP, NO_CONSTANTS = "memory", "none"
HASH, KEY, DIGEST = (re.compile(f"[0-9a-f]{{{digits}}}") for digits in (16, 32, 64))

Check = tuple[Callable[[Any], bool], str]  # whether a value is right, and what is expected
WORD: Check = (lambda v: isinstance(v, str) and len(v) <= LONGEST_WORD, f"a text of at most {LONGEST_WORD} characters")
NUMBER: Check = (lambda v: type(v) in (int, float) and 0 <= v < math.inf, "a number from 0")
POSITIVE: Check = (lambda v: type(v) in (int, float) and 0 < v < math.inf, "a number above 0")
FIELDS: Mapping[str, Check] = {
    **dict.fromkeys(("target", "version", "constants", "policy", "sketch", "message"), WORD),
    **dict.fromkeys(("seconds", "noise", "reference_seconds", "build_seconds", "run_seconds", "measured_at"), NUMBER),
    **dict.fromkeys(("untuned_seconds", "tuned_seconds"), POSITIVE),
    "threads": (lambda v: type(v) is int and 1 <= v <= MOST_THREADS, f"a whole number from 1 to {MOST_THREADS}"),
    "repeats": (lambda v: type(v) is int and v >= 0, "a whole number from 0"),
    "outcome": (lambda v: v in get_args(Outcome), f"one of the outcomes {', '.join(get_args(Outcome))}"),
    "untuned": (lambda v: isinstance(v, bool), "true or false"),
    "task": (lambda v: is_text(v, HASH), HASH.pattern),
    "key": (lambda v: is_text(v, KEY), KEY.pattern),
    "network": (lambda v: is_text(v, DIGEST), DIGEST.pattern),
    "reference": (lambda v: v == "" or is_text(v, KEY), KEY.pattern),
    "taken": (
        lambda v: isinstance(v, dict) and all(is_text(t, HASH) and is_text(key, KEY) for t, key in v.items()),
        f"a mapping from {HASH.pattern} to {KEY.pattern}",
    ),
    "knobs": (
        lambda v: isinstance(v, dict) and all(type(value) in (int, str) for value in v.values()),
        "a mapping to whole numbers and words",
    ),
}


def is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def read(data: Any, what: str, names: Sequence[str]) -> dict[str, Any]:
    """`data`, if it has just these fields, and each is right, as far as FIELDS say. Raises ValueError."""
    if not isinstance(data, dict) or set(data) != set(names):
        raise ValueError(f"{what} has {', '.join(names)}")
    for name in names:
        right, expected = FIELDS.get(name, (lambda v: True, ""))
        if not right(data[name]):
            raise ValueError(f"{name} is {repr(data[name])[:80]}; expected {expected}")
    return data


@dataclass(frozen=True)
class Conditions:
    """What a time holds for: records are compared with records of the same conditions alone. `target` is a Target's
    key, and the command through which kernels ran, if there was one; `version` is the code's; kernels ran on `threads`;
    `constants` says where a network's parameters lie (constants_in); `policy` what schedules were allowed."""

    target: str
    version: str
    threads: int
    constants: str
    policy: str

    @staticmethod
    def of(
        task: Task,
        target: Target,
        version: str,
        threads: int,
        cold_bytes: int,
        policy: Policy,
        through: Sequence[str] = (),
    ) -> Conditions:
        """Those of `task` in a network whose parameters take `cold_bytes`, where kernels run `through` a command."""
        key = f"{target.key} through {shlex.join(through)}" if through else target.key
        allowed = " ".join(name for name in SCHEDULES if getattr(policy, name))
        return Conditions(key, version, threads, place_of(task, target, cold_bytes), allowed)


def constants_in(target: Target, cold_bytes: int) -> str:
    """The innermost cache that holds so many bytes, or "memory"."""
    return next((cache.name for cache in target.caches if cold_bytes <= cache.bytes), DEEP)


def place_of(task: Task, target: Target, cold_bytes: int) -> str:
    """Where the constants of a Task lie in a network whose parameters take so many bytes, if it has some."""
    return constants_in(target, cold_bytes) if task.constants else NO_CONSTANTS


@dataclass(frozen=True)
class Record:
    """`task` is the Task's hash; `text` the Candidate as JSON, `key` its key. `untuned`: it is what the Task has
    without tuning. `sketch` and `knobs` say at which point of which Sketch it lies; there may be none. `measured_at` is
    in seconds since 1970."""

    task: str
    conditions: Conditions
    text: str
    key: str
    measurement: Measurement
    untuned: bool = False
    sketch: str = ""
    knobs: Mapping[str, int | str] = field(default_factory=dict)
    measured_at: float = 0.0

    @staticmethod
    def of(
        task: str,
        conditions: Conditions,
        candidate: Candidate,
        measurement: Measurement,
        untuned: bool = False,
        sketch: str = "",
        knobs: Mapping[str, int | str] | None = None,
    ) -> Record:
        """What was measured now."""
        text = json.dumps(candidate.to_json(), separators=(",", ":"))
        return Record(task, conditions, text, candidate.key, measurement, untuned, sketch, knobs or {}, time.time())

    @cached_property
    def candidate(self) -> Candidate:
        """Raises ValueError where the text is no Candidate, which it is if it has not been made up to fit its key."""
        return Candidate.from_json(parsed(self.text))

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            **asdict(self.conditions),
            "candidate": json.loads(self.text),
            "key": self.key,
            "measurement": asdict(self.measurement),
            "untuned": self.untuned,
            "sketch": self.sketch,
            "knobs": dict(self.knobs),
            "measured_at": self.measured_at,
        }

    @staticmethod
    def from_json(data: Any) -> Record:
        """Reads what to_json() gives. Raises ValueError, also where the Candidate is not the one of its key; what it is
        worth, `candidate` says."""
        own = dict(read(data, "a record", RECORD))
        conditions = Conditions(**{name: own.pop(name) for name in CONDITIONS})
        measurement = Measurement(**read(own.pop("measurement"), "a measurement", MEASUREMENT))
        if measurement.ok and not (measurement.seconds and measurement.reference_seconds):
            raise ValueError(f"seconds is {measurement.seconds}; expected a number above 0, and for the reference too")
        candidate = own.pop("candidate")
        text = json.dumps(candidate, separators=(",", ":"))
        if len(text) > LONGEST:
            raise ValueError(f"a candidate has {len(text)} characters; expected at most {LONGEST}")
        if (key := key_of(candidate)) != own["key"]:
            raise ValueError(f"the candidate's key is {key}, and {own['key']} is said")
        return Record(conditions=conditions, measurement=measurement, text=text, **own)


CONDITIONS, MEASUREMENT = (tuple(field.name for field in fields(kind)) for kind in (Conditions, Measurement))
RECORD = ("task", *CONDITIONS, "candidate", "key", "measurement", "untuned", "sketch", "knobs", "measured_at")


def parsed(text: str) -> Any:
    """The JSON of `text`. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
