"""Where the numbers of buffers come from, for an evaluation of some of their elements (demand.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Block
from modelc.verify.kernels.rounding import Analysis

Array = NDArray[Any]
Order = tuple[int, ...]


@dataclass(frozen=True)
class Definitions:
    """Where numbers come from: `given` arrays by buffer, in logical shape; what else is computed by `writers`, the
    Blocks that write a buffer with their places in the order of execution. `buffer` gives dtype and shape. `analysis`:
    the arithmetic. `roundoff`: the relative error of given numbers of float32, where they are rounded before they are
    multiplied; `stands_for_real`: whether those of a buffer were computed in their dtype, for real numbers.
    `order_of`: in which order a kernel adds up."""

    given: Callable[[str], Array | None]
    writers: Callable[[str], Sequence[tuple[Order, AnyBlock]]]
    buffer: Callable[[str], tuple[str, tuple[int, ...]]]
    opaque: Mapping[str, Callable[..., tuple[Array, ...]]]
    analysis: Analysis = field(default_factory=Analysis)
    roundoff: float = 0.0
    stands_for_real: Callable[[str], bool] = lambda buffer: False
    order_of: Callable[[Block], Array | None] = lambda block: None
