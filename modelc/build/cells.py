"""A cell: one model for one target in one precision. Which cells a matrix has, and which of them are asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from modelc.build.matrix import ForTarget, Matrix, Model
from modelc.compile.request import Request
from modelc.errors import ConfigError

SHARD = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Cell:
    model: Model
    target: ForTarget
    precision: str

    @property
    def name(self) -> str:
        """yunet:cortex-a76:f32, as --only takes it."""
        return f"{self.model.name}:{self.target.label}:{self.precision}"

    @property
    def package_name(self) -> str:
        """The folder's name."""
        return f"{self.model.name}.{self.target.label}.{self.precision}.modelc"

    @property
    def calibrated(self) -> bool:
        return "calibrate" in self.model.options and self.precision in ("int8", "auto")

    @property
    def options(self) -> dict[str, Any]:
        """What the file says of the fields of a CompileRequest; where the cell is tuned, of a TuneRequest."""
        said = {**self.model.options, "precision": self.precision}
        if self.tuned:
            of_both = {row.name for row in fields(Request)}
            said = {name: value for name, value in said.items() if name in of_both}
            return said | {"budget": self.target.budget, "runner": self.target.runner}
        if not self.calibrated:
            return {name: value for name, value in said.items() if name not in ("calibrate", "metric")}
        return said if self.model.gates.drop is None else {**said, "max_drop": self.model.gates.drop}

    @property
    def tuned(self) -> bool:
        return bool(self.target.budget)


def cells_of(matrix: Matrix, only: Sequence[str] = (), shard: str = "") -> tuple[Cell, ...]:
    """In the order of the file. `only`: patterns MODEL:TARGET:PRECISION, of which the last parts may be left out; what
    fits one of them is taken. `shard` K/N: of that, every N-th cell from the K-th on. Raises ConfigError."""
    cells = [Cell(m, target, precision) for m in matrix.models for target in m.targets for precision in m.precisions]
    asked = cells
    if only:
        for pattern in only:
            if not any(_fits(cell, pattern) for cell in cells):
                raise ConfigError(f"--only {pattern}: no cell of {matrix.source} fits{_nearest(pattern, cells)}")
        asked = [cell for cell in cells if any(_fits(cell, pattern) for pattern in only)]
    if not shard:
        return tuple(asked)
    number, count = parse_shard(shard)
    return tuple(asked[number - 1 :: count])


def parse_shard(text: str) -> tuple[int, int]:
    """K and N of K/N. Raises ConfigError."""
    match = SHARD.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise ConfigError(f"the shard is {text[:40]!r}; expected K/N, such as 2/4: the second of four")
    return int(match[1]), int(match[2])


def _fits(cell: Cell, pattern: str) -> bool:
    parts, names = pattern.split(":"), cell.name.split(":")
    return len(parts) <= len(names) and all(fnmatchcase(name, part) for name, part in zip(names, parts, strict=False))


def _nearest(pattern: str, cells: Sequence[Cell]) -> str:
    names = [cell.name for cell in cells]
    parts = pattern.count(":") + 1
    starts = list(dict.fromkeys(":".join(name.split(":")[:parts]) for name in names))
    close = get_close_matches(pattern, starts, 1, 0.4)
    hint = f". Did you mean {close[0]}?" if close else ""
    return f"; there are {', '.join(starts[:8])}{', ...' * (len(starts) > 8)}{hint}"
