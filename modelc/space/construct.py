"""Construction without measuring, after Gensor: annealed walks through a graph of tilings (sections IV-A to IV-C).

A state is a tile size for each dimension and memory level, and the loop that goes to threads. The levels are the
second-level cache (the chunk of rows and the panel of vectors that are worked on while they lie there), then the
registers (rows x vectors of accumulators). An action makes one tile larger or smaller, moves on to the next level
(cache), or adds virtual threads. Its probability is its benefit by formulas (1) to (3), divided by the sum of all.

What the paper leaves open or contradicts itself in is read so:

- (1) As printed it rewards a growing footprint. Its text says less traffic, divided by more footprint:
  (Q(T) / Q(T')) / (F(T') / F(T)). Inverse tiling has the same formula.
- (2) As printed: latency and bandwidth of the level that holds the data now over those of the next; its factor
  3 / (1 + exp(-ln(5) / 10 * (t - 10))) has to rise as the walk stays on, so t counts the steps on the level.
- (3) A bank's width W becomes what is in flight at once, x what there has to be: on the registers' level W is the
  number of accumulators and x the FMAs that cover latency x ports; on the cores' level W is the number of iterations of
  the parallel loop and x a few for each core. V is by how much the action multiplies W.
- Algorithm 1 keeps a state with a probability that falls as the walk cools, which keeps the unfinished ones; here it
  rises: 1 / (1 + exp(-0.5 * (-log(T) - 10))). Where a walk ends is kept in any case.
- Algorithm 2 compares one random number with each probability in turn; the text says roulette, so it is one.
- T halves at every step: a walk is short, so there are many of them, taken at the same time as rows of arrays.

Of what was kept the analytic cost picks the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from modelc.ir.candidate import Candidate
from modelc.space.analysis.distinct import distinct_rows
from modelc.space.analysis.footprint import Floats, Ints, footprint
from modelc.space.cost.model import Model, Population
from modelc.space.cost.register_tile import loads, registers
from modelc.space.sketch import Points, Sketch
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.tiled_rules import chunks
from modelc.space.tiling.parallel import CHUNKS_PER_CORE
from modelc.space.tiling.tiled import MAX_VECTORS
from modelc.target import Target

WALKS = 96
STEPS = 48  # halvings of the temperature from 1
WALKERS, ANNEALED_STEPS, COOLING = 12, 24, 0.9  # of walks over any Sketch
CACHE, REGISTERS, DONE = range(3)  # levels


@dataclass(frozen=True)
class Constructed:
    """A point of a Sketch that was found, and the seconds that it is estimated to take."""

    sketch: Sketch
    point: Points
    seconds: float

    @property
    def candidate(self) -> Candidate:
        """The schedule that the point describes."""
        return self.sketch.candidate(self.point)


def constructed(sketch: Sketch, cores: int, count: int, seed: int = 0) -> list[Constructed]:
    """At most `count` points of `sketch`, the best first, by its estimates for so many cores. A space of few points is
    estimated whole; of a larger one what Gensor's walks come by, where its tilings are those of a contraction whose
    cost is known, else what annealed walks over the knobs come by. Of a Sketch that is no such contraction start()
    comes first unless something is estimated better by more than the Sketch's doubt. Equal arguments give equal
    results; the Sketch keeps where the walks came by."""
    modelled = isinstance(sketch, Contraction) and sketch.modelled
    points = _visited(sketch, cores, seed)
    seconds = sketch.estimate(points, cores)
    order = np.argsort(seconds, kind="stable")[:count]
    if not modelled and seconds[order[0]] > seconds[0] * (1 - sketch.doubt):
        order = np.concatenate([[0], order[order != 0]])[:count]
    return [Constructed(sketch, points[p], float(seconds[p])) for p in order]


def _visited(sketch: Sketch, cores: int, seed: int) -> Points:
    """The points that are estimated [P x knobs]; start() is the first where the Sketch is no modelled contraction."""
    if isinstance(sketch, Contraction) and sketch.modelled:  # whatever the cores
        if sketch.size <= sketch.listed:
            seed = 0
        if (seed,) not in sketch.visited:
            whole = sketch.size <= sketch.listed
            points = sketch.every() if whole else distinct_rows(sketch.points(walks(sketch.model, seed)))[0]
            sketch.visited[seed,] = points
        return sketch.visited[seed,]
    if (seed, cores) not in sketch.visited:
        start = sketch.start()[None, :]
        points = sketch.every() if sketch.size <= sketch.listed else annealed(sketch, cores, seed)
        sketch.visited[seed, cores] = np.concatenate([start, points[~(points == start).all(axis=1)]])
    return sketch.visited[seed, cores]


def annealed(sketch: Sketch, cores: int, seed: int) -> Points:
    """Where annealed walks over the knobs of any Sketch come by [P x knobs]: an action moves one knob by one value, its
    benefit is the quotient of the estimates, and the colder it gets, the less else than the best is taken."""
    rng = np.random.default_rng(seed)
    at = np.concatenate([sketch.start()[None, :], sketch.random(WALKERS - 1, rng)])
    seconds = sketch.estimate(at, cores)
    seen, temperature = [at], 1.0
    for _ in range(ANNEALED_STEPS):
        moved = at.copy()
        knob, up = rng.integers(0, len(sketch.sizes), len(at)), rng.integers(0, 2, len(at)) * 2 - 1
        row = np.arange(len(at))
        moved[row, knob] = np.clip(moved[row, knob] + up, 0, np.array(sketch.sizes)[knob] - 1)
        moved = np.where(sketch.legal(moved)[:, None], moved, at)
        then = sketch.estimate(moved, cores)
        taken = rng.random(len(at)) < (seconds / then) ** (1 / temperature)
        at, seconds = np.where(taken[:, None], moved, at), np.where(taken, then, seconds)
        seen.append(moved)
        temperature *= COOLING
    return distinct_rows(np.concatenate(seen))[0]


@dataclass(frozen=True)
class Graph:
    """The dimensions of a state (columns), the sizes that each may take, and where an action leads."""

    model: Model
    sizes: tuple[Ints, ...]  # of a chunk, of a panel (in vectors), of each row iterator's rows, of vectors
    levels: tuple[int, ...]  # the level that each column belongs to

    @property
    def capacity(self) -> tuple[float, float]:
        """Bytes of the second-level cache, vector registers."""
        target = self.model.target
        return float(target.second.bytes), float(target.vector.registers)

    def larger(self, column: int, at: Ints) -> Ints:
        """The index of the largest size up to twice that at index `at`, at least the next; -1 after the last."""
        sizes = self.sizes[column]
        up = np.maximum(np.searchsorted(sizes, 2 * sizes[at], side="right") - 1, at + 1)
        return np.where(at + 1 < len(sizes), np.minimum(up, len(sizes) - 1), -1)

    def tiles(self, at: Ints) -> Ints:
        """The sizes at indices [walks x columns]."""
        return np.column_stack([sizes[at[:, k]] for k, sizes in enumerate(self.sizes)])

    @cached_property
    def in_cache(self) -> tuple[Floats, Floats]:
        """measures() on the cache's level of every chunk and panel [chunks x panels each]: walks come back to them."""
        shape = len(self.sizes[0]), len(self.sizes[1])
        at = np.zeros((shape[0] * shape[1], len(self.sizes)), np.int64)
        at[:, :2] = np.indices(shape).reshape(2, -1).T
        traffic, held = measures(self, self.tiles(at), CACHE)
        return traffic.reshape(shape), held.reshape(shape)

    def measured(self, at: Ints, level: int) -> tuple[Floats, Floats]:
        """measures() of the tiles at indices [walks x columns]."""
        if level == CACHE:
            traffic, held = self.in_cache
            return traffic[at[:, 0], at[:, 1]], held[at[:, 0], at[:, 1]]
        return measures(self, self.tiles(at), level)


