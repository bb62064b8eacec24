"""The precision of a compilation: which contractions multiply bfloat16 or float16, and what auto keeps in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from modelc.errors import ConfigError
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.package import Package
from modelc.partition.half_sums import HALF, with_sums_in_parts
from modelc.partition.narrow_products import multiplies
from modelc.partition.precision import contracting_tasks, to_narrow, with_roundings
from modelc.scratch import TemporaryFolder
from modelc.target import Target
from modelc.verify.precision import Arrays, Kept, error, kept_in_turn, results

Added = Mapping[str, float]  # by a Task's name: the error that it adds to the outputs in bfloat16, by itself


DTYPES = {"bf16": "bfloat16", "auto": "bfloat16", "f16": HALF}


def narrowing(precision: str, target: Target) -> str:
    """What contractions multiply; nothing where that is float32."""
    dtype = DTYPES.get(precision, "")
    return dtype if dtype and multiplies(target, dtype) else ""


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


def each_rounded(wide: Sequence[Program]) -> list[dict[str, Program]]:
    """By the Task's name, each program with the operands of one contraction rounded, for each set of shapes."""
    return [{name: with_roundings(program, name) for name in contracting_tasks(program)} for program in wide]


def errors_added(
    wide: Program,
    each: Mapping[str, Program],
    package: Callable[[Program, Path], Package],
    draw: Callable[[Package], Arrays],
    progress: Callable[[str], None],
) -> Added:
    """What `each` adds to the outputs of `wide`, on one drawn input. `package` writes a program's package."""
    with TemporaryFolder("precision") as folder:
        path = Path(folder) / "one.modelc"
        feed = draw(package(wide, path))
        wanted, errors = results(path, feed), dict[str, float]()
        for name, one in each.items():
            progress(f"what {name} adds in bfloat16")
            errors[name] = error(results(package(one, path).path, feed), wanted)
        return errors
