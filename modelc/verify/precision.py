"""Which Tasks make how much of the error of a program in bfloat16: the measure of precision auto.

Both programs run on the same inputs, as packages that have every kernel's result among their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
Kept = tuple[tuple[str, ...], ...]  # for each set of shapes, the names of Tasks that stay in float32


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


def kept_in_turn(added: Sequence[Mapping[str, float]], limit: float) -> list[Kept]:
    """What to try in turn, given the error that each Task adds, for each set of shapes: first the Tasks that add more
    than `limit` stay in float32, then 1, 2, 4, ... more of those that add most, at last all."""
    ranked = sorted(((k, name) for k, one in enumerate(added) for name in one), key=lambda x: (-added[x[0]][x[1]], x))
    counts, more = [sum(error > limit for one in added for error in one.values())], 1
    while counts[-1] < len(ranked):
        counts.append(min(counts[-1] + more, len(ranked)))
        more *= 2
    chosen = (set(ranked[:count]) for count in counts)
    return [tuple(tuple(n for n in one if (k, n) in some) for k, one in enumerate(added)) for some in chosen]
