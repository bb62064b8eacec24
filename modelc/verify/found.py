"""What runs of a package find: its kernels are judged at these sizes. Each of the inputs is run once to learn them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc.errors import VerificationError
from modelc.ir.sizes import Sizes
from modelc.package import Package, at_sizes, read_package
from modelc.package.spec import Argument, Plan
from modelc.package.watch import Place, Watch, Watched
from modelc.verify.check import (
    Arrays,
    Runner,
    check_inputs,
    declines,
    drawn_for_variants,
    variant_of,
    without_constants,
)
from modelc.verify.engine import EngineError
from modelc.verify.reference import fixed_inputs


class Finding(NamedTuple):
    """The sizes of some runs, and what each is given; without `feeds` nobody knows what that is to be."""

    runs: Sequence[Sizes]
    feeds: Sequence[Arrays] = ()


def finding(
    package: str | Path,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None,
    seed: int,
    samples: int,
    runs: Sequence[Sizes],
    every_variant: bool,
) -> Finding:
    """The runs of a package on `inputs`, or on drawn ones, at sizes of inputs, with the sizes that they find. Raises
    InputError where inputs do not fit."""
    read = read_package(package, check=True)
    plan = read.manifest.variants[0]
    most = {size.name: size.most for size in plan.free if size.is_found}
    if not most:
        return Finding(runs)
    at_most = at_sizes(read, [{**run, **most} for run in runs])
    made: list[tuple[Sizes, Arrays]] = []
    with ExitStack() as stack, suppress(VerificationError):  # what does not run is said where it is judged
        runner = Runner(at_most, stack)
        for number, feed in _feeds(at_most, model, inputs, seed, samples, every_variant, runner):
            made.append(({**runs[number], **most}, feed))
            found = dict[str, int]()
            try:
                runner.run(number, feed, _watch(plan, found))
            except EngineError as error:
                if inputs is not None or not declines(at_most, number, str(error)):
                    raise
                made.pop()  # another is drawn
                continue
            made[-1] = ({**runs[number], **most, **found}, feed)
    return Finding(*zip(*made, strict=True)) if made else Finding([{**run, **most} for run in runs])


def _feeds(
    package: Package,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None,
    seed: int,
    samples: int,
    every_variant: bool,
    runner: Runner,
) -> Iterator[tuple[int, Arrays]]:
    drawn_for = set(range(len(package.manifest.variants)))
    if inputs is not None:
        feed = dict(without_constants(fixed_inputs(package), inputs))
        check_inputs(package, feed)
        number = variant_of(package, feed)
        yield number, feed
        drawn_for = drawn_for - {number} if every_variant else set()
    yield from drawn_for_variants(package, model, seed, samples, drawn_for, runner.not_run)


def _watch(plan: Plan, found: dict[str, int]) -> Watch:
    """What tells `found` the sizes that a run finds."""
    numbers = [k for k, size in enumerate(plan.free) if size.is_found]
    finders = {k: n for n, step in enumerate(plan.steps) for k in numbers if Argument("dim", k) in step.arguments}

    def consume(records: Iterator[Watched]) -> None:
        for record in records:
            found[plan.free[numbers[record.place]].name] = int(np.frombuffer(record.data, np.int64)[0])

    return Watch([Place(finders[k], True, "dim", k, 0, 0, 8, 1) for k in numbers], consume)
