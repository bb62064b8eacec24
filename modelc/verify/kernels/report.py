"""What was found of the importer's constants, and of each kernel: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.verify.kernels.reading import Verdict

Array = NDArray[Any]
OUT_OF_RANGE = "float16 ends at 65504, and a sum of several numbers too: compile with --precision f32"
SMALL = 64  # elements of a result of which each is looked at for whether it varies


@dataclass(frozen=True)
class Compared:
    """A constant, a table or an attribute, and where it differs, "" where it does not."""

    name: str
    elements: int
    difference: str


@dataclass(frozen=True)
class TakenOver:
    """How many constants, tables and attributes were compared, how many elements these have, and what differs."""

    compared: int = 0
    elements: int = 0
    differ: tuple[Compared, ...] = ()

    @property
    def fault(self) -> str:
        """What to say of it in one line, "" where nothing differs."""
        if not self.differ:
            return ""
        first, more = self.differ[0], len(self.differ) - 1
        others = f" (and {more} more)" * bool(more)
        return (
            f"is made of other numbers than the model's file: {first.name} {first.difference}{others}; "
            "its importer misread them, which is a fault of modelc"
        )


@dataclass(frozen=True)
class Silence:
    """Of the channels of a result the least and greatest numbers that were seen: where they are the same, nothing was
    compared that a wrong weight would show in."""

    least: Array
    greatest: Array

    @classmethod
    def of(cls, array: Array, channel: int | None) -> Silence | None:
        """None where there are no channels, and too many elements to look at each."""
        if not array.size or (array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16"):
            return None
        if channel is None:
            return cls(array.reshape(-1), array.reshape(-1)) if array.size <= SMALL else None
        axes = tuple(d for d in range(array.ndim) if d != channel)
        return cls(np.asarray(array.min(axis=axes)), np.asarray(array.max(axis=axes)))

    def joined(self, other: Silence | None) -> Silence:
        if other is None or other.least.shape != self.least.shape:
            return self
        return Silence(np.minimum(self.least, other.least), np.maximum(self.greatest, other.greatest))

    @property
    def channels(self) -> Array:
        """The channels that never varied."""
        return np.flatnonzero(self.least == self.greatest)


@dataclass(frozen=True)
class KernelReport:
    """One kernel: the values that it writes, how many `samples` of them were judged in how many `calls`, and how many
    of these `computed` as the machine code computes them. `worst` is the largest distance of one, in units of what is
    allowed: above 1 the kernel is wrong. `by` lists the values whose Tasks were compared with the imported nodes. Of
    `open` samples nothing can be told, of `unjudged` values the reason why nothing could. `faults` say what is wrong,
    by value; those of `numbers` are of the machine code."""

    kernel: str
    nodes: tuple[str, ...]
    samples: int = 0
    open: int = 0
    worst: float = 0.0
    calls: int = 0
    computed: int = 0
    by: tuple[str, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[str, ...] = ()
    unjudged: Mapping[str, str] = field(default_factory=dict)
    silences: Mapping[str, Silence] = field(default_factory=dict, compare=False)

    @property
    def passed(self) -> bool:
        return not self.faults

    def with_fault(self, value: str, sentence: str) -> KernelReport:
        return replace(self, faults={**self.faults, value: sentence}, worst=np.inf)

    def with_silence(self, value: str, silence: Silence | None) -> KernelReport:
        return self if silence is None else replace(self, silences={**self.silences, value: silence})

    def without(self, value: str, reason: str) -> KernelReport:
        return replace(self, unjudged={**self.unjudged, value: reason})

    def with_verdict(self, value: str, verdict: Verdict) -> KernelReport:
        report = replace(
            self,
            samples=self.samples + verdict.samples,
            computed=self.computed + verdict.computed,
            open=self.open + verdict.open,
            worst=max(self.worst, verdict.worst),
        )
        if verdict.worst <= 1:
            return report
        faults = {**self.faults, value: f"{verdict.sentence}, as the kernel computes it"}
        return replace(report, faults=faults, numbers=(*self.numbers, value))

    def traced(self, value: str) -> KernelReport:
        """The Tasks that make `value` were compared with the imported nodes."""
        return replace(self, by=tuple(dict.fromkeys((*self.by, value))))

    def cleared(self, value: str) -> KernelReport:
        """The numbers of `value` are those of another engine to roundoff, and so not wrong."""
        faults = {name: fault for name, fault in self.faults.items() if name != value}
        return replace(
            self,
            faults=faults,
            numbers=tuple(name for name in self.numbers if name != value),
            worst=min(self.worst, 1.0) if not faults else self.worst,
        )

    @property
    def silent(self) -> dict[str, tuple[int, int]]:
        """By value, how many of its channels never varied, of how many; those alone where some did not."""
        counts = {name: (silence.channels.size, silence.least.size) for name, silence in self.silences.items()}
        return {name: count for name, count in counts.items() if count[0]}

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "nodes": list(self.nodes),
            "passed": self.passed,
            "samples": self.samples,
            "open": self.open,
            "worst": self.worst,
            "calls": self.calls,
            "computed": self.computed,
            "by": list(self.by),
            "faults": dict(self.faults),
            "unjudged": dict(self.unjudged),
            "silent": {name: list(count) for name, count in self.silent.items()},
        }

    def joined(self, other: KernelReport) -> KernelReport:
        """Both calls' findings."""
        silences = dict(self.silences)
        for name, silence in other.silences.items():
            silences[name] = silence.joined(silences.get(name))
        return replace(
            self,
            samples=self.samples + other.samples,
            open=self.open + other.open,
            worst=max(self.worst, other.worst),
            calls=self.calls + other.calls,
            computed=self.computed + other.computed,
            by=tuple(dict.fromkeys((*self.by, *other.by))),
            faults={**other.faults, **self.faults},
            numbers=tuple(dict.fromkeys((*self.numbers, *other.numbers))),
            unjudged={**other.unjudged, **self.unjudged},
            silences=silences,
        )
