"""What one reduction step of a register tile costs: one formula for whatever a core multiplies, numbers or arrays of
them. What a step loads is for the callers to say: they know the register tile."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from modelc.space.analysis.footprint import Floats
from modelc.target import CostParameters

Number = TypeVar("Number", float, Floats)  # of one register tile, or of a population of them


def step_cycles(
    cost: CostParameters,
    multiply_adds: Number,
    loads: Number | float,
    broadcasts: Number | float,
    latency: Number | float,
    far: Number | float = 0.0,
    stores: Number | float = 0.0,
    spills: Number | float = 0.0,
    conflicts: Number | float = 0.0,
    loops: float = 1.0,
) -> Number:
    """Cycles of one reduction step of a register tile. The ports are busy with `multiply_adds` (in cycles), `loads` of
    vectors, `broadcasts` of scalars or of vectors in L1, `far` lines from the second-level cache and `stores` of
    vectors. Loads, `spills` of accumulators, lines that `conflicts` evicted from L1 and the control of `loops` loops
    add to that. The step takes at least `latency`, the cycles of dependent accumulation."""
    loading = (loads + broadcasts) / cost.load_ports + far * cost.far_line_cycles
    busy = larger(larger(multiply_adds, loading), stores * cost.store_cycles)
    waiting = cost.load_cycles * loads + cost.broadcast_cycles * broadcasts + cost.far_wait_cycles * far
    disturbed = cost.spill_cycles * spills + cost.conflict_cycles * conflicts
    return larger(busy + waiting + disturbed + cost.step_cycles * loops, latency)


def tile_step_cycles(
    cost: CostParameters, products: Number, near: Number | float, far: Number | float, latency: float
) -> Number:
    """The same of tile registers, whose loads go beside only a part of the products: `near` and `far` are lines of
    tiles that come from the first and from the second cache."""
    loaded = cost.tile_beside_share * products + cost.tile_line_cycles * near + cost.far_tile_line_cycles * far
    return larger(larger(products, loaded) + cost.step_cycles, latency)


def exposed(cost: CostParameters, instructions: Number) -> Number:
    """The fraction of a register tile's prologue and epilogue that does not overlap with another tile's
    `instructions`."""
    return larger(1 - cost.look_ahead / instructions, 0.0)


def chain_cycles(cost: CostParameters, latency: float, multiply_adds: Number) -> Number:
    """Cycles that each step of a register tile of so many `multiply_adds` waits for the sums of the one before: the
    next tile begins, and goes beside it, as soon as the scheduler has room for it."""
    return latency * larger(1 - cost.scheduler_entries / larger(multiply_adds, 1.0), 0.0)


def epilogue_cycles(cost: CostParameters, accumulators: Number, operation_cycles: float) -> Number:
    """Cycles that zero the accumulators of a register tile, pass each through an epilogue of `operation_cycles` and
    store it. They keep the ports busy, so nothing overlaps with them."""
    return accumulators * (cost.accumulator_cycles + operation_cycles)


def larger(a: Number, b: Number | float) -> Number:
    """The larger of two, element by element; numbers stay numbers, which is quicker."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)
