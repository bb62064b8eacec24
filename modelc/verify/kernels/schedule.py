"""Whether a schedule is the model: what the Tasks of a Program mean, beside the imported nodes, both in float64.

Both are computed from the same values, those of the model that kernels wrote, on some elements. Two ways to compute
the same agree to the roundoff of float64 of the magnitudes that are added, those before what cancels included (FINE in
rounding.py); what passes computed in float32, a folded constant, may be off by its roundoff.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AnyBlock, Buffer
from modelc.ir.graph import Graph
from modelc.ir.program import BoundTask, Program
from modelc.ops import MEANINGS
from modelc.ops.operator import written
from modelc.verify.kernels.demand import Definitions, Order
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.rounding import Analysis, Rounded
from modelc.verify.kernels.stored import constant_of

Array = NDArray[Any]


@dataclass
class Scheduling:
    """The Tasks of `program` as one computation, by the names of its values."""

    program: Program
    graph: Graph
    _producers: dict[str, int] = field(default_factory=dict)
    _defined: dict[int, Sequence[tuple[Order, AnyBlock]]] = field(default_factory=dict)
    _locals: dict[str, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, bound in enumerate(self.program.tasks):
            self._producers |= dict.fromkeys(bound.outputs, number)

    def definitions(self, arrays: Mapping[str, Array], analysis: Analysis) -> Definitions:
        """What the Tasks mean where the values in `arrays` are given, as they are stored in logical shape."""
        given = _GivenOrConstant(arrays, self.program)
        folded = _Folded(self.program, self.graph)
        return Definitions(given, self._writers, self._buffer, MEANINGS, analysis, folded=folded)

    def _writers(self, name: str) -> Sequence[tuple[Order, AnyBlock]]:
        number = self._producers.get(name)
        if number is None and name in self._locals:
            number = int(name.partition("#")[0])
        if number is None:
            return ()
        return [(order, block) for order, block in self._task(number) if name in written(block)]

    def _buffer(self, name: str) -> tuple[str, tuple[int, ...]]:
        place = self.program.values.get(name) or self._locals[name]
        return place.dtype, place.shape

    def _task(self, number: int) -> Sequence[tuple[Order, AnyBlock]]:
        if number not in self._defined:
            bound = self.program.tasks[number]
            if bound.bodies:
                raise CannotSay(f"{bound.task.name!r} is control flow, whose kernels are judged by themselves")
            names = self._names(bound, number)
            self._defined[number] = [((number, k), b.renamed(names)) for k, b in enumerate(bound.task.blocks)]
        return self._defined[number]

    def _names(self, bound: BoundTask, number: int) -> dict[str, str]:
        names = dict(bound.values)
        for buffer in bound.task.buffers:
            if buffer.name not in names:
                names[buffer.name] = f"{number}#{buffer.name}"
                self._locals[names[buffer.name]] = buffer
            elif self.program.values[names[buffer.name]].shape != buffer.shape:
                raise CannotSay(f"{bound.task.name} has {names[buffer.name]!r} in another shape")
        return names


class _GivenOrConstant(Mapping[str, Array]):
    """The values that are given, and the constants of a Program."""

    def __init__(self, given: Mapping[str, Array], program: Program) -> None:
        self._given, self._program = given, program
        self._constants: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        array = self._given.get(name)
        if array is None:
            array = self._constants.get(name)
        if array is None:
            placed = self._program.values.get(name)
            if placed is None or placed.root not in self._program.constants:
                raise KeyError(name)
            array = self._constants[name] = constant_of(self._program, placed)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


class _Folded:
    """The constants of a Program that are none of the model's: passes computed them."""

    def __init__(self, program: Program, graph: Graph) -> None:
        self._program, self._graph = program, graph

    def __contains__(self, name: object) -> bool:
        placed = self._program.values.get(str(name))
        if placed is None or placed.root not in self._program.constants:
            return False
        value = self._graph.values.get(placed.root)
        return value is None or value.data is None


def disagreement(by_schedule: Rounded, by_model: Rounded, index: tuple[Array, ...]) -> str | None:
    """Where the numbers of a schedule and those of the model are apart by more than their computations in float64 may
    be, in a sentence; None where they nowhere are."""
    a, b = by_schedule.value, by_model.value
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
        allowed = np.broadcast_to(by_schedule.bound + by_model.bound, apart.shape)
        same = (a == b) | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
        excess = np.where(same | ~np.isfinite(allowed), 0.0, apart - allowed)
    excess = np.where(np.isnan(excess), np.inf, excess)
    if not (excess > 0).any():
        return None
    k = int(np.argmax(excess))
    place = [int(i[k]) for i in index]
    ours, theirs = (float(x.reshape(-1)[k]) for x in (a, b))
    limit = float(allowed.reshape(-1)[k])
    if np.isfinite(theirs) and not np.isfinite(ours):
        return f"at {place}: {ours:.9g}, expected {theirs:.9g}"
    return f"is scheduled as another computation: at {place} {ours:.9g}, by the model {theirs:.9g} within {limit:.2g}"
