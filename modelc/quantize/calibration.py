"""What a calibration is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from modelc.errors import ConfigError
from modelc.quantize.measure import EXPECTED, Metric

MAX_DROP = 0.01


@dataclass(frozen=True)
class Calibration:
    """Samples at a path (an .npz file or a folder), and by how much outputs may be worse: `max_drop`, as a share.
    `metric` (FILE.py:FUNCTION, or a function) is what that is measured by; without, classes and relative errors are."""

    samples: str | Path
    metric: str | Metric | None = None
    max_drop: float = MAX_DROP

    def __post_init__(self) -> None:
        if not (self.metric is None or isinstance(self.metric, str) or callable(self.metric)):
            raise ConfigError(f"the metric is {repr(self.metric)[:80]}; {EXPECTED}; or that function itself")
        if not (isfinite(self.max_drop) and 0 <= self.max_drop <= 1):
            raise ConfigError(f"the greatest drop is {self.max_drop}; expected a share from 0 to 1, such as 1% or 0.01")
