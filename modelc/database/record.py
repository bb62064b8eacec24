"""A Record: one Candidate of one Task that was measured, under which conditions, and what became of it."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from modelc.ir.block import Task
from modelc.ir.candidate import Candidate, key_of
from modelc.measure.measurement import Measurement
from modelc.policy import SCHEDULES, Policy
from modelc.target import Target

LONGEST = 1 << 20  # characters of a Candidate, or of a Task
LONGEST_WORD = 10_000  # of anything else
MOST_THREADS = 1 << 16
HASH, KEY = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{32}")
DEEP, NO_CONSTANTS = "memory", "none"


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
        where = constants_in(target, cold_bytes) if task.constants else NO_CONSTANTS
        allowed = " ".join(name for name in SCHEDULES if getattr(policy, name))
        return Conditions(key, version, threads, where, allowed)


def constants_in(target: Target, cold_bytes: int) -> str:
    """The innermost cache that holds so many bytes, or "memory"."""
    return next((cache.name for cache in target.caches if cold_bytes <= cache.bytes), DEEP)


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
            "measurement": self.measurement.to_json(),
            "untuned": self.untuned,
            "sketch": self.sketch,
            "knobs": dict(self.knobs),
            "measured_at": self.measured_at,
        }

    @staticmethod
    def from_json(data: Any) -> Record:
        """Reads what to_json() gives. Raises ValueError, also where the Candidate is not the one of its key; what it is
        worth, `candidate` says."""
        names = [f.name for f in fields(Conditions)]
        wanted = {"task", *names, "candidate", "key", "measurement", "untuned", "sketch", "knobs", "measured_at"}
        if not isinstance(data, dict) or set(data) != wanted:
            raise ValueError(f"a record has {', '.join(sorted(wanted))}")
        conditions = Conditions(**{name: data[name] for name in names})
        for name in ("target", "version", "constants", "policy"):
            _check_word(name, data[name])
        _check_word("sketch", data["sketch"])
        threads, when, knobs = conditions.threads, data["measured_at"], data["knobs"]
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads is {threads!r}; expected a whole number from 1 to {MOST_THREADS}")
        if type(when) not in (int, float) or not 0 <= when < math.inf:
            raise ValueError(f"measured_at is {str(when)[:40]}; expected seconds since 1970")
        for name, pattern in (("task", HASH), ("key", KEY)):
            if not isinstance(data[name], str) or not pattern.fullmatch(data[name]):
                raise ValueError(f"{name} is {str(data[name])[:60]!r}; expected {pattern.pattern}")
        if not isinstance(knobs, dict) or not all(type(value) in (int, str) for value in knobs.values()):
            raise ValueError("knobs is no mapping to whole numbers and words")
        if not isinstance(data["untuned"], bool):
            raise ValueError("untuned is neither true nor false")
        measurement = Measurement.from_json(data["measurement"])
        _check_word("message", measurement.message)
        if measurement.reference and not KEY.fullmatch(measurement.reference):
            raise ValueError(f"reference is {measurement.reference[:60]!r}; expected {KEY.pattern}")
        text = json.dumps(data["candidate"], separators=(",", ":"))
        if len(text) > LONGEST:
            raise ValueError(f"a candidate has {len(text)} characters; expected at most {LONGEST}")
        if (key := key_of(data["candidate"])) != data["key"]:
            raise ValueError(f"the candidate's key is {key}, and {data['key']} is said")
        point = data["untuned"], data["sketch"], knobs
        return Record(data["task"], conditions, text, data["key"], measurement, *point, float(when))


def parsed(text: str) -> Any:
    """The JSON of `text`. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _check_word(name: str, word: Any) -> None:
    if not isinstance(word, str) or len(word) > LONGEST_WORD:
        raise ValueError(f"{name} is no text of at most {LONGEST_WORD} characters")
