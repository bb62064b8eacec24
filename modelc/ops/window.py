"""The geometry of sliding windows, shared by convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelc.ir.expr import Expr, Var
from modelc.ir.graph import Node
from modelc.ops.operator import fail, ints, text

SPACE = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
TAPS = {1: ("s",), 2: ("r", "s"), 3: ("r", "s", "t")}
FARTHEST = (1 << 31) - 1  # elements that a window reaches over: positions in it are numbers of 32 bits


@dataclass(frozen=True)
class Window:
    """Extents per spatial dimension: `before` and `after` are the padding."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    output: tuple[int, ...]

    def index(self, k: int, at: str, tap: str) -> Expr:
        """Where output position `at` and kernel position `tap` read, in dimension `k`; negative in the padding."""
        start = Var(at) * self.strides[k] - self.before[k]
        return start + Var(tap) * self.dilations[k] if self.kernel[k] > 1 else start


def spatial_rank(node: Node, rank: int) -> int:
    if rank - 2 not in SPACE:
        fail(node, f"expected 1 to 3 spatial dimensions, found a tensor of {rank} dimensions")
    return rank - 2


def window(node: Node, space: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a convolution or pooling node over `space`."""
    rank = len(space)
    strides, dilations = ints(node, "strides", [1] * rank), ints(node, "dilations", [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if max(reach, default=0) > FARTHEST:
        fail(node, f"expected a window that reaches over at most {FARTHEST} elements, found {max(reach)}")
    mode = text(node, "auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, s, r in zip(space, strides, reach, strict=True)]
        less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
        before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
    elif mode in ("NOTSET", "VALID"):
        pads = ints(node, "pads", [0] * 2 * rank) if mode == "NOTSET" else (0,) * 2 * rank
        before, after = pads[:rank], pads[rank:]
    else:
        fail(node, f"expected auto_pad NOTSET, SAME_UPPER, SAME_LOWER or VALID, found {mode!r}")
    ceil = bool(node.attrs.get("ceil_mode", 0))
    output = []
    for k in range(rank):
        free = space[k] + before[k] + after[k] - reach[k]
        steps = (-(-free // strides[k]) if ceil else free // strides[k]) + 1
        if ceil and (steps - 1) * strides[k] >= space[k] + before[k]:  # a window may not start in the padding after
            steps -= 1
        if steps < 1:
            fail(node, f"expected a window of at most {space[k] + before[k] + after[k]} elements, found {reach[k]}")
        output.append(steps)
    return Window(tuple(space), tuple(kernel), strides, dilations, before, after, tuple(output))
