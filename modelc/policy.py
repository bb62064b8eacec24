"""What the user allows: one frozen value that partition, layouts and schedules read alike."""

from __future__ import annotations

from dataclasses import dataclass

SCHEDULES = ("winograd", "strassen", "tensorize", "parts", "chains")  # fields that say which schedules there are


@dataclass(frozen=True)
class Policy:
    """`winograd`: convolutions may be computed by minimal filtering, which rounds otherwise. `strassen`: products of
    matrices may be computed by fewer products of their parts, which rounds otherwise too and makes constants larger.
    `tensorize`: kernels may be made of the target's intrinsics. `parts`: long sums may be computed in parts, which
    rounds otherwise. `chains`: Tasks of which one reads what another writes may be one, tile by tile. `records`: Tasks
    may get what was measured to be faster on machines of the target's family. `attention`: attention may be one Task.
    `precision`: what contractions multiply (f32, bf16, f16, or auto)."""

    winograd: bool = True
    strassen: bool = True
    tensorize: bool = True
    parts: bool = True
    chains: bool = True
    records: bool = True
    attention: bool = True
    precision: str = "f32"
