"""Whether a schedule is the model: what the Tasks of a Program mean, beside the imported nodes, both in float64.

Both are computed from the same values, those of the model that kernels wrote, on some elements. Two ways to compute
the same agree to the roundoff of float64 of the magnitudes that are added, those before what cancels included (FINE in
rounding.py); what passes computed in float32, a folded constant, may be off by its roundoff.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AnyBlock
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.ops import MEANINGS
from modelc.verify.compare import differences
from modelc.verify.kernels.definitions import Definitions
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.meaning import ROUNDOFF, Composed, Imported
from modelc.verify.kernels.report import OUT_OF_RANGE
from modelc.verify.kernels.rounding import FINE, Analysis, Rounded, is_float
from modelc.verify.kernels.stored import constant_of, elements_in_model

Array = NDArray[Any]
Evaluated = Callable[[Definitions, str, tuple[Array, ...]], Rounded]  # elements of a buffer


@dataclass(frozen=True)
class Cut:
    """The values of a model that a computation begins with, as the model has them and as they are `stored`, and the
    `narrow` dtype that kernels multiply."""

    imported: Imported
    values: Mapping[str, Array]
    stored: Mapping[str, Array]
    narrow: str

    @property
    def analysis(self) -> Analysis:
        """That of computations in float64."""
        return Analysis(FINE, self.narrow == "bfloat16", self.narrow == "float16")

    def by_model(self, analysis: Analysis) -> Definitions:
        """What the imported nodes mean from there on."""
        return self.imported.definitions(self.values, analysis, ROUNDOFF.get(self.narrow, 0.0))


class Scheduling(Composed):
    """The Tasks of `program` as one computation, by the names of its values."""

    def __init__(self, program: Program, graph: Graph) -> None:
        super().__init__(program.values, {x: k for k, bound in enumerate(program.tasks) for x in bound.outputs})
        self.program, self.graph = program, graph
        self._constants: dict[str, Array] = {}

    def definitions(self, arrays: Mapping[str, Array], analysis: Analysis) -> Definitions:
        """What the Tasks mean where the values in `arrays` are given, as they are stored in logical shape."""

        def given(name: str) -> Array | None:
            array = arrays.get(name)
            return self._constant(name) if array is None else array

        return Definitions(given, self.writers, self.buffer, MEANINGS, analysis, stands_for_real=self._is_folded)

    def _root(self, name: str) -> str:
        """The constant of the Program that a value is, or is a part of; "" for others."""
        placed = self.program.values.get(name)
        return placed.root if placed is not None and placed.root in self.program.constants else ""

    def _constant(self, name: str) -> Array | None:
        if name not in self._constants and self._root(name):
            self._constants[name] = constant_of(self.program, self.program.values[name])
        return self._constants.get(name)

    def _is_folded(self, name: str) -> bool:
        """Whether a value is a constant that is none of the model's: passes computed it."""
        root = self._root(name)
        value = self.graph.values.get(root)
        return bool(root) and (value is None or value.data is None)

    def departure(self, cut: Cut, name: str, index: tuple[Array, ...], evaluated: Evaluated) -> str:
        """In which element at `index` the Tasks mean something else than the imported nodes, "" where in none. Raises
        CannotSay."""
        value = cut.imported.graph.values[name]
        if len(value.shape) != len(index):
            raise CannotSay(f"{name!r} has other dimensions than the model's")
        inside = np.logical_and.reduce([i < n for i, n in zip(index, value.shape, strict=True)]) if index else None
        index = tuple(i[inside] for i in index)
        model = evaluated(cut.by_model(cut.analysis), name, index)
        schedule = evaluated(self.definitions(cut.stored, cut.analysis), name, index)
        if not is_float(schedule.dtype):
            elements = elements_in_model(schedule.value.astype(DTYPES[schedule.dtype]), value, cut.imported.graph)
            if elements is None:
                raise CannotSay(f"{name!r} is stored as no number of the model's")
            schedule = replace(schedule, value=elements)
        sentence = disagreement(schedule, model, index)
        overflows = bool(sentence) and cut.narrow == "float16" and not np.isfinite(schedule.value).all()
        return f"{sentence}; {OUT_OF_RANGE}" if overflows else sentence

    def blocks(self, number: int) -> Sequence[AnyBlock]:
        bound = self.program.tasks[number]
        if bound.bodies:
            raise CannotSay(f"{bound.task.name!r} is control flow, whose kernels are judged by themselves")
        buffers = bound.task.buffers
        names = {**bound.values, **self.named(number, [b for b in buffers if b.name not in bound.values])}
        for buffer in buffers:
            if buffer.name in bound.values and self.values[names[buffer.name]].shape != buffer.shape:
                raise CannotSay(f"{bound.task.name} has {names[buffer.name]!r} in another shape")
        return [block.renamed(names) for block in bound.task.blocks]


def disagreement(by_schedule: Rounded, by_model: Rounded, index: tuple[Array, ...]) -> str:
    """Where the numbers of a schedule and those of the model are apart by more than their computations in float64 may
    be, in a sentence; "" where they nowhere are."""
    a, b = by_schedule.value, by_model.value
    with np.errstate(all="ignore"):
        apart = differences(a, b)
        allowed = np.broadcast_to(by_schedule.bound + by_model.bound, apart.shape)
        same = (a == b) | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
        excess = np.where(same | ~np.isfinite(allowed), 0.0, apart - allowed)
    excess = np.where(np.isnan(excess), np.inf, excess)
    if not (excess > 0).any():
        return ""
    k = int(np.argmax(excess))
    place = [int(i[k]) for i in index]
    ours, theirs = (float(x.reshape(-1)[k]) for x in (a, b))
    limit = float(allowed.reshape(-1)[k])
    if np.isfinite(theirs) and not np.isfinite(ours):
        return f"at {place}: {ours:.9g}, expected {theirs:.9g}"
    return f"is scheduled as another computation: at {place} {ours:.9g}, by the model {theirs:.9g} within {limit:.2g}"
