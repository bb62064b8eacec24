"""What one reduction step of a register tile costs: one formula for whatever a core multiplies, numbers or arrays of
them. What a step loads is for the callers to say: they know the register tile."""

from __future__ import annotations

import numpy as np

from modelc.space.analysis.footprint import Floats
from modelc.target import CostParameters

Number = float | Floats


def step_cycles(
    cost: CostParameters,
    multiply_adds: Number,
    loads: Number,
    broadcasts: Number,
    latency: Number,
    far: Number = 0.0,
    stores: Number = 0.0,
    spills: Number = 0.0,
    conflicts: Number = 0.0,
) -> Floats:
    """Cycles: the ports' work (that of `multiply_adds`, in cycles; of `loads`, vectors, and `broadcasts`, scalars or
    vectors that are certainly near; of lines from the second-level cache, `far`; of vectors that are stored), what
    loads wait at times, `spills` of accumulators, lines that conflict in L1; or `latency`, the cycles that dependent
    accumulation takes, where that is more."""
    loading = (loads + broadcasts) / cost.load_ports + far * cost.far_line_cycles
    busy = np.maximum(np.maximum(multiply_adds, loading), stores * cost.store_cycles)
    waiting = cost.load_cycles * loads + cost.broadcast_cycles * broadcasts + cost.far_wait_cycles * far
    disturbed = cost.spill_cycles * spills + cost.conflict_cycles * conflicts
    return np.asarray(np.maximum(busy + waiting + disturbed + cost.step_cycles, latency), np.float64)


def tile_step_cycles(cost: CostParameters, products: Number, near: Number, far: Number, latency: Number) -> Floats:
    """The same of tile registers, whose loads go beside only a part of the products: `near` and `far` are lines of
    tiles that come from the first and from the second cache."""
    loaded = cost.tile_beside_share * products + cost.tile_line_cycles * near + cost.far_tile_line_cycles * far
    return np.asarray(np.maximum(np.maximum(products, loaded) + cost.step_cycles, latency), np.float64)


def exposed(cost: CostParameters, instructions: Number) -> Floats:
    """The part of what surrounds a register tile of so many instructions that no other tile runs beside."""
    return np.asarray(np.maximum(0.0, 1 - cost.look_ahead / instructions), np.float64)


def around_cycles(cost: CostParameters, accumulators: Number, operations: Number, scattered: Number = 0.0) -> Number:
    """Cycles around a register tile: loop control, and for each accumulator that is zeroed, goes through so many
    operations and is stored; `scattered`: more for each that is stored in elements."""
    return cost.tile_cycles + accumulators * (cost.accumulator_cycles * (1 + operations) + scattered)
