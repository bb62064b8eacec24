"""What is known of one candidate after it was measured, and what measuring may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "invalid", "build-failed", "build-timeout", "crashed", "timeout", "wrong"]
SURE = 2.0  # standard errors that a winner is faster by
SAMPLES, UNKNOWN = 3, 0.1  # samples, of fewer of which the spread says nothing; the standard error that is taken then
LEAST_GAIN = 0.02  # of the other's time, below which nothing is called faster


@dataclass(frozen=True)
class Measurement:
    """One candidate, measured by turns with the first good candidate of its Task.

    `outcome` is one of
        ok             it computed what the Task means, and was timed
        invalid        it breaks a constraint of the Task, or is larger than the limits: nothing was lowered
        build-failed   the code generator or the linker refused it, or its process died
        build-timeout  it was not built in time
        crashed        its process died
        timeout        it did not end in time
        wrong          it computed something else than the Task means, or touched what is not its own: a bug of modelc
    and `message` says more of all but the first.

    `seconds` of one call, the median of `repeats` samples; `reference_seconds` of the other one meanwhile (of the first
    candidate: its own), whose key is `reference`; `noise`, the standard error of `seconds`, relative. They are 0 where
    the outcome is not ok.
    `build_seconds` and `run_seconds` are what building and running cost, everything included.
    """

    outcome: Outcome
    message: str = ""
    seconds: float = 0.0
    noise: float = 0.0
    repeats: int = 0
    reference_seconds: float = 0.0
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    reference: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def relative(self) -> float:
        """The time over the reference's in the same seconds: what compares candidates though the machine drifts."""
        return self.seconds / self.reference_seconds if self.ok else float("inf")

    @property
    def doubt(self) -> float:
        """The standard error of `seconds`, relative, where there are samples enough to know it; UNKNOWN at least where
        there are not: what is slow by far is timed once or twice."""
        return self.noise if self.repeats >= SAMPLES else max(self.noise, UNKNOWN)

    def faster(self, other: Measurement) -> bool:
        """Whether it is known to be faster than `other`, by more than the noise; so is what works than what fails."""
        doubt = max(LEAST_GAIN, SURE * math.hypot(self.noise, other.noise))
        return self.ok and self.relative < other.relative * (1 - doubt)


@dataclass(frozen=True)
class Limits:
    """What one candidate may take before it is given up."""

    build_seconds: float = 30.0  # while its builder is not stopped for a measurement
    build_bytes: int = 3 << 30  # of memory, beyond what a builder has at its start
    run_seconds: float = 10.0  # all calls together
    run_bytes: int = 1 << 30  # of memory, beyond its buffers
    buffer_bytes: int = 4 << 30  # buffers, temporaries and scratch of one kernel
    statements: int = 3_000  # after unrolling


@dataclass(frozen=True)
class Setting:
    """What kernels run in: so many threads, subnormals as zero where they `flush`, inputs drawn by `seed`, within
    limits."""

    threads: int = 1
    flush: bool = False
    seed: int = 0
    limits: Limits = Limits()


@dataclass(frozen=True)
class Effort:
    """How exactly candidates are timed: as far as the search needs it, for the finals decide."""

    sample_seconds: float = 1e-3  # a sample repeats calls until it takes so long
    least: int = 5  # samples of each
    most: int = 40
    noise: float = 0.015  # enough
    seconds: float = 0.1  # after which there are no more samples than the least
    slower: float = 1.5  # times the best seconds known: such a candidate is timed twice, one of twice as many once
    near: float = 1.05  # times them: one that is surely slower is timed as seldom as can be
