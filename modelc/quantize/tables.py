"""Which tables of a float model have rows of bytes: by the error of these, where nothing needs the same numbers in
float32 too."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from modelc.frontend.quantize.dynamic import Table, tables_of
from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.packing import readers_of
from modelc.frontend.quantize.products import LEAST
from modelc.frontend.quantize.recipe import FLOAT32, SYMMETRIC, TABLE, LayerChoice
from modelc.frontend.quantize.weights import as_bytes
from modelc.quantize.drop import rounded

MOST_ERROR = 0.05  # relative, of what a layer writes that is rounded by row, and of a table
TOO_FAR = f"its error in bytes is above {MOST_ERROR:.0%}"


@dataclass(frozen=True)
class RoundedTable:
    """A table, and the relative error of its rows in bytes."""

    table: Table
    error: float

    @property
    def name(self) -> str:
        return self.table.name

    def choice(self, why: str, network: float = 0.0) -> LayerChoice:
        """What its rows are: bytes, or float32, which `why` says."""
        dtype, weights = (FLOAT32, "") if why else (TABLE, SYMMETRIC)
        return LayerChoice(self.name, dtype, rounded(self.error), rounded(network), 0.0, why, weights)


class Tables:
    """The tables of a float model that are large enough for bytes."""

    def __init__(self, floats: FloatModel) -> None:
        self.floats = floats
        self.every = [RoundedTable(t, _error(t)) for t in tables_of(floats) if t.numbers.size >= LEAST]

    def refused(self, table: RoundedTable, narrow: Collection[str]) -> str:
        """Why a table stays in float32 where the layers and lookups in `narrow` read bytes; "" where it need not."""
        others = readers_of(self.floats, table.table, narrow)
        return TOO_FAR if table.error > MOST_ERROR else f"{others[0]!r} reads it in float32" if others else ""


def _error(table: Table) -> float:
    size = float(np.linalg.norm(table.numbers)) or 1.0
    return float(np.linalg.norm(as_bytes(table.numbers, 0).real() - table.numbers)) / size
