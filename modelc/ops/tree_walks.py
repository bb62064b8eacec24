"""What ensembles of decision trees mean, in NumPy, and the words of which their nodes are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# A code has a bit for each way in which a number may lie to a split, and says for which of them the answer is yes.
MISSING, GREATER, LESS, EQUAL = 1, 2, 4, 8  # the first where one of the two is a NaN
MODES = {
    "LEQ": LESS | EQUAL,
    "LT": LESS,
    "GTE": GREATER | EQUAL,
    "GT": GREATER,
    "EQ": EQUAL,
    "NEQ": MISSING | GREATER | LESS,
}
CODE_BITS = 4
FOLDS: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "max": np.maximum, "min": np.minimum}


def packed(column: Array, code: Array | None, below: Array) -> tuple[Array, int]:
    """Nodes, and how many of their lowest bits are the column; `code` is None where all branches have the same."""
    bits = int(column.max()).bit_length()
    nodes = column.astype(np.int64) | (below.astype(np.int64) << bits + (0 if code is None else CODE_BITS))
    if code is not None:
        nodes |= code.astype(np.int64) << bits
    return (nodes if nodes.max() >> 31 else nodes.astype(np.int32)), bits


def unpacked(nodes: Array, attrs: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Of nodes their column, their code, and how far behind them their children are, which is 0 for leaves."""
    bits, column = attrs["bits"], nodes & (1 << attrs["bits"]) - 1
    if attrs["code"]:
        return column, np.full(nodes.shape, attrs["code"]), nodes >> bits
    return column, nodes >> bits & (1 << CODE_BITS) - 1, nodes >> bits + CODE_BITS


def answers(code: Array | int, x: Array, splits: Array) -> Array:
    """1 where the question `code` is answered by yes."""
    return np.asarray(code >> 2 * (x <= splits) + (x >= splits) & 1)


def trees(
    attrs: Mapping[str, Any],
    x: Array,
    nodes: Array,
    splits: Array,
    roots: Array,
    spans: Array,
    targets: Array,
    weights: Array,
) -> tuple[Array, ...]:
    """Of every sample what the leaves that its trees lead to give to each target, added, or the least or the greatest
    of it; 0 for a target that nothing is given to."""
    result = np.zeros((len(x), attrs["targets"]), weights.dtype)
    given = np.zeros(result.shape, bool)
    samples = np.arange(len(x))
    at = np.tile(roots[:, 0].astype(np.int64), (len(x), 1))
    while True:
        column, code, below = unpacked(nodes[at], attrs)
        if not below.any():
            break
        value = x[samples[:, None], column % x.shape[1]]
        yes = answers(code, value, splits[at]) | (column >= x.shape[1]) & np.isnan(value)
        at += below + (yes & (below > 0))
    for leaf in at.T:
        first, last = spans[leaf], spans[leaf + 1]
        for k in range(int((last - first).max(initial=0))):
            some = samples[first + k < last]
            place = some, targets[(first[some] + k) % len(targets)]
            new = weights[first[some] + k]
            result[place] = np.where(given[place], FOLDS[attrs["aggregate"]](result[place], new), new)
            given[place] = True
    return (result,)
