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
    """Of `touched` bytes that one core accesses in a map of `whole` bytes, those that other cores wrote. A core wrote
    its `own` bytes (None: it accesses all stretches alike). Where cores share the last cache, the transfer is at most
    the core's part of the map: data that all cores read arrives once."""
    most = whole / cores if target.caches[-1].shared else whole
    return np.clip(touched - (touched / cores if own is None else own), 0.0, most)


def transfer_seconds(size: Bytes, target: Target) -> NDArray[np.float64]:
    """Seconds in which one core gets so many bytes from others: of no more than the last cache holds, for the rest has
    gone to memory."""
    last = target.caches[-1]
    return np.asarray(np.minimum(size, last.bytes) / last.line * target.cost.transfer_cycles / target.hertz, np.float64)
