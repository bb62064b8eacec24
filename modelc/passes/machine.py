"""What passes know of the target: the graphs that are best for it, whatever its kernels will cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from modelc.target import Target

WEIGHTS = "int8"
BYTES = ("int8", "uint8")
LARGEST_BYTE = 255
LEAST_GAIN = 1.2  # of an instruction beside float32, for what is quantized to pay: requantising, and wider copies
WIDE = "int16"  # bytes less their zero point, for instructions that multiply no bytes

# Operations of a vector of float32 that it takes to find a byte for each lane in a table (codegen/math/lookup.py), by
# architecture and feature; elsewhere so many for each lane.
LOOKUP_OPERATIONS = (("x86_64", "avx512f", 10.0), ("x86_64", "avx2", 21.0), ("aarch64", "neon", 16.0))
LOADED_OPERATIONS = 4.0


@dataclass(frozen=True)
class Multiplied:
    """What an instruction of the target multiplies: activations of a dtype (bytes, or WIDE) with int8 weights, `depth`
    at a time, so many times as fast as float32. `within`: the least and the largest that weights may be;
    `activations_within`: that activations may be."""

    activations: str
    depth: int
    speed: float = float("inf")
    within: tuple[int, int] | None = None
    activations_within: tuple[int, int] | None = None

    @property
    def pays(self) -> bool:
        """Whether it is quicker than float32, so that what could be either is quantized."""
        return self.speed >= LEAST_GAIN

    @property
    def bounds(self) -> tuple[int, int]:
        return self.within or (-128, 127)


@dataclass(frozen=True)
class Machine:
    """`units`: the products of bytes that the target has instructions for; `kept_bytes`: of a network's constants, as
    many as stay in its caches from run to run; `dots`: whether vectors have dot products of four bytes, one of which is
    small and unsigned; `real`: the contractions of a network, by their nodes, that are not multiplied in bytes though
    they could be, and why; `slow_operations`: of a vector, that exp or tanh takes; `lookup_operations`: that finding a
    byte for each of its lanes in a table takes. Without any: any machine."""

    units: tuple[Multiplied, ...] = ()
    kept_bytes: float = float("inf")
    dots: bool = False
    real: Mapping[str, str] = field(default_factory=dict)
    slow_operations: float = 24.0
    lookup_operations: float = 10.0

    @classmethod
    def of(cls, target: Target, tensorize: bool = True) -> Machine:
        """That of `target`; its instructions, if kernels may be made of them."""
        units = multiplied(target) if tensorize else ()
        dots = not {*target.features}.isdisjoint(("avx2", "dotprod"))
        slow = target.cost.slow_cycles * target.fma_ports
        kept = target.kept_bytes(target.caches[-1])
        return cls(units, kept, dots, slow_operations=slow, lookup_operations=_lookup_operations(target))


def _lookup_operations(target: Target) -> float:
    rows = (row for row in LOOKUP_OPERATIONS if row[0] == target.architecture.name and row[1] in target.features)
    loaded = LOADED_OPERATIONS * target.lanes("float32")
    return next((operations for _, _, operations in rows), loaded)


ANY = Machine()


def multiplied(target: Target) -> tuple[Multiplied, ...]:
    """The dtypes of activations that the target multiplies with int8, summed in int32: bytes, or where it has no
    instruction for all bytes, WIDE, and bytes with some weights."""
    units: dict[tuple[str, tuple[int, int] | None, tuple[int, int] | None], Multiplied] = {}
    plain = target.lanes("float32") * target.fma_ports
    for intrinsic in target.available_intrinsics:
        operands = [o for o in intrinsic.operands if o != intrinsic.accumulator]
        if intrinsic.accumulator.dtype != "int32" or len(operands) != 2 or operands[1].dtype != WEIGHTS:
            continue
        a, w = operands
        holds = a.within is None or (a.dtype == WIDE and a.within[0] <= -LARGEST_BYTE and a.within[1] >= LARGEST_BYTE)
        if a.dtype not in (*BYTES, WIDE) or not holds:
            continue
        depth = prod(i.extent for i in intrinsic.semantics.iters if i.reduce)
        depth = max(d.step for o in intrinsic.operands for d in o.digits) if intrinsic.tiles is not None else depth
        kind = a.dtype, w.within, a.within
        speed, like = intrinsic.products * intrinsic.throughput / plain, units.get(kind)
        if like is not None:
            depth, speed = min(depth, like.depth), max(speed, like.speed)
        units[kind] = Multiplied(a.dtype, depth, speed, w.within, a.within)
    every = tuple(units.values())
    return tuple(u for u in every if u.activations in BYTES and u.within is None) or every
