"""The seconds that bytes and float16 save in each layer: what the compiler estimates of the float model in both floats,
and of the quantized one, in the layouts that each would get; and what other weights in it, or rounding by row, take
more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelc.errors import ConfigError
from modelc.frontend.quantize.dynamic import rounding_nodes_of
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.weights import LARGEST
from modelc.ir.block import Task
from modelc.layout.program import partition
from modelc.partition.narrow_products import HALF, half_sum
from modelc.passes.machine import BYTES, multiplied
from modelc.space.choose import OPTIMISM
from modelc.target import Target

if TYPE_CHECKING:
    from modelc.compile.pipeline import Run

PER_SIZE = 0.1  # of the run's time that bytes may cost for all of the weights; for a part of them as much less


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
    return (*sorted(smaller - {LARGEST}, reverse=True), LARGEST)


@dataclass(frozen=True)
class Priced:
    """Estimated seconds of a run: of the whole, and of each layer: of the Tasks that compute it, though they round for
    the next as well. `halves`, by the layers that multiply float16: the values that their Tasks have stored so."""

    whole: float = 0.0
    layers: Mapping[str, float] = field(default_factory=dict)
    halves: Mapping[str, frozenset[str]] = field(default_factory=dict)


def priced(run: Run, model: Path, layers: Collection[str]) -> Priced:
    """What `run` would make of the model in a file takes; of several sets of shapes, the first."""
    asked = replace(run, model=model)
    program = asked.programs().rounded[0]
    whole, each = 0.0, dict.fromkeys(layers, 0.0)
    multiplying, stored = set[str](), {name: set[str]() for name in layers}
    asked.schedules.prepare([bound.task for bound in program.kernels], True)
    for bound in program.kernels:
        seconds = asked.schedules.seconds(bound.task)
        whole += seconds
        layer = layer_of(bound.task, each)
        if layer is not None:
            each[layer] += seconds
            multiplying |= {layer} if half_sum(bound.task) is not None else set()
            dtypes = bound.task.dtypes
            stored[layer] |= {value.split("#")[0] for x, value in bound.values.items() if dtypes[x] == HALF}
    return Priced(whole, each, {layer: frozenset(stored[layer]) for layer in multiplying})


def priced_more(run: Run, model: Path, other: Path, layers: Collection[str]) -> dict[str, float]:
    """The seconds that each of the `layers` takes more in `other` than in `model`: by closed forms and in layouts by
    rule, so that of what both have nothing is asked, and layouts need not be chosen again."""
    more, schedules = dict.fromkeys(layers, 0.0), run.schedules
    tasks, calls = dict[str, Task](), Counter[tuple[str, str]]()
    for path, sign in ((model, -1), (other, 1)):
        asked = replace(run, model=path)
        for bound in partition(asked.drafts[0], asked.partitioning.attention_bytes).kernels:
            layer = layer_of(bound.task, more)
            if layer is not None:
                tasks[bound.task.hash] = bound.task
                calls[layer, bound.task.hash] += sign
    schedules.prepare([tasks[key] for (_, key), times in calls.items() if times], False)
    for (layer, key), times in calls.items():
        if times:
            more[layer] += times * schedules.optimistic(tasks[key]) / OPTIMISM
    return more


def priced_rows(run: Run, ranged: Path, by_row: Path, layers: Sequence[Layer]) -> dict[str, float]:
    """The seconds that each of the `layers` takes more in the model `by_row`, where its activations are rounded so,
    than in `ranged`, each with its part of what rounds them."""
    rounding = rounding_nodes_of(by_row)
    rounding |= {f"{layer.rounded}/{part}": layer.x for layer in layers for part in ("quantize", "dequantize")}
    more = priced_more(run, ranged, by_row, [*(layer.name for layer in layers), *rounding])
    return with_rounding(more, {layer.name: layer.x for layer in layers}, rounding)


def with_rounding(
    seconds: Mapping[str, float], reads: Mapping[str, str], rounding: Mapping[str, str]
) -> dict[str, float]:
    """The seconds of each layer with its part of what the nodes `rounding` take, which round the rows of a value for
    all layers that read it; `reads` says which value each layer reads."""
    readers, of_rounding = Counter(reads.values()), defaultdict[str, float](float)
    for node, x in rounding.items():
        of_rounding[x] += seconds[node]
    return {layer: seconds[layer] + of_rounding[x] / readers[x] for layer, x in reads.items()}


def layer_of(task: Task, layers: Collection[str]) -> str | None:
    """Which of the layers a Task computes, or a part of it."""
    return next((name for name in task.nodes if name in layers), None)
