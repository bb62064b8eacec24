"""What sizes a package for any size has in a run: by inputs that are given, by what a user says, or the usual ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modelc.errors import InputError
from modelc.ir.sizes import Sizes
from modelc.package.read import Package, at_sizes
from modelc.package.spec import FreeSize, Plan
from modelc.runtime.shown import range_text


def usual_run(plan: Plan) -> Sizes:
    """The first of the sizes that matter; caches are as short as they can be."""
    return {size.name: size.least if size.is_length else size.usual for size in plan.free}


def mattering(free: Sequence[FreeSize]) -> tuple[Sizes, ...]:
    """The runs that matter most, as a user said: the first sizes of all dimensions, and each other one of a dimension
    beside the first of the others. None where nobody said."""
    if not any(size.matter for size in free):
        return ()
    first = {size.name: size.usual for size in free}
    return (first, *({**first, size.name: n} for size in free for n in size.matter[1:]))


def said_mattering(free: Sequence[FreeSize]) -> str:
    """The sizes that matter, in words: what schedules are chosen for, and what commands run at."""
    return ", ".join(f"{s.name}={', '.join(str(n * s.unit) for n in s.matter or (s.usual,))}" for s in free)


def why_usual(free: Sequence[FreeSize]) -> str:
    """Why commands run at the sizes that they say."""
    if not any(size.matter for size in free):
        return "a quarter of the most"
    others = [f"{size.name}={n * size.unit}" for size in free for n in size.matter[1:]]
    return "what matters" + f", as {', '.join(others)} does" * bool(others)


def dims_of(plan: Plan, run: Sizes) -> dict[str, int]:
    """The dimensions of the inputs in a run, by the names of the free sizes."""
    return {size.name: size.unit * run[size.name] for size in plan.free if not size.is_found}


def run_of(plan: Plan, inputs: Mapping[str, Any], what: object) -> Sizes:
    """The sizes in a run of `what` on these inputs. Raises InputError where they are none that it takes."""
    run = {}
    for size in plan.free:
        if size.input < 0:
            run[size.name] = size.usual if size.is_found else size.least  # a run on these inputs alone is the first
            continue
        tensor = plan.inputs[size.input]
        if tensor.name not in inputs:
            raise InputError(f"the input {tensor.name!r} is missing, which says {size.name!r} of {what}")
        shape = np.shape(inputs[tensor.name])
        if len(shape) != len(tensor.shape):
            raise InputError(
                f"input {tensor.name!r} has {len(shape)} dimensions; {what} takes {len(tensor.shape)} of them"
            )
        run[size.name] = _number(
            size, shape[size.axis], f"input {tensor.name!r} has {shape[size.axis]} along {size.name!r}", what
        )
    return run


def run_with(plan: Plan, dims: Mapping[str, int], what: object) -> Sizes:
    """The usual sizes but for `dims`. Raises InputError where one is none that `what` has, or out of bounds."""
    known = {size.name: size for size in plan.free}
    for name, number in dims.items():
        if name not in known:
            there = ", ".join(map(_sentence, plan.free)) or "none: its shapes are fixed"
            raise InputError(f"{name}={number}: {what} has no free size of this name; those that it has are {there}")
        if known[name].is_found:
            raise InputError(f"{name}={number}: it is what a run of {what} finds")
        if known[name].is_length:
            raise InputError(f"{name}={number}: it is the length of a cache of {what}, which runs before make longer")
    own = {name: _number(known[name], number, f"{name}={number}", what) for name, number in dims.items()}
    return {**usual_run(plan), **own}


def at_inputs(package: Package, inputs: Mapping[str, Any]) -> Package:
    """The package as it is in a run on these inputs: of fixed shapes. Raises InputError."""
    plan = package.manifest.variants[0]
    return at_sizes(package, [run_of(plan, inputs, package.path)]) if plan.free else package


def at_dims(package: Package, dims: Mapping[str, int] | None = None) -> Package:
    """The package as it is in a run at the usual sizes, but for `dims`. Raises InputError."""
    plan = package.manifest.variants[0]
    run = run_with(plan, dims or {}, package.path)
    return at_sizes(package, [run]) if plan.free else package


def at_given(package: Package, inputs: Mapping[str, Any] | None, dims: Mapping[str, int] | None = None) -> Package:
    """The package at the sizes of the inputs where there are any, else as at_dims(). Raises InputError for both."""
    if inputs is None:
        return at_dims(package, dims)
    if dims:
        raise InputError(f"{', '.join(dims)}: the inputs that are given say the sizes; leave out one of both")
    return at_inputs(package, inputs)


def said_sizes(package: Package) -> dict[str, int]:
    """At what sizes a package stands that at_dims() or at_inputs() gave: of one whose shapes are fixed, none."""
    return dict(package.dims[0]) if package.dims else {}


def sizes_sentence(sizes: Mapping[str, int]) -> str:
    """The sizes of a run, in words."""
    return ", ".join(f"{name}={number}" for name, number in sizes.items())


def ranges_of(free: Sequence[FreeSize]) -> dict[str, range]:
    """What the dimensions of a package for any size may be, by name."""
    return {size.name: range(size.least * size.unit, size.most * size.unit + 1, size.unit) for size in free}


def _number(size: FreeSize, number: int, found: str, what: object) -> int:
    whole, rest = divmod(number, size.unit)
    if rest or not size.least <= whole <= size.most:
        raise InputError(f"{found}: {what} takes {_sentence(size)}")
    return whole


def _sentence(size: FreeSize) -> str:
    numbers = ranges_of([size])[size.name]
    return f"{size.name} {range_text(numbers)}"
