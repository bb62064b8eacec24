"""The seconds that bytes and float16 save in each layer: what the compiler estimates of the float model in both floats,
and of the quantized one, in the layouts that each would get."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelc.errors import ConfigError
from modelc.frontend.quantize.weights import LARGEST
from modelc.partition.half_sums import HALF, half_sum
from modelc.passes.machine import BYTES, multiplied
from modelc.target import Target

if TYPE_CHECKING:
    from modelc.compile.pipeline import Run


def require_bytes(target: Target, tensorize: bool = True) -> None:
    """Raises ConfigError where kernels for a target multiply no bytes, or none quicker than float32."""
    if tensorize and any(unit.pays for unit in multiplied(target)):
        return
    why = (
        "has no instruction that multiplies bytes and adds to int32, or none quicker than float32"
        if tensorize
        else "may use no intrinsics"
    )
    raise ConfigError(
        f"precision int8: the target {target.name} {why}; compile with --precision f32, or for another target"
    )


def limits_of_weights(target: Target) -> tuple[int, ...]:
    """The largest weights to quantize with, the fastest first: where a target has no instruction that is exact for all
    bytes, it may have one for smaller ones, which is faster than what it does with all."""
    within = [unit.within for unit in multiplied(target) if unit.activations in BYTES]
    smaller = {min(-low, high) for low, high in filter(None, within)} if None not in within else set()
    return (*sorted(smaller, reverse=True), LARGEST)


@dataclass(frozen=True)
class Priced:
    """Estimated seconds of a run: of the whole, and of each layer: of the Tasks that compute it, though they round for
    the next as well. `halves`, by the layers that multiply float16: the values that their Tasks have stored so."""

    whole: float
    layers: dict[str, float]
    halves: Mapping[str, frozenset[str]]


def priced(run: Run, model: Path, layers: Collection[str]) -> Priced:
    """What `run` would make of the model in a file takes; of several sets of shapes, the first."""
    asked = replace(run, model=model)
    program = asked.programs().rounded[0]
    whole, each = 0.0, dict.fromkeys(layers, 0.0)
    multiplying, stored = set[str](), {name: set[str]() for name in layers}
    for bound in program.kernels:
        seconds = asked.schedules.seconds(bound.task)
        whole += seconds
        layer = next((name for name in bound.task.nodes if name in each), None)
        if layer is not None:
            each[layer] += seconds
            multiplying |= {layer} if half_sum(bound.task) is not None else set()
            dtypes = bound.task.dtypes
            stored[layer] |= {value.split("#")[0] for x, value in bound.values.items() if dtypes[x] == HALF}
    return Priced(whole, each, {layer: frozenset(stored[layer]) for layer in multiplying})
