"""What schedules cost on a machine, as far as it is fitted and not looked up: part of a Target."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from modelc.target.section import Section

LEVELS = 4  # latencies: of the first, second and third cache, and of memory


@dataclass(frozen=True)
class CostParameters:
    """The coefficients of the price (space/cost/). What neither a family of CPUs (family.py) nor a target's YAML, in
    its optional section `cost`, overrides has the value here, fitted on Sapphire-Rapids-class cores; those of short
    register tiles, of runs of lines, of Strassen's rule, and of lines that come from another core (one with a last
    cache of its own) on Zen 5; that of Winograd's transforms on Zen 4.

    The ending of a name is its unit: `_cycles` of one core, `_seconds`, `_share` a part between 0 and 1, `_bytes`;
    `_ratio` or no ending: a quotient, or a count. `scripts/cost.py` fits them to the measurements in `targets/cost/`,
    and says how well they price; `scripts/bench_int8.py` says how units of intrinsics are ranked. Nothing here is
    probed: what `modelc targets probe` measures stands in the Target itself (ports, latency, bandwidths, throughput).
    """

    # One reduction step of a register tile (cost/step.py)
    load_ports: float = 2.0  # vectors, scalars or lines that are loaded in a cycle
    load_cycles: float = 0.15  # of a vector that is loaded, beyond its port: it waits at times
    broadcast_cycles: float = 0.05  # of a scalar that is loaded into all lanes, or of a line that is certainly near
    step_cycles: float = 0.25  # loop control
    extreme_operations: float = 2.0  # of the larger or the smaller of two floats, neither known not to be NaN
    integer_add_operations: float = 0.5  # of a product of whole numbers that is added: more ports add than multiply
    spread_operations: float = 2.0  # until all lanes have a scalar that was cast, and so is not loaded into them
    spill_cycles: float = 1.0  # of a vector that does not fit in the registers
    conflict_cycles: float = 0.6  # of a line in a set of the first cache that more are read in turn from than it holds
    look_ahead: float = 512.0  # instructions in flight: the next register tile begins before a short one ends
    scheduler_entries: float = 48.0  # multiply-adds that wait for their operands at once: no more is begun meanwhile

    # Around a register tile
    tile_cycles: float = 12.0  # loop control and address arithmetic
    accumulator_cycles: float = 1.0  # zeroing and writing back one
    store_cycles: float = 1.0  # of a vector that is stored

    # Vectors that are not loaded or stored as they lie
    split_loads: float = 2.0  # vectors that lie across lines cost as many that do not
    element_cycles: float = 1.0  # of an element that a map gathers or scatters
    scatter_cycles: float = 2.0  # of an element of a register tile that is stored by itself: the tile waits for it
    guarded_cycles: float = 4.0  # of an element that is gathered where a condition holds
    transpose_cycles: float = 5.0  # of a vector that is copied into another order: loads, shuffles on one port, stores
    copy_cycles: float = 1.0  # of a vector that is copied
    late_share: float = 0.35  # of the registers, that a window unrolled whole may need more: LLVM loads elements late
    apart_cycles: float = 2.5  # of a vector that is copied out of a row of few lines, beyond that: it waits for them
    near_apart_cycles: float = 0.1  # the same of every row: those less than a page apart are prefetched by their stride
    slow_cycles: float = 12.0  # of a vector of a transcendental function

    # Units of intrinsics
    near_share: float = 0.6  # of the first-level cache, for an operand that stays there while another is streamed
    far_line_cycles: float = 1.3  # of a line that comes from the second-level cache
    far_wait_cycles: float = 0.2  # of such a line, beyond that: it waits at times
    tile_line_cycles: float = 0.7  # of a line of a tile register, from the first cache
    far_tile_line_cycles: float = 1.0  # of one from the second
    tile_beside_share: float = 0.5  # of the products of tile registers, that their loads do not go beside
    accumulator_store_cycles: float = 4.0  # of a row of a tile register, through memory to the epilogue
    least_tile_share: float = 0.6  # of the time of a whole tile register, that one with few rows takes

    # Winograd's and Strassen's rules
    winograd_sums_ratio: float = 1.4  # cycles of transforms: their loads and stores go to the second-level cache
    strassen_sums_ratio: float = 1.5  # cycles of sums of the data: they go to the second-level cache, and wait

    # Memory levels
    sharpness: float = 4.0  # of the maximum over resources: they overlap, but not entirely
    beside_share: float = 0.5  # of the smaller of computing and moving a boundary, that does not go beside the larger
    second_share: float = 0.5  # of the second-level cache, that what is meant to stay finds: the rest is passed through
    blur_share: float = 0.25  # of a cache, around its size, in which footprints stay more and more seldom
    demanded_share: float = 0.6  # of a bandwidth, that is had where nothing is prefetched and arithmetic waits
    unhinted_ratio: float = 1.0  # of what no instruction prefetches, that the CPU's own prefetchers do not bring either
    scattered_share: float = 0.2  # of memory's, that is had where each line lies far from the one before, in turn
    held_scattered_ratio: float = 1.0  # of the last cache's bandwidth, that is had where such lines lie there
    between_share: float = 0.5  # of the last cache, that what one phase leaves for the next stays in
    streamed_wait_ratio: float = 0.25  # waiting for constants that are prefetched over moving them
    miss_share: float = 0.5  # by which a level is slower where no prefetcher helps
    streams: float = 8.0  # rows of lines that the CPU's own prefetchers follow at once
    row_cycles: float = 0.3  # of a line of rows that lie apart, as it comes into the first cache: most is hidden
    alias_cycles: float = 10.0  # of a line at the place in its page where the register tile before stored one
    page_cycles: float = 0.4  # of a row in a page whose address is not known at once
    page_bytes: float = 4096.0
    pages: float = 64.0  # whose addresses are known at once
    latencies: tuple[float, ...] = (4.0, 14.0, 50.0, 200.0)  # cycles: L1, L2, L3, memory, for Gensor's formula (2)

    # Threads
    fork_join_seconds: float = 2e-6  # waking the other cores and waiting for the last of them
    uneven_ratio: float = 1.2  # of an even part, that the busiest core has before loops are joined: data changes cores
    phase_seconds: float = 5e-7  # of one more phase: threads meet, and caches are walked through again
    transfer_cycles: float = 6.5  # of a line that comes from the caches of another core

    # Errors of estimates, as a share of them: of what is nearer to each other, rules decide
    unit_doubt_share: float = 0.25  # intrinsics: which of their loads and stores overlap no formula says
    reduction_doubt_share: float = 0.3  # how chains of sums overlap no formula says
    layout_doubt_share: float = 0.15  # of a Task's seconds, where they decide a layout against the rule

    def beside(self, usual: CostParameters) -> dict[str, float | list[float]]:
        """What is not as it is in `usual`, by name."""
        pairs = ((f.name, getattr(self, f.name), getattr(usual, f.name)) for f in fields(self))
        changed = {name: own for name, own, other in pairs if own != other}
        return {name: list(x) if isinstance(x, tuple) else x for name, x in changed.items()}


def cost_parameters(part: Section, usual: CostParameters | None = None) -> CostParameters:
    """The section `cost` of a target or a family: any of the parameters, each in its range; the others are as `usual`.
    Raises TargetError."""
    part.only_keys([f.name for f in fields(CostParameters)], required=())
    parameters: dict[str, float | tuple[float, ...]] = {}
    for name in part.tree:
        parameters[name] = _latencies(part) if name == "latencies" else part.positive(name)
        if name.endswith("_share") and part.tree[name] >= 1:
            raise part.wrong(name, part.tree[name], "a number between 0 and 1")
    return replace(usual or CostParameters(), **parameters)  # type: ignore[arg-type]


def _latencies(part: Section) -> tuple[float, ...]:
    expected = f"{LEVELS} positive numbers of cycles, each at least the one before"
    values = part.sequence("latencies", expected)
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < 1e9 for x in values)
    if len(values) != LEVELS or not numbers or values != sorted(values):
        raise part.wrong("latencies", values, expected)
    return tuple(map(float, values))
