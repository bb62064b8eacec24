"""What a unit of this machine reaches by itself, timed by turns with what is compared with it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from types import TracebackType

from modelc.errors import TargetError
from modelc.scratch import TemporaryFolder
from modelc.target.native import build_probe, probe
from modelc.target.schema import Target

_PATIENCE = 20.0  # seconds over what was asked for


@dataclass(frozen=True)
class Unit:
    """What computes, by the name that the probe has for it, and the multiply-adds of one application."""

    name: str
    products: int


def best_unit(machine: Target, dtype: str) -> Unit:
    """The fastest measured unit for products of `dtype`; plain float32 vectors where there is none."""
    measured = [x for x in machine.available_intrinsics if x.multiplies == dtype and x.name in machine.throughput]
    best = max(measured, key=lambda x: x.throughput * x.products, default=None)
    return Unit("float32", machine.vector.bits // 32) if best is None else Unit(best.name, best.products)


class Peak:
    """A unit that works on registers alone, in `threads` threads at once. It is timed as an Engine is: in slices, by
    turns with others, so that a clock that changes changes both."""

    def __init__(self, unit: Unit, threads: int = 1) -> None:
        self.unit, self.threads = unit, threads
        self._folder = TemporaryFolder("peak")
        try:
            self._program = build_probe(probe().triple, self._folder.name)
        except (OSError, subprocess.SubprocessError) as error:
            self._folder.cleanup()
            raise TargetError(f"this machine's peak cannot be measured: {error}") from None

    def time(self, seconds: float) -> list[float]:
        """Milliseconds of one application, the threads' shares together: the median of `seconds`."""
        run = [self._program, "--only", self.unit.name, str(self.threads), f"{1e3 * seconds:.3f}"]
        try:
            done = subprocess.run(run, check=True, capture_output=True, timeout=seconds + _PATIENCE, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise TargetError(f"{self.unit.name}'s peak cannot be measured: {error}") from None
        speed = sum(1 / float(nanoseconds) for nanoseconds in done.stdout.split())
        return [1e-6 / speed]

    def gflops(self, milliseconds: float) -> float:
        """GFLOP/s (int8: GOP/s) of all threads, when an application takes so long; a multiply-add counts as two."""
        return 2e-6 * self.unit.products / milliseconds

    def __enter__(self) -> Peak:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()
