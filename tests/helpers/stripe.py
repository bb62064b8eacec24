"""Stripe's autotiler (section 3.3): the tile whose cost is least among those that fit in memory.

The cost of figure 4 is the number of cache lines that all tiles access, divided by the number of positions at which
multiply-accumulates are performed. A tile reads its halo whole, and the tiles at the end of a dimension that they do
not divide read and write their overflow too: constraints remove the work there, not the accesses.

Figure 4's convolution is 3x3 over 12 x 16 positions with 8 channels in and 16 out, one byte each, cache lines of 8: one
line of input and two of output at each position, so a tile of x by y costs (x + 2)(y + 2) + 2xy lines, and at most 512
elements of input and output may be in memory: 8(x + 2)(y + 2) + 16xy. The paper shows 6 x 2 (4.666), 3 x 4 (4.5), 4 x 4
(too large) and a tile of cost 5.625 whose size it does not print. Of the tiles that do not divide 12 x 16, those that
fit cost 5.0625 (4 x 3: 4.5 were it not for the overflow), 5.25 (2 x 6), 5.333 (7 x 2), 5.375 (3 x 3), 6 (2 x 3, 2 x 5,
2 x 7, 5 x 2) and more; 5.625 is the cost of none that fits (of those that do not, 4 x 12 has it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from modelc.ir.block import Block, Task
from modelc.space.analysis.footprint import Floats, Ints, footprint, reach


@dataclass(frozen=True)
class TileCosts:
    """Tiles [P x tiled iterators] with their cost (lines for each position) and the elements they need in memory."""

    tiles: Ints
    cost: Floats
    elements: Floats


def tile_costs(
    task: Task, block: Block, tiled: Sequence[str], tiles: Ints, line_bytes: int, untiled: Sequence[str] = ()
) -> TileCosts:
    """Figure 4's cost of `tiles`, a column for each of the iterators `tiled`; the others are covered whole by every
    tile. Accesses to the buffers `untiled` (the weights) are not counted."""
    ranges = block.ranges
    iters = [i.name for i in block.iters]
    boxes = np.array([[ranges[n] for n in iters]] * len(tiles), np.int64)
    boxes[:, [iters.index(n) for n in tiled]] = tiles
    extents = np.array([ranges[n] for n in tiled], np.int64)
    count = prod_rows(-(-extents // tiles))
    lines, elements = np.zeros(len(tiles)), np.zeros(len(tiles))
    for load in (*block.reads, *block.writes):
        if load.buffer not in untiled:
            found = footprint(reach(task, load, iters), boxes, line_bytes)
            lines, elements = lines + found.lines, elements + found.elements
    return TileCosts(tiles, count * lines / prod(ranges[n] for n in tiled), elements)


def prod_rows(values: Ints) -> Ints:
    """The product of each row."""
    return np.asarray(np.prod(values, axis=1), np.int64)


def autotile(
    task: Task,
    block: Block,
    tiled: Sequence[str],
    line_bytes: int,
    most_elements: int,
    untiled: Sequence[str] = (),
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, int]:
    """The tile of least cost that needs at most `most_elements` in memory; of equals the smallest, then the first.

    `sizes` restricts what is tried for an iterator (powers of two, multiples of a stencil); by default its divisors.
    Raises ValueError if nothing fits.
    """
    ranges = block.ranges
    tried = [(sizes or {}).get(n) or [t for t in range(1, ranges[n] + 1) if ranges[n] % t == 0] for n in tiled]
    costs = tile_costs(task, block, tiled, np.array(list(product(*tried)), np.int64), line_bytes, untiled)
    fits = costs.elements <= most_elements
    if not fits.any():
        raise ValueError(f"no tile of block {block.name} fits in {most_elements} elements")
    order = np.lexsort((costs.elements, np.where(fits, costs.cost, np.inf)))
    return dict(zip(tiled, map(int, costs.tiles[order[0]]), strict=True))
