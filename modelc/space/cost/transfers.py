"""What passes from one core's caches to another's: what a core reads that another wrote.

It comes from farther away than what a core wrote itself, and where cores have last caches of their own (clusters of
cores on one chip, sockets) from much farther. Kernels that go over the rows of their maps have the same stretch of them
in the same thread (runtime/modelc_pool.c): so a map is taken to have been written, and to be read later, by cores that
have one stretch of its rows each. What a core reads of another's stretch, and what it writes there, passes between the
two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modelc.target import Target

Bytes = float | NDArray[np.float64]  # one number, or an array of them


def of_others(
    touched: Bytes, whole: Bytes, cores: int, target: Target, own: Bytes | None = None
) -> NDArray[np.float64]:
    """Of so many bytes that one core touches of a map of `whole`, those that it gets from others: all that are not its
    `own` (None: it touches all stretches alike), but no more than its part where cores share the last cache, for what
    all read comes once, and is there then."""
    most = whole / cores if target.caches[-1].shared else whole
    return np.clip(touched - (touched / cores if own is None else own), 0.0, most)


def transfer_seconds(size: Bytes, target: Target) -> NDArray[np.float64]:
    """Seconds in which one core gets so many bytes from others: of no more than the last cache holds, for the rest has
    gone to memory."""
    last = target.caches[-1]
    return np.asarray(np.minimum(size, last.bytes) / last.line * target.cost.transfer_cycles / target.hertz, np.float64)
