"""Where Regions are while a Nest is lowered: in memory, in registers, in what an intrinsic accumulates in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modelc.codegen.intrinsics.applications import Slots, TileFile
from modelc.codegen.lean_tvm import tx
from modelc.codegen.lower.leaves import slot_pieces
from modelc.codegen.vectors import int32, joined, lanes_at, ramp, sequence
from modelc.ir.affine import Linear
from modelc.ir.expr import NARROW, Const, Expr, Var
from modelc.ir.nest import Region
from modelc.ir.sizes import most


def stored_dtype(dtype: str) -> str:
    """How a dtype lies in memory: bools as bytes, bfloat16 and narrow numbers as their bits."""
    return {"bool": "uint8", "bfloat16": "uint16", **dict.fromkeys(NARROW, "uint8")}.get(dtype, dtype)


@dataclass
class Memory:
    """Addressable storage: a TIR buffer and where the Region starts in it (elements)."""

    region: Region
    buffer: Any
    offset: int = 0


@dataclass
class Registers:
    """Storage as separate vectors of `width` elements."""

    region: Region
    slots: list[Any]
    width: int


Storage = Memory | Registers | Slots | TileFile


@dataclass(frozen=True)
class Scope:
    """What is known at a place: loop variables (numbers once unrolled), storage, the vector loop around, scratch."""

    values: Mapping[str, Expr] = field(default_factory=dict)
    ranges: Mapping[str, int] = field(default_factory=dict)
    storage: Mapping[str, Storage] = field(default_factory=dict)
    vector: tuple[str, int] | None = None
    scratch: int = 0


def bind(scope: Scope, var: str, value: Expr, extent: int) -> Scope:
    ranges = {**scope.ranges, var: most(extent)} if isinstance(value, Var) else scope.ranges
    return Scope({**scope.values, var: value}, ranges, scope.storage, scope.vector, scope.scratch)


def number(flat: Linear | Expr) -> int:
    """An element offset that is a constant: registers are indexed by constants."""
    if isinstance(flat, Linear) and not flat.terms:
        return flat.constant
    assert isinstance(flat, Const), f"registers are indexed by {flat}"
    return int(flat.value)


def load_slots(place: Registers | Slots, start: int, step: int, lanes: int) -> Any:
    if isinstance(place, Slots):
        return tx.BufferLoad(place.at(start), [ramp(int32(0), 1, lanes)])
    if lanes > 1 and step != 1:
        return joined([load_slots(place, start + step * k, 0, 1) for k in range(lanes)], lanes)
    pieces = slot_pieces(start, lanes, place.width)
    parts = [tx.BufferLoad(place.slots[slot], [ramp(int32(at), 1, count)]) for slot, at, count in pieces]
    return joined(parts, lanes)


def store_slots(place: Registers | Slots, start: int, step: int, value: Any, lanes: int) -> Any:
    if isinstance(place, Slots):
        return tx.BufferStore(place.at(start), value, [ramp(int32(0), 1, lanes)])
    if lanes > 1 and step != 1:
        parts = [lanes_at(value, range(k, k + 1)) for k in range(lanes)]
        return sequence([store_slots(place, start + step * k, 0, part, 1) for k, part in enumerate(parts)])
    stores, done = [], 0
    for slot, at, count in slot_pieces(start, lanes, place.width):
        piece = value if count == lanes else lanes_at(value, range(done, done + count))
        stores.append(tx.BufferStore(place.slots[slot], piece, [ramp(int32(at), 1, count)]))
        done += count
    return sequence(stores)
