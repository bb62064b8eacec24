"""What passes know of the target: the graphs that are best for it, whatever its kernels will cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from modelc.target import Target

WEIGHTS = "int8"
BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class Multiplied:
    """What an instruction of the target multiplies: activations of a dtype with int8 weights, `depth` at a time."""

    activations: str
    depth: int


@dataclass(frozen=True)
class Machine:
    """`units`: the products of bytes that the target has instructions for; `kept_bytes`: of a network's constants, as
    many as stay in its caches from run to run; `dots`: whether vectors have dot products of four bytes, one of which is
    small and unsigned. Without any: any machine."""

    units: tuple[Multiplied, ...] = ()
    kept_bytes: float = float("inf")
    dots: bool = False

    @classmethod
    def of(cls, target: Target, tensorize: bool = True) -> Machine:
        """That of `target`; its instructions, if kernels may be made of them."""
        units = multiplied(target) if tensorize else ()
        dots = not {*target.features}.isdisjoint(("avx2", "dotprod"))
        return cls(units, target.kept_bytes(target.caches[-1]), dots)


ANY = Machine()


def multiplied(target: Target) -> tuple[Multiplied, ...]:
    """The dtypes of activations that the target multiplies with int8, summed in int32."""
    depths: dict[str, int] = {}
    for intrinsic in target.available_intrinsics:
        kinds = [o.dtype for o in intrinsic.operands if o != intrinsic.accumulator]
        if intrinsic.accumulator.dtype != "int32" or len(kinds) != 2 or kinds[1] != WEIGHTS or kinds[0] not in BYTES:
            continue
        depth = prod(i.extent for i in intrinsic.semantics.iters if i.reduce)
        depth = max(d.step for o in intrinsic.operands for d in o.digits) if intrinsic.tiles is not None else depth
        depths[kinds[0]] = min(depth, depths.get(kinds[0], depth))
    return tuple(Multiplied(dtype, depth) for dtype, depth in depths.items())
