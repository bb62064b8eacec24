"""Equal rows of a table of integers, such as a population of tiles or points: closed forms take each row once."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def distinct_rows(table: Ints) -> tuple[Ints, Ints]:
    """The different rows of a `table` of numbers that are not negative [N x K], ascending, and the place of each of its
    rows among them [N]. A row is read as the digits of one number, which is sorted faster than rows are."""
    bases = [int(n) + 1 for n in table.max(axis=0, initial=0)]
    if prod(bases) > np.iinfo(np.int64).max:
        rows, places = np.unique(table, axis=0, return_inverse=True)
        return rows, places.reshape(-1)
    worth = np.array([prod(bases[k + 1 :]) for k in range(len(bases))], np.int64)
    _, first, places = np.unique(table @ worth, return_index=True, return_inverse=True)
    return table[first], places
