"""Which dimensions of a model are left open, and the compilation of one package for every size of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelc.compile.any_size import any_size
from modelc.compile.caches import growing_states
from modelc.compile.choices import Choices
from modelc.compile.config import Config
from modelc.compile.fixed import Inputs
from modelc.compile.free_bounds import default_ranges
from modelc.compile.inputs import applied, made_for
from modelc.compile.open_sizes import OpenRun
from modelc.compile.opened import Open
from modelc.errors import ConfigError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.flags import Steered, looked_at
from modelc.frontend.steering.specialise import dimension_names
from modelc.frontend.steering.states import growing_dims
from modelc.partition.narrow_products import narrowing
from modelc.target import Target, load_target

Ranges = Mapping[str, Open]
FINDING = ("NonZero", "Compress", "NonMaxSuppression", "Unique")  # operators whose results are as long as a run finds


def may_be_open(
    model: Path, wanted: Inputs, settings: Config, inputs: Mapping[str, Any] | None, target: Target | None
) -> bool:
    """Whether dimensions that nothing is said of are left open: not beside several variants, nor where shapes are said
    by `inputs` or otherwise, nor where precision auto decides by one size, nor beside states that do not grow."""
    variants = any(len(numbers) > 1 for numbers in wanted.dims.values() if not isinstance(numbers, Open))
    if variants or inputs or wanted.shapes or decides_by_error(settings, target):
        return False
    return not wanted.states or bool(growing_dims(read_outline(model).graph, wanted.states)[0])


def decides_by_error(settings: Config, target: Target | None) -> bool:
    """Whether the precision is auto, and the target (None: this machine) multiplies something narrower than float32."""
    if settings.policy.precision != "auto":
        return False
    return bool(narrowing("auto", target if target is not None else load_target("native")))


def open_ranges(
    model: Path, wanted: Inputs, settings: Config, inputs: Mapping[str, Any] | None, target: Target | None
) -> tuple[Inputs, dict[str, Open]]:
    """What is fixed of a model, and the dimensions that are left open: because `wanted` says so, or nothing of them."""
    if may_be_open(model, wanted, settings, inputs, target):
        wanted = replace(wanted, dims={**wanted.dims, **left_open(model, wanted)})
    return of_several_numbers(wanted)


def at_usual_sizes(
    model: Path, wanted: Inputs, settings: Config, inputs: Mapping[str, Any] | None, target: Target | None
) -> tuple[Inputs, dict[str, Open]]:
    """What is fixed of a model, with the usual sizes of dimensions that are left open; and these dimensions."""
    wanted, ranges = open_ranges(model, wanted, settings, inputs, target)
    if not ranges:
        return wanted, ranges
    open_sizes = any_size(model, ranges, wanted.constants, settings.inputs.states)
    usual = {name: (number,) for name, number in open_sizes.dims(open_sizes.usual).items()}
    return replace(wanted, dims={**wanted.dims, **usual}), ranges


def left_open(path: Path, wanted: Inputs) -> dict[str, Open]:
    """The ranges of dimensions that nothing is said of. Caches grow along one alone: their others are 1."""
    lengths, others = growing_dims(read_outline(path).graph, wanted.states)
    fixed = {name: Open(range(1, 2)) for name in sorted(others - lengths) if name not in wanted.dims}
    ranges = {name: given for name, given in wanted.dims.items() if isinstance(given, Open)}
    wanted = replace(wanted, dims={**wanted.dims, **{name: (1,) for name in fixed}})
    numbers = {name: given[0] for name, given in wanted.dims.items() if len(given)}
    _, partly = looked_at(read_outline(path).graph, {}, numbers, wanted.constants)
    names = [name for name in dimension_names(partly) if name not in wanted.dims]
    if not names or any(extents is None for extents in partly.values()):
        return fixed
    middle = {name: (given[len(given) // 2],) for name, given in ranges.items() if len(given)}
    every = ((), {**wanted.dims, **middle}, wanted.constants)
    growing = growing_states(path, wanted.states, lengths)
    found = default_ranges(path, partly, names, every, lengths=lengths, growing=growing)
    return {**fixed, **{name: Open(numbers) for name, numbers in found.items()}}


def of_several_numbers(wanted: Inputs) -> tuple[Inputs, dict[str, Open]]:
    """What is fixed, with numbers for ranges of one; and the ranges of several."""
    ranges = {name: given for name, given in wanted.dims.items() if isinstance(given, Open)}
    numbers = {name: (of_one[0],) for name, of_one in ranges.items() if len(of_one) == 1}
    fixed = replace(wanted, dims={**wanted.dims, **numbers})
    return fixed, {name: several for name, several in ranges.items() if name not in numbers}


def open_run(
    asked_for: tuple[Path, str, Target, Config],
    wanted: Inputs,
    ranges: Ranges,
    locked: Choices | None = None,
    as_chosen: bool = False,
    **facts: Any,
) -> OpenRun:
    """The compilation of a model (its path and digest, a target, settings) for every size in `ranges`; `facts` are
    other fields of it. `as_chosen`: the shapes of the samples are those of earlier choices, `locked`. Raises
    ConfigError, ModelError."""
    model, digest, target, settings = asked_for
    open_sizes = any_size(model, ranges, wanted.constants, settings.inputs.states)
    fixed = {name: numbers for name, numbers in wanted.dims.items() if name not in ranges}
    each = [{**fixed, **{n: (k,) for n, k in open_sizes.dims(run).items()}} for run in open_sizes.samples]
    if locked is not None and as_chosen:
        known = locked.shapes_of_inputs
        if len(known) != len(each):
            raise ConfigError(f"the choices have {len(known)} shapes; expected one for each of {len(each)}")
        steering = [applied(replace(wanted, dims={}, shapes=(one,)), model) for one in known]
    else:
        steering = [applied(replace(wanted, dims=dims), model) for dims in each]
    shapes = tuple(shapes for steered in steering for shapes in steered.shapes)
    notes = (f"takes {open_sizes}; --dim NAME=A..B@N, or NAME=N, says otherwise",) if ranges else ()
    alike = locked is not None and made_for(locked, Steered(shapes, steering[0].constants))
    return OpenRun(
        model=model,
        digest=digest,
        target=target,
        config=settings.allowing(strassen=False),
        shapes=shapes,
        constants=steering[0].constants,
        locked=locked if alike and locked is not None and locked.free == ranges else None,
        notes=notes,
        alike=True,
        free=open_sizes.free,
        any_size=open_sizes,
        **facts,
    )


def may_find(model: Path, wanted: Inputs, settings: Config, target: Target) -> bool:
    """Whether a package computes what a run finds as far as it is: not beside states, nor where precision auto decides
    by one size."""
    finds = any(node.op_type in FINDING for node in read_outline(model).graph.node)
    return finds and not wanted.states and not decides_by_error(settings, target)
