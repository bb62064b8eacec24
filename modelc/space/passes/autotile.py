"""autotile: a Block is cut into the tiles of least cost among those that fit into a memory (Stripe, section 3.3).

The cost is figure 4's: the cache lines that all tiles access, for each multiply-accumulate. A tile reads its halo
whole, and the tiles at the end of a dimension that they do not divide read and write their overflow too: conditions
remove the work there, not the accesses. An operand stays where it is until a loop over tiles moves it, and results stay
until their reduction is complete.

    block conv [x:12 y:16 k:16 | i:3 j:3 c:8]      lines of 8 bytes, 512 bytes, constants whole: x:3 y:4, at 4.5 lines
    for x0:4 y0:4                                  a position
      local I_padded: int8[5, 6, 8]                the halo's five rows, read once for the tile
      local O_acc: int8[3, 4, 16]
      for x1:3 y1:4 k1:16 i1:3 j1:3 c1:8

Listed again for a larger cache, its tiles are whole ones of the memory before, and reductions are left whole.

A cache fills itself. Into a memory that programs fill (`memories` of the target) operands are copied, and results from
it. Blocks without a reduction read each element once: they keep plain loops, and an epilogue runs at the tile whose
results it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice, product
from math import prod

import numpy as np

from modelc.errors import ConfigError, TargetError
from modelc.ir.block import Block, Task
from modelc.ir.expr import Const, Load, Var, variables
from modelc.passes.spec import word
from modelc.space.analysis.footprint import Floats, Ints, distinct, footprint, reach
from modelc.space.passes.scheduling import Level, Scheduling, Tiling
from modelc.space.rules.rule import DoesNotApply, sole_consumer
from modelc.target import Cache, Memory, Target

SIZES = ("divisors", "powers", "all")
MOST_TILES = 1 << 20  # that are priced for one Block
AT_ONCE = 1 << 16  # of them in one array


@dataclass(frozen=True)
class TileCosts:
    """Tiles [P x iterators, spatial ones first] with their cost (lines for each point) and the bytes that their boxes
    take in memory [P]."""

    tiles: Ints
    cost: Floats
    bytes: Floats


@dataclass(frozen=True)
class Autotile:
    """`memory`: a cache, or a memory that programs fill, of the target. `bytes`: the budget for one tile; 0: all of the
    memory. `line`: what one access brings, in bytes; 0: the memory's own. `constants`: `tiled` like any operand, or
    `whole`: no iterator of theirs is tiled, and they are neither counted nor copied (the weights of figure 4).
    `sizes`: the extents that are tried for a tile: `divisors`, `powers` of two, or `all`; times those of an
    intrinsic's tile, or of the tile for the memory before."""

    target: Target
    memory: str = word()
    bytes: int = 0
    line: int = 0
    constants: str = word("tiled", ("tiled", "whole"))
    sizes: str = word(SIZES[0], SIZES)

    def __post_init__(self) -> None:
        names = [place.name for place in _places(self.target)]
        if self.memory not in names:
            raise ConfigError(
                f"option memory is {self.memory!r}; expected a cache or memory of the target: {_or(names)}"
            )
        if self.bytes > self.place.bytes:
            raise ConfigError(
                f"option bytes is {self.bytes}; expected at most the {self.place.bytes} bytes of {self.memory}"
            )

    @property
    def place(self) -> Cache | Memory:
        return next(place for place in _places(self.target) if place.name == self.memory)

    @property
    def copies(self) -> bool:
        """Whether programs fill the memory."""
        return isinstance(self.place, Memory)

    @property
    def budget(self) -> int:
        return self.bytes or self.place.bytes

    def __call__(self, scheduling: Scheduling) -> Scheduling:
        for name in scheduling.reductions:
            scheduling = self.tiled(scheduling, name)
        return scheduling

    def tiled(self, scheduling: Scheduling, name: str) -> Scheduling:
        """`scheduling` with Block `name` in tiles. Raises TargetError where none fits."""
        block, tiling = scheduling.block(name), scheduling.tilings.get(name)
        untiled = scheduling.task.constants if self.constants == "whole" else frozenset[str]()
        tile = self.best(scheduling, block, untiled)
        several = [i.name for i in block.iters if i.extent > tile[i.name]]
        spatial = sorted((i.name for i in block.spatial), key=several.__contains__)  # loops of one tile are outermost
        if tiling is not None:
            level = Level({n: tile[n] for n in spatial}, tuple(spatial))
            tiling = replace(tiling, levels=(level, *tiling.levels))
        else:
            tiling = Tiling((Level(tile, (*spatial, *(i.name for i in block.reduction))),))
            if self.copies:
                scheduling, tiling = _copied(scheduling, name, tiling, several, untiled)
            scheduling, reader = _reader(scheduling, name, self.copies)
            if reader is not None:
                tiling = replace(tiling, result=(reader, spatial[-1]))
        return replace(scheduling, tilings={**scheduling.tilings, name: tiling})

    def best(self, scheduling: Scheduling, block: Block, untiled: Collection[str]) -> dict[str, int]:
        """The tile of least cost that fits; of equals the one that fills most of the memory. Raises TargetError."""
        application, tiling = scheduling.applications.get(block.name), scheduling.tilings.get(block.name)
        steps = {} if application is None else dict(application.loops)
        names = [i.name for i in (*block.spatial, *block.reduction)]
        fixed = {n for read in block.reads if read.buffer in untiled for n in variables(read)}
        if tiling is not None:
            steps, fixed = dict(tiling.levels[0].tile), fixed | {i.name for i in block.reduction}
        choices = [self.extents(block.ranges[n], steps.get(n, 1), n in fixed) for n in names]
        count = prod(map(len, choices))
        if count > MOST_TILES:
            raise TargetError(
                f"pass autotile has {count} tiles to choose from for the {_line(block)}, and prices {MOST_TILES}: give "
                f"it `sizes: {'powers' if self.sizes == 'divisors' else 'divisors'}`"
            )
        least, best = np.inf, (np.inf, np.inf, list[int]())
        line = self.line or self.place.line
        for tiles in _batches(choices):
            costs = tile_costs(scheduling.task, block, tiles, line, untiled, fixed)
            fits = costs.bytes <= self.budget
            cost = np.where(fits, costs.cost, np.inf)
            first = np.lexsort((-costs.bytes, cost))[0]
            least = min(least, float(costs.bytes.min()))
            best = min(best, (float(cost[first]), -float(costs.bytes[first]), tiles[first].tolist()))
        if best[0] == np.inf:
            remedy = "" if self.constants == "tiled" or not untiled else ", or `constants: tiled`"
            raise TargetError(
                f"pass autotile finds no tile of the {_line(block)} that fits in {self.budget} bytes of {self.memory}: "
                f"the smallest takes {least:.0f}; give it more `bytes`{remedy}, or a larger memory"
            )
        return dict(zip(names, best[2], strict=True))

    def extents(self, extent: int, step: int, fixed: bool) -> list[int]:
        """The extents of a tile that are tried along an iterator, in steps of the tile inside."""
        count = -(-extent // step)
        if fixed:
            return [extent]
        if self.sizes == "powers":
            return [*(step << k for k in range(count.bit_length()) if 1 << k < count), extent]
        return [min(step * n, extent) for n in range(1, count + 1) if self.sizes == "all" or count % n == 0]


def _places(target: Target) -> tuple[Cache | Memory, ...]:
    return (*target.caches, *target.memories)


def tile_costs(
    task: Task, block: Block, tiles: Ints, line: int, uncounted: Collection[str] = (), untiled: Collection[str] = ()
) -> TileCosts:
    """Figure 4's cost of `tiles`, for each point of the iterators that are not `untiled`. Accesses to the buffers
    `uncounted` have none."""
    iters = (*block.spatial, *block.reduction)
    names, extents = [i.name for i in iters], np.array([i.extent for i in iters], np.int64)
    trips = -(-extents // tiles)
    rounds = np.cumprod(trips, axis=1)
    moved, taken = np.zeros(len(tiles)), np.zeros(len(tiles))
    for load in (*block.reads, *block.writes):
        if load.buffer in uncounted:
            continue
        access = reach(task, load, names)
        spans = (distinct(dim, tiles, access.columns)[1].astype(np.float64) for dim in access.dims)
        taken = taken + access.itemsize * reduce(np.multiply, spans, np.ones(len(tiles)))
        times = np.ones(len(tiles), np.int64)  # that the access is made anew
        for k, name in enumerate(names):
            if name in variables(load):
                times = np.where(trips[:, k] > 1, rounds[:, k], times)
        moved = moved + times * footprint(access, tiles, line).lines
    return TileCosts(tiles, moved / prod(i.extent for i in iters if i.name not in untiled), taken)


def _batches(choices: Sequence[Sequence[int]]) -> Iterator[Ints]:
    tiles = product(*choices)
    while batch := list(islice(tiles, AT_ONCE)):
        yield np.array(batch, np.int64)


def _copied(
    scheduling: Scheduling, name: str, tiling: Tiling, several: Collection[str], untiled: Collection[str]
) -> tuple[Scheduling, Tiling]:
    """Both with copies of the operands of Block `name` but for `whole`, made in the last of the loops over `several`
    tiles that moves them."""
    copies = dict[str, str]()
    for buffer in sorted(scheduling.block(name).buffers_read - {*untiled}):
        moving = {n for read in scheduling.block(name).reads if read.buffer == buffer for n in variables(read)}
        scheduling, copy = _copy(scheduling, name, buffer)
        loops = [n for n in tiling.levels[0].order if n in moving and n in several]
        copies[copy] = loops[-1] if loops else tiling.levels[0].order[0]
    return scheduling, replace(tiling, copies=copies)


def _copy(scheduling: Scheduling, name: str, buffer: str) -> tuple[Scheduling, str]:
    """`scheduling` with an operand of Block `name` read from a copy, with its padding where it has some."""
    makers = [b.name for b in scheduling.task.blocks if isinstance(b, Block) and buffer in {w.buffer for w in b.writes}]
    if len(makers) == 1 and makers[0] in scheduling.padding:
        return scheduling, makers[0]
    try:
        return scheduling.after("pad", block=name, buffer=buffer)
    except DoesNotApply:
        return scheduling.after("cache_read", block=name, buffer=buffer)


def _reader(scheduling: Scheduling, name: str, copies: bool) -> tuple[Scheduling, str | None]:
    """`scheduling` with a Block that reads the results of Block `name` element by element from a local buffer, and
    which that is: its epilogue, or where `copies` are made, one that copies them; None without either."""
    block = scheduling.block(name)
    try:
        consumer, read = sole_consumer(scheduling.task, block)
        if not consumer.reduction and _element_by_element(consumer, read):
            return scheduling, consumer.name
    except (DoesNotApply, ValueError):  # there is none, or the Block has several results
        pass
    try:
        return scheduling.after("cache_write", block=name) if copies else (scheduling, None)
    except DoesNotApply:
        return scheduling, None


def _element_by_element(consumer: Block, read: Load) -> bool:
    """Whether each point of a map reads an element of its own."""
    names = [i.name for i in read.indices if isinstance(i, Var)]
    plain = len(set(names)) == len(names) and all(isinstance(i, Var) or i == Const(0) for i in read.indices)
    return plain and {i.name for i in consumer.iters if i.extent > 1} <= {*names}


def _line(block: Block) -> str:
    return str(block).splitlines()[0]


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1])] * bool(names[1:]) + [*names[-1:]])
