"""The order of Tasks in a Program with counted sizes: a Task runs after the one that counts its sizes.

k0: places, count = NonZero(x)     k2: size = max(count, 2)     k1: y = f(places as far as the size says)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from modelc.errors import ModelError
from modelc.ir.expr import Expr, sizes
from modelc.ir.graph import room_of
from modelc.ir.program import BoundTask, Program
from modelc.ir.sizes import expr_of, is_sized


def when_sizes_are_known(program: Program) -> Program:
    """The Program with Tasks behind those that find the sizes which they depend on. Raises ModelError where a size
    depends on itself."""
    rooms = {room: name for name in program.outputs if (room := room_of(name)) is not None}
    if not rooms:
        return program
    writers: dict[str, list[int]] = {}  # of what shares memory, in order
    needs: list[set[int]] = []
    finder: dict[str, int] = {}
    for k, bound in enumerate(program.tasks):
        roots = {program.values[name].root for name in bound.values.values()}
        needs.append({writer for root in roots for writer in writers.get(root, ())})
        for name in bound.outputs:
            writers.setdefault(program.values[name].root, []).append(k)
            if (room := room_of(name)) is not None:
                finder[room] = k
    for k, bound in enumerate(program.tasks):
        needs[k] |= {finder[size] for size in sizes_in(program, bound) & rooms.keys()}
    order = dict[int, None]()
    for k in range(len(needs)):
        _put(k, needs, order, ())
    return replace(program, tasks=tuple(program.tasks[k] for k in order))


def _put(k: int, needs: list[set[int]], order: dict[int, None], within: tuple[int, ...]) -> None:
    """Puts a Task behind what it needs."""
    if k in within:
        raise ModelError("the size of what is found depends on itself")
    if k not in order:
        for other in sorted(needs[k]):
            _put(other, needs, order, (*within, k))
        order[k] = None


def sizes_in(program: Program, bound: BoundTask) -> set[str]:
    """The names of the sizes that a Task depends on, and the Regions of what it is bound to."""
    places = [program.values[name] for name in bound.values.values()]
    inner = [sizes_in(body, one) for body in bound.bodies for one in body.tasks]
    return {name for part in (bound.task, *places) for name in _named(part)}.union(*inner)


def _named(part: Any) -> Iterator[str]:
    if is_sized(part) or isinstance(part, Expr):
        yield from (size.name for size in sizes(expr_of(part) if is_sized(part) else part))
    elif is_dataclass(part):
        for field in fields(part):
            yield from _named(getattr(part, field.name))
    elif isinstance(part, tuple | frozenset):
        for one in part:
            yield from _named(one)
    elif isinstance(part, dict):
        for one in part.values():
            yield from _named(one)
