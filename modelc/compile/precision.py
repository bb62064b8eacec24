"""The precision of a compilation: which contractions multiply bfloat16 or float16, and what auto keeps in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ConfigError
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.package import Package, read_package
from modelc.partition.half_sums import with_sums_in_parts
from modelc.partition.narrow_products import HALF, narrowing
from modelc.partition.precision import contracting_tasks, to_narrow
from modelc.scratch import TemporaryFolder
from modelc.target import Target
from modelc.verify.check import Runner, as_numbers
from modelc.verify.compare import distance

Arrays = Mapping[str, NDArray[Any]]
Kept = tuple[tuple[str, ...], ...]  # for each set of shapes, the names of Tasks that stay in float32
Added = Mapping[str, float]  # by a Task's name: the error that it adds to the outputs in bfloat16, by itself


def constant_bytes(graph: Graph, precision: str, target: Target) -> int:
    """Bytes of all constants of `graph`, about as they are stored in the precision that is asked for."""
    narrow = narrowing(precision, target)
    found = [value for value in graph.values.values() if value.data is not None]
    return sum(value.bytes // 2 if narrow and value.dtype == "float32" else value.bytes for value in found)


def rounded(program: Program, precision: str, target: Target, kept: Sequence[str]) -> Program:
    """`program` in the precision that is asked for, but for the Tasks `kept` in float32, with a note of what became of
    it."""
    if precision == "f32":
        return program
    dtype = narrowing(precision, target)
    if not dtype:
        note = f"precision auto: all in float32, for the target {target.name} cannot multiply bfloat16"
        return replace(program, notes=(*program.notes, note))
    contracting = contracting_tasks(program, dtype)
    if unknown := sorted(set(kept) - set(contracting)):
        raise ConfigError(f"the choices keep {unknown[0]} in float32, which is no contraction of this model")
    program = to_narrow(program, tuple(kept), dtype)
    if dtype == HALF:
        program = with_sums_in_parts(program)
    note = f"precision {precision}: {len(contracting) - len(kept)} of {len(contracting)} contractions in {dtype}"
    note += f"; in float32: {', '.join(kept)}" if kept else ""
    return replace(program, notes=(*program.notes, note))


def ways(first: Kept, added: Callable[[], Sequence[Added]] | None, limit: float) -> Iterator[tuple[Kept, bool]]:
    """What to keep in float32, in the order in which it is tried, and whether it is the last: the next is asked for
    where a package was too far off. `added` measures what each Task adds; None: there is nothing to search."""
    yield first, added is None
    if added is not None:
        turns = kept_in_turn(added(), limit)
        yield from ((kept, k == len(turns)) for k, kept in enumerate(turns, 1))


def errors_added(
    wide: Program,
    each: Mapping[str, Program],
    package: Callable[[Program, Path], Package],
    draw: Callable[[Package], Arrays],
    progress: Callable[[str], None],
) -> Added:
    """What `each`, which has the operands of one Task rounded, adds to the outputs of `wide` on one drawn input: the
    relative RMS error of the worst output. `package` writes a program's package."""
    with TemporaryFolder("precision") as folder:
        path = Path(folder) / "one.modelc"
        feed = draw(package(wide, path))
        wanted, errors = results(path, feed), dict[str, float]()
        for name, one in each.items():
            progress(f"what {name} adds in bfloat16")
            made = results(package(one, path).path, feed)
            errors[name] = max(distance(made[x], array, 0, 0).rms_rel for x, array in wanted.items())
        return errors


def results(package: str | Path, feed: Arrays) -> dict[str, NDArray[Any]]:
    """What a package gives."""
    read = read_package(package)
    dtypes = {tensor.name: tensor.dtype for tensor in read.manifest.variants[0].outputs}
    with ExitStack() as stack:
        return {name: as_numbers(array, dtypes[name]) for name, array in Runner(read, stack).run(0, dict(feed)).items()}


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
