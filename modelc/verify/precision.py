"""Which contractions may be bfloat16: the measure of precision auto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.package import read_package
from modelc.verify.check import Runner, as_numbers
from modelc.verify.compare import distance

Arrays = Mapping[str, NDArray[Any]]
Kept = tuple[tuple[str, ...], ...]  # for each set of shapes, the names of Tasks that stay in float32


def results(package: str | Path, feed: Arrays) -> dict[str, NDArray[Any]]:
    """What a package gives."""
    read = read_package(package)
    dtypes = {tensor.name: tensor.dtype for tensor in read.manifest.variants[0].outputs}
    with ExitStack() as stack:
        return {name: as_numbers(array, dtypes[name]) for name, array in Runner(read, stack).run(dict(feed)).items()}


def error(computed: Arrays, wanted: Arrays) -> float:
    """The relative RMS error of the worst output."""
    return max(distance(computed[name], array, 0, 0).rms_rel for name, array in wanted.items())


def kept_in_turn(added: Sequence[Mapping[str, float]], limit: float) -> list[Kept]:
    """What to try in turn, given the error that each Task by itself adds to the outputs, for each set of shapes. First
    so many stay in float32, those that add most, that the others together (errors add like random ones: their squares)
    should be within `limit`, at least one; then 1, 2, 4, ... more; at last all."""
    ranked = sorted(
        ((k, name) for k, errors in enumerate(added) for name in errors), key=lambda x: (-added[x[0]][x[1]], x)
    )
    squares = [added[k][name] ** 2 for k, name in ranked]
    first = next(n for n in range(len(ranked) + 1) if sum(squares[n:]) <= limit**2)
    counts, more = [min(max(first, 1), len(ranked))], 1
    while counts[-1] < len(ranked):
        counts.append(min(counts[-1] + more, len(ranked)))
        more *= 2
    chosen_sets = (set(ranked[:count]) for count in counts)
    return [tuple(tuple(n for n in errors if (k, n) in kept) for k, errors in enumerate(added)) for kept in chosen_sets]