def graph_of(model: Model) -> Graph:
    tiled = model.tiled
    most = -(-tiled.ranges[tiled.vector] // tiled.lanes)
    panels = sorted({1 << k for k in range(most.bit_length())} | {most})
    rows = [_rows(tiled.ranges[n], tiled.target.vector.registers) for n in tiled.inside]
    vectors = list(range(1, min(MAX_VECTORS, most) + 1))
    sizes = tuple(np.array(s, np.int64) for s in (chunks(tiled), panels, *rows, vectors))
    return Graph(model, sizes, (CACHE, CACHE, *(REGISTERS for _ in rows), REGISTERS))


def _rows(extent: int, limit: int) -> list[int]:
    """Rows of a register tile: the least for each number of tiles, so that no tile is emptier than it has to be."""
    return sorted({r for k in range(1, extent + 1) if (r := -(-extent // k)) < limit} | {1})


@dataclass(frozen=True)
class States:
    """One state for each walk."""

    at: Ints  # [walks x columns] indices of sizes
    parallel: Ints  # [walks]
    level: Ints  # [walks]
    steps: Ints  # [walks] on this level


def walks(model: Model, seed: int) -> Population:
    """What WALKS walks of at most STEPS steps keep (algorithm 1), and the same on one thread where that is a value."""
    graph, rng = graph_of(model), np.random.default_rng(seed)
    kept = []
    for step, states in enumerate(trajectory(graph, rng), 1):
        temperature = 0.5**step
        keep = rng.random(WALKS) < 1 / (1 + np.exp(-0.5 * (-log(temperature) - 10)))
        kept.append(programs(graph, states).take(keep | (states.level == DONE) | (step == STEPS)))
    threads = Population.join(kept)
    if model.loop_count == len(model.parallel):
        return threads
    serial = replace(threads, parallel=np.full_like(threads.parallel, model.loop_count))
    return Population.join([threads, serial])


def trajectory(graph: Graph, rng: np.random.Generator) -> Iterator[States]:
    """The states of WALKS walks after each step, until all of them are done: at first unscheduled, with the smallest
    tiles and the parallel loop left to chance."""
    zero = np.zeros(WALKS, np.int64)
    start = rng.integers(0, graph.model.loop_count, WALKS)
    states = States(np.zeros((WALKS, len(graph.sizes)), np.int64), start, zero, zero)
    for _ in range(STEPS):
        states = _step(graph, states, rng)
        yield states
        if (states.level == DONE).all():
            break


def programs(graph: Graph, states: States) -> Population:
    """The knobs that states stand for: several panels are streamed past one chunk, or several chunks past one panel."""
    tiles = graph.tiles(states.at)
    rows, vectors, panel = tiles[:, 2:-1], tiles[:, -1], tiles[:, 1]
    chunk = graph.model.tiled.whole(tiles[:, 0], rows)
    return Population(rows, vectors, chunk, panel > vectors, states.parallel)


def _step(graph: Graph, states: States, rng: np.random.Generator) -> States:
    """Every walk takes one action, by roulette (algorithm 2)."""
    outcomes, benefits = _actions(graph, states)
    total = np.cumsum(benefits, axis=1)
    ball = rng.random(len(total)) * total[:, -1]
    chosen = np.minimum(np.sum(total <= ball[:, None], axis=1), len(outcomes) - 1)
    chosen = np.where(total[:, -1] > 0, chosen, -1)

    def pick(name: str) -> Ints:
        old: Ints = getattr(states, name)
        result: Ints = old.copy()
        for a, outcome in enumerate(outcomes):
            result[chosen == a] = getattr(outcome, name)[chosen == a]
        return result

    return States(pick("at"), pick("parallel"), pick("level"), pick("steps"))


def _actions(graph: Graph, states: States) -> tuple[list[States], Floats]:
    """Where each action leads, and its benefit for every walk [walks x actions]; 0 where it is not to be had."""
    outcomes: list[States] = []
    benefits: list[Floats] = []
    tiles, later = graph.tiles(states.at), states.steps + 1
    levels = [level for level in (CACHE, REGISTERS) if (states.level == level).any()]
    before = {level: graph.measured(states.at, level) for level in levels}
    for column, level in enumerate(graph.levels):
        if level not in levels:
            continue
        traffic, held = before[level]
        for moved in (graph.larger(column, states.at[:, column]), states.at[:, column] - 1):
            at = states.at.copy()
            at[:, column] = np.maximum(moved, 0)
            outcome = States(at, states.parallel, states.level, later)
            new_traffic, new_held = graph.measured(at, level)
            fits = (states.level == level) & (moved >= 0) & (new_held <= graph.capacity[level])
            outcomes.append(outcome)
            benefits.append(np.where(fits, tiling_benefit(traffic, new_traffic, held, new_held), 0.0))
        if level == REGISTERS:  # virtual threads: as many more groups of accumulators as the larger tile has
            grown, fits = outcomes[-2], benefits[-2] > 0
            target = graph.model.target
            needed = float(target.fma_latency * target.fma_ports)
            now, then = (np.prod(t[:, 2:], axis=1) for t in (tiles, graph.tiles(grown.at)))
            outcomes.append(grown)
            benefits.append(np.where(fits & (then > now), thread_benefit(needed, now, then / now), 0.0))
    for loop in range(graph.model.loop_count) if CACHE in levels else ():
        parallel = np.full_like(states.parallel, loop)
        now, then = (trips(graph, tiles, p).astype(np.float64) for p in (states.parallel, parallel))
        useful = float(graph.model.target.cores * CHUNKS_PER_CORE)
        other = (states.level == CACHE) & (parallel != states.parallel)
        outcomes.append(States(states.at, parallel, states.level, later))
        benefits.append(np.where(other, thread_benefit(useful, now, then / now), 0.0))
    outcomes.append(States(states.at, states.parallel, np.minimum(states.level + 1, DONE), np.zeros_like(later)))
    moving_on = np.zeros(len(later))
    for level in levels:
        gain = _cache_benefit(graph.model.target, level, before[level][1])
        moving_on = np.where(states.level == level, gain, moving_on)
    benefits.append(moving_on * 3 / (1 + np.exp(-log(5) / 10 * (states.steps - 10))))
    return outcomes, np.column_stack(benefits)


# --- formulas -----------------------------------------------------------------------------------------------------


def tiling_benefit(traffic: Floats, new_traffic: Floats, held: Floats, new_held: Floats) -> Floats:
    """Formula (1): by how much traffic falls, divided by how much the footprint grows."""
    return np.asarray((traffic / new_traffic) / (new_held / held), np.float64)


def caching_benefit(
    low_latency: float, low_bandwidth: float, high_latency: float, high_bandwidth: float, data: Floats
) -> Floats:
    """Formula (2): the time to bring `data` bytes from the lower level over that from the higher one."""
    return np.asarray((low_latency + data / low_bandwidth) / (high_latency + data / high_bandwidth), np.float64)


def thread_benefit(needed: float, width: Floats | Ints, more: Floats) -> Floats:
    """Formula (3): ceil(x / W) / ceil(x / (V * W))."""
    return np.asarray(np.ceil(needed / width) / np.ceil(needed / (more * width) - 1e-9), np.float64)


def measures(graph: Graph, tiles: Ints, level: int) -> tuple[Floats, Floats]:
    """(traffic Q, footprint F) of tiles on a level: bytes into the second-level cache and in it, or loads into
    registers and registers."""
    model, tiled = graph.model, graph.model.tiled
    if level == REGISTERS:
        rows, vectors = tiles[:, 2:-1], tiles[:, -1]
        steps = np.ceil(tiled.ranges[tiled.vector] / (vectors * tiled.lanes))
        for k, n in enumerate(tiled.inside):
            steps = steps * np.ceil(tiled.ranges[n] / rows[:, k])
        return steps * sum(loads(tiled, rows, vectors)), registers(tiled, rows, vectors).astype(np.float64)
    ranges = np.array([tiled.ranges[n] for n in model.iters], np.int64)
    around = [n in (*tiled.batch, *tiled.rows) and n not in tiled.inside[1:] for n in model.iters]
    box = np.repeat(np.where(around, 1, ranges)[None, :], len(tiles), axis=0)
    for n, size in [*zip(tiled.inside[:1], [tiles[:, 0]], strict=False), (tiled.vector, tiles[:, 1] * tiled.lanes)]:
        box[:, model.iters.index(n)] = np.minimum(size, tiled.ranges[n])
    held = np.sum([footprint(o.reach, box, 1).bytes for o in model.operands], axis=0)
    return held * np.prod(np.ceil(ranges / box), axis=1), held


def trips(graph: Graph, tiles: Ints, parallel: Ints) -> Ints:
    """Iterations of the parallel loop."""
    model, tiled = graph.model, graph.model.tiled
    counts = np.ones(len(parallel), np.int64)
    for k, loop in enumerate(model.parallel):
        if loop is not None:
            name = loop.iterator
            size = np.ones(len(parallel), np.int64)
            if name == tiled.vector:
                size = tiles[:, 1] * tiled.lanes
            elif name in tiled.inside:
                size = tiles[:, 0] if name == tiled.inside[0] else tiles[:, 3]
            counts = np.where(parallel == k, -(-tiled.ranges[name] // size), counts)
    return counts


def _cache_benefit(target: Target, level: int, held: Floats) -> Floats:
    """Formula (2) for moving on: from L3 (or memory) to L2, then from L1 to registers. In cycles and bytes."""
    caches = target.caches
    bandwidths = [1e9 * b / target.hertz for b in (*(c.bandwidth_gbs for c in caches), target.memory_bandwidth_gbs)]
    if level == CACHE:
        near = min(1, len(caches) - 1)
        far = near + 1
        return caching_benefit(
            target.cost.latencies[far], bandwidths[far], target.cost.latencies[near], bandwidths[near], held
        )
    vector = target.vector.bits / 8
    operands = 2 * vector * target.fma_ports  # what multiply-adds take from registers in a cycle
    return caching_benefit(target.cost.latencies[0], bandwidths[0], target.fma_latency, operands, held * vector)
