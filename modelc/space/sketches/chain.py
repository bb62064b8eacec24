"""The Sketch of a chain: reductions each of which reads what the one before it makes, tile by tile of the last one.

    parallel h0            tiles of rows of the last reduction
      local t0             what the first one makes for such a tile: rows that two tiles read are made for both
      first reduction      register tiles in loops of their own, with prologue and epilogue
      last reduction       the same: it reads t0 where it is near

What a tile needs of a link before follows from what the Blocks read (boxes.py). Each link is tiled as a Task of its own
would be, over as much of its iterators as one tile has; of its register tiles the one of the lowest price is taken.

tile    what one tile has of the last reduction: h:8, so many values of iterator h and one of each iterator that is
        stored outside it, or c:32, so many lanes of the vector iterator
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from modelc.errors import InvalidIR
from modelc.ir.block import Task
from modelc.ir.candidate import BlockSchedule, Candidate, Stage
from modelc.ir.expr import DTYPES, Var, op, variables
from modelc.ir.loop import ROOT, Inside, Loop
from modelc.space.analysis.boxes import Domain, Span, placed_domains, whole
from modelc.space.analysis.conditions import inside
from modelc.space.analysis.loops import deeper, span, trips
from modelc.space.cost.analytic import estimate
from modelc.space.cost.model import model_of
from modelc.space.cost.terms import seconds
from modelc.space.cost.work import Work
from modelc.space.sketch import Floats, Knob, Points, Sketch, Values, one_by_one
from modelc.space.sketches.chain_links import between, prepared_links
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.tiling.parallel import CHUNKS_PER_CORE, SERIAL_POINTS, busiest_share, parallel_first
from modelc.space.tiling.tiled import Tiled, TiledKnobs
from modelc.target import Target

CHAIN = "chain"  # the kind of these Sketches
MOST_AGAIN = 2.0  # times that an element is computed, on average, where tiles read the same rows
SIZES = 3  # of tiles along an iterator that are tried, at least
EQUAL = 0.01  # of a price, by which register tiles of a link differ at least
DRAWN = 64  # register tiles and loops of a link, at most, of which the best is taken


def chain_sketches(task: Task, target: Target, stages: Sequence[Stage], tensorize: bool) -> list[Sketch]:
    """The Sketch of a chain, in units of the target's intrinsics if it may; none if `task` is not one, or if nothing
    of what is between the links is near in tiles."""
    noted = [*stages]
    prepared = prepared_links(task, target, noted, tensorize)
    if prepared is None:
        return []
    chain = Chain(prepared[0], target, noted, prepared[1])
    return [chain] if chain.tiles else []


@dataclass(frozen=True)
class Tile:
    """One tile of the last reduction: `size` values of iterator `along`, and one of each that is stored outside it."""

    lead: tuple[str, ...]
    along: str
    size: int

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        return {n: (1,) for n in self.lead} | {self.along: (self.size,)}

    @property
    def loops(self) -> list[Loop]:
        return [Loop(n, 0) for n in self.sizes]

    def count(self, ranges: Mapping[str, int]) -> int:
        """How many such tiles iterators of `ranges` make."""
        return prod(-(-ranges[n] // size) for n, (size,) in self.sizes.items())

    def __str__(self) -> str:
        return f"{self.along}:{self.size}"


@dataclass(frozen=True)
class Piece:
    """What one tile has of a link: its schedule, and what it does with everything as cold as it may be, or with its
    constants near (all of one core)."""

    tiled: Tiled
    knobs: TiledKnobs
    first: Work
    later: Work


class Chain(Sketch):
    """The Sketch of a chain of `links`."""

    def __init__(self, task: Task, target: Target, stages: Sequence[Stage], links: tuple[Tiled, ...]):
        super().__init__(CHAIN, "vectors", task, target, stages)
        self.links, self.last = links, links[-1].anchor
        self.long = target.cores > 1 and sum(link.anchor.points() for link in links) >= SERIAL_POINTS
        self._domains: dict[str, dict[str, Domain] | None] = {}
        self._pieces: dict[str, tuple[Piece, ...]] = {}

    # --- tiles ----------------------------------------------------------------------------------------------------

    @cached_property
    def tiles(self) -> dict[str, Tile]:
        """The tiles worth trying, by their text: along each iterator the largest that there may be, for smaller ones
        have more halo, and further ones where cores would have no part."""
        tail, ranges = self.links[-1], self.last.ranges
        stored = [n for n in tail.strides if ranges[n] > 1 and n != tail.vector]
        stored.sort(key=lambda n: -abs(tail.strides[n] or 0))
        rows = stored[: max(1, len(stored) - 1)]
        along = [(tuple(rows[:k]), n, _sizes(ranges[n])) for k, n in enumerate(rows)]
        result = dict[str, Tile]()
        for lead, n, sizes in (*along, (tuple(stored[:-2]), tail.vector, self._lanes())):
            tiles = list[Tile]()
            for tile in (Tile(lead, n, size) for size in reversed(sizes)):
                if len(tiles) >= SIZES and tiles[-1].count(ranges) >= CHUNKS_PER_CORE * self.target.cores:
                    break
                if self.domains(tile) is not None and self._held(tile) <= self._room:
                    tiles.append(tile)
            result |= {str(tile): tile for tile in reversed(tiles)}
        return result

    def _lanes(self) -> list[int]:
        """Lanes of the vector iterator that one tile may have: whole vectors, and all tiles alike."""
        extent, lanes = self.last.ranges[self.links[-1].vector], self.links[-1].lanes
        return [n for n in range(lanes, extent, lanes) if extent % n == 0]

    def domains(self, tile: Tile) -> dict[str, Domain] | None:
        """What each link computes for one tile, by its anchor; None where that is not less than all, or has to be
        asked for lane by lane."""
        if str(tile) not in self._domains:
            self._domains[str(tile)] = self._domains_of(tile)
        return self._domains[str(tile)]

    def _domains_of(self, tile: Tile) -> dict[str, Domain] | None:
        ranges = {str(loop): trips(loop, self.last.ranges, tile.sizes) for loop in tile.loops}
        domain = whole(self.last)
        for loop, (size,) in zip(tile.loops, tile.sizes.values(), strict=True):
            domain[loop.iterator] = Span(op("mul", Var(str(loop)), size), size)
        try:
            placed = placed_domains(self.task, self.last, domain, [b.name for b in self.task.blocks], ranges, {})[0]
        except InvalidIR:
            return None
        for link in self.links[:-1]:
            needed = placed[link.anchor.name]
            computed = prod(ranges.values()) * prod(part.extent for part in needed.values())
            beyond = any(part.extent > link.anchor.ranges[n] for n, part in needed.items())
            if (
                beyond
                or computed > MOST_AGAIN * link.anchor.points()
                or link.vector in self.guarded(link, needed, tile)
            ):
                return None
        return {link.anchor.name: placed[link.anchor.name] for link in self.links}

    def guarded(self, link: Tiled, domain: Domain, tile: Tile) -> set[str]:
        """The iterators of a link that leave its iteration space at the borders, where nothing is computed."""
        full = {str(Loop(n, 0)): self.last.ranges[n] // size for n, (size,) in tile.sizes.items()}
        return {n for c in inside(link.anchor, domain, full) for n in variables(c)}

    def pieces(self, tile: Tile) -> tuple[Piece, ...]:
        """The links over one tile."""
        if str(tile) not in self._pieces:
            domains = self.domains(tile)
            assert domains is not None
            self._pieces[str(tile)] = tuple(self._piece(link, domains[link.anchor.name], tile) for link in self.links)
        return self._pieces[str(tile)]

    def _piece(self, link: Tiled, domain: Domain, tile: Tile) -> Piece:
        ranges = {n: part.extent for n, part in domain.items()}
        tiled = Tiled(link.task, link.target, link.stages, link.anchor, link.vector, link.unit, link.unpacked, ranges)
        sketch = Contraction(tiled)
        start = sketch.start_values()
        least = sketch.point({**start, "vectors": 1, **dict.fromkeys(sketch.row_knobs, 1)})  # which is always one
        points = np.stack([sketch.start(), least])
        drawn = sketch.population(sketch.random(DRAWN, np.random.default_rng(0)))
        points = np.concatenate([points, sketch.points(drawn)])  # what prices do not see is as rules have it
        lanes = ranges[link.vector]
        if lanes < link.anchor.ranges[link.vector]:  # packed in panels, of which a tile has whole ones
            points = points[lanes % (link.lanes * sketch.column(points, "vectors")) == 0]
        for n in self.guarded(link, domain, tile) & {*tiled.inside}:  # a border is between register tiles
            points = points[sketch.column(points, f"rows.{n}") == 1]
        model, population = replace(model_of(tiled), parallel=(None,)), sketch.population(points)
        population = replace(population, parallel=np.zeros_like(population.parallel))
        near = frozenset(between(self.links))
        later = estimate(model, population, 1, near | self.near_constants(tile)).work
        prices = seconds(later, self.target.cost)
        prices[1:] *= 1 + EQUAL  # of equals the one that rules take: rows of others may lie far apart
        best = np.array([np.argmin(prices)])
        first = estimate(model, population.take(best), 1, near).work
        knobs = replace(sketch.knobs_of(sketch.values(points[best[0]])), parallel=None)
        return Piece(tiled, knobs, first, later.take(best))

    # --- what is near ---------------------------------------------------------------------------------------------

    def near_constants(self, tile: Tile) -> frozenset[str]:
        """The constants, where it holds these too from one tile to the next."""
        constants = sum(self.task.buffer(name).bytes for name in self.task.constants)
        return self.task.constants if self._held(tile) + constants <= self._room else frozenset()

    @property
    def _room(self) -> float:
        return self.target.second.bytes * self.target.cost.second_share

    def _held(self, tile: Tile) -> int:
        """Bytes of a tile of the buffers between links."""
        domains, total = self.domains(tile), 0
        assert domains is not None
        for link, name in zip(self.links, between(self.links), strict=False):
            buffer, domain = self.task.buffer(name), domains[link.anchor.name]
            total += prod(domain[i.name].extent for i in link.anchor.spatial) * DTYPES[buffer.dtype].itemsize
        return total

    # --- knobs ----------------------------------------------------------------------------------------------------

    def all_knobs(self) -> list[Knob]:
        return [Knob("tile", (*self.tiles,), "what one tile has of the last reduction")]

    def start_values(self) -> Values:
        prices = {name: self._seconds(tile, self.target.cores) for name, tile in self.tiles.items()}
        return {"tile": min(prices, key=prices.__getitem__)}

    # --- the Candidate --------------------------------------------------------------------------------------------

    def candidate_of(self, values: Values) -> Candidate:
        tile, name = self.tiles[values["tile"]], self.last.name
        made = [tiled_candidate(piece.tiled, piece.knobs) for piece in self.pieces(tile)]
        loops, place = self.ordered(tile), Inside(name, self.ordered(tile)[-1])
        schedules = {n: _inside(schedule, place) for each in made[:-1] for n, schedule in each.blocks.items()}
        before = {b.name for b in self.task.blocks[: self.task.blocks.index(self.last)]}
        for n, schedule in made[-1].blocks.items():
            at = schedule.at
            if at is ROOT and n != name:
                schedules[n] = _inside(schedule, place) if n in before else replace(_serial(schedule), at=place)
            else:
                at = at if at is ROOT or at.block != name else Inside(name, _deeper(at.loop, tile))
                schedules[n] = replace(_serial(schedule), at=at)
        schedule = schedules[name]
        schedules[name] = replace(
            schedule,
            tiles={**schedule.tiles} | {n: (*sizes, *schedule.tiles.get(n, ())) for n, sizes in tile.sizes.items()},
            order=(*loops, *(_deeper(loop, tile) for loop in schedule.order)),
            tags={_deeper(loop, tile): tag for loop, tag in schedule.tags.items()} | self.parallel(loops),
            prefetch={n: _deeper(x, tile) if isinstance(x, Loop) else x for n, x in schedule.prefetch.items()},
        )
        layouts = {n: layout for each in made for n, layout in each.layouts.items()}
        return Candidate({b.name: schedules[b.name] for b in self.task.blocks}, self.stages, layouts)

    def ordered(self, tile: Tile) -> list[Loop]:
        """The loops over tiles, the one whose iterations go to threads outermost."""
        counts = {loop: trips(loop, self.last.ranges, tile.sizes) for loop in tile.loops}
        return parallel_first(tile.loops, counts, self.target) if self.long else tile.loops

    def parallel(self, loops: Sequence[Loop]) -> dict[Loop, str]:
        return {loops[0]: "parallel"} if self.long else {}

    # --- the price ------------------------------------------------------------------------------------------------

    def works(self, tile: Tile, cores: int) -> list[Work]:
        """What the busiest core does of each link."""
        times = prod(self.last.ranges[n] / size for n, (size,) in tile.sizes.items())
        forks = float(self.long and cores > 1)
        if forks:
            spans = [span(loop, self.last.ranges, tile.sizes) for loop in self.ordered(tile)]
            times *= float(busiest_share(spans, cores, self.target))
        works = [piece.first.plus(piece.later, max(0.0, times - 1)) for piece in self.pieces(tile)]
        return [*works[:-1], replace(works[-1], forks=np.array([forks]))]

    def _seconds(self, tile: Tile, cores: int) -> float:
        return sum(float(seconds(work, self.target.cost)[0]) for work in self.works(tile, cores))

    def work(self, points: Points, cores: int) -> Work:
        def whole_work(values: Values) -> Work:
            first, *others = self.works(self.tiles[values["tile"]], cores)
            for work in others:
                first = first.plus(work, 1.0)
            return first

        return one_by_one(self, points, whole_work)

    def estimate(self, points: Points, cores: int) -> Floats:
        """Links take turns: one's arithmetic does not go beside what another moves."""
        return np.array([self._seconds(self.tiles[self.values(point)["tile"]], cores) for point in points])


def _sizes(extent: int) -> list[int]:
    """The extent in halves, quarters and so on, down to single values."""
    return sorted({-(-extent // (1 << k)) for k in range(1, extent.bit_length() + 1)})


def _deeper(loop: Loop, tile: Tile) -> Loop:
    """What a loop of the last reduction is inside the loops over tiles."""
    return deeper(loop, loop.iterator) if loop.iterator in tile.sizes else loop


def _serial(schedule: BlockSchedule) -> BlockSchedule:
    """A schedule without a loop whose iterations go to threads."""
    return replace(schedule, tags={loop: tag for loop, tag in schedule.tags.items() if tag != "parallel"})


def _inside(schedule: BlockSchedule, place: Inside) -> BlockSchedule:
    """A schedule of what is made for one tile: near, and at `place` unless it is inside another Block."""
    scope = "local" if schedule.scope == "arena" else schedule.scope
    return replace(_serial(schedule), at=place if schedule.at is ROOT else schedule.at, scope=scope)
