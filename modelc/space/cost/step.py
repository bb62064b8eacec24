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
    """Cycles: the ports' work (that of `multiply_adds`, in cycles; of `loads`, vectors, and `broadcasts`, scalars or
    vectors that are certainly near; of lines from the second-level cache, `far`; of vectors that are stored), what
    loads wait at times, `spills` of accumulators, lines that conflict in L1, the control of so many `loops`; or
    `latency`, the cycles that dependent accumulation takes, where that is more."""
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
    """The part of what surrounds a register tile of so many instructions that no other tile runs beside."""
    return larger(1 - cost.look_ahead / instructions, 0.0)


def chain_cycles(cost: CostParameters, latency: float, multiply_adds: Number) -> Number:
    """Cycles that each step of a register tile of so many `multiply_adds` waits for the sums of the one before: the
    next tile begins, and goes beside it, as soon as the scheduler has room for it."""
    return latency * larger(1 - cost.scheduler_entries / larger(multiply_adds, 1.0), 0.0)


def epilogue_cycles(cost: CostParameters, accumulators: Number, operation_cycles: float) -> Number:
    """Cycles in which accumulators of a register tile are zeroed, go through what takes so many cycles each, and are
    stored: ports are busy with it, whatever else goes on."""
    return accumulators * (cost.accumulator_cycles + operation_cycles)


def larger(a: Number, b: Number | float) -> Number:
    """The larger of two, element by element; numbers stay numbers, which is quicker."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)
