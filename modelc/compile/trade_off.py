"""What a choice among ways of layers gains and loses: a row of the table that --max-drop is chosen from."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any


@dataclass(frozen=True)
class Row:
    """So many `layers` of `every` one are in bytes, `dynamic` of them with activations rounded by row in each run, and
    `halves` in float16; so many `tables` have rows of bytes: the estimated `seconds` of a run, how many times as fast
    that is as float32, the bytes of the model's constants, and the drop on the samples that are held back."""

    layers: int
    dynamic: int
    halves: int
    tables: int
    every: int
    seconds: float
    speed: float
    params_bytes: int
    drop: float

    @property
    def max_drop(self) -> float:
        """The --max-drop that allows it: the drop, rounded up to two digits."""
        if self.drop <= 0:
            return 0.0
        digits = 10.0 ** (1 - floor(log10(self.drop)))
        return ceil(round(self.drop * digits, 6)) / digits

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "max_drop": self.max_drop}
