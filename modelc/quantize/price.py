"""The seconds that bytes save in each layer: what the compiler estimates of the float model and of the quantized one,
in the layouts that each would get."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from modelc.compile.pipeline import Run


@dataclass(frozen=True)
class Priced:
    """Estimated seconds of a run: of the whole, and of each layer. A Task of several is divided evenly."""

    whole: float
    layers: dict[str, float]


def priced(run: Run, model: Path, layers: Collection[str]) -> Priced:
    """What `run` would make of the model in a file takes; of several sets of shapes, the first."""
    asked = replace(run, model=model)
    program = asked.programs().rounded[0]
    whole, each = 0.0, dict.fromkeys(layers, 0.0)
    for bound in program.kernels:
        seconds = asked.schedules.seconds(bound.task)
        whole += seconds
        covered = [name for name in bound.task.nodes if name in each]
        for name in covered:
            each[name] += seconds / len(covered)
    return Priced(whole, each)
