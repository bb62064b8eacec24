"""Which Tasks make how much of the error of a program in bfloat16: the measure of precision auto.

Both programs run on the same inputs, as packages that have every kernel's result among their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.ir.program import Placed, Program
from modelc.package import read_package
from modelc.verify.check import as_numbers, runner
from modelc.verify.compare import distance
from modelc.verify.layers import Probe

Arrays = Mapping[str, NDArray[Any]]


def added_errors(
    wide: tuple[Program, str | Path], narrow: tuple[Program, str | Path], feed: Arrays
) -> dict[str, float]:
    """For every Task of `wide` (by name) the relative RMS error that `narrow` adds in it: sqrt(after^2 - before^2), of
    the worst of its outputs and the worst of its inputs. Each is a program and its exposed package."""
    outputs = []
    for _, package in (wide, narrow):
        with ExitStack() as stack:
            outputs.append(runner(read_package(package), stack)(dict(feed)))
    errors: dict[str, float] = {}

    def error(name: str) -> float:
        """How far a value is from the float32 one; 0 for what is not computed."""
        if name not in errors:
            places = [program.values[name] for program, _ in (wide, narrow)]
            known = all(place.root in found for place, found in zip(places, outputs, strict=True))
            pair = [_logical(place, found) for place, found in zip(places, outputs, strict=True)] if known else None
            errors[name] = distance(pair[1], pair[0], 0, 0).rms_rel if pair else 0.0
        return errors[name]

    result = {}
    for bound in wide[0].tasks:
        after = max(map(error, bound.outputs))
        before = max((error(name) for name in bound.inputs), default=0.0)
        result[bound.task.name] = max(0.0, after**2 - before**2) ** 0.5 if after < float("inf") else after
    return result


def _logical(place: Placed, outputs: Arrays) -> NDArray[Any]:
    where = (place.dtype, place.shape, place.layout, place.strides, place.root, place.offset)
    return as_numbers(Probe("", (), place.name, *where).logical(outputs[place.root]), place.dtype)
