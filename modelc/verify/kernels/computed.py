"""Whether the machine code is the schedule: what a kernel wrote, beside what its arithmetic makes of what it read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES
from modelc.ir.program import BoundTask
from modelc.partition.narrow_products import half_sum
from modelc.partition.precision import rounded_values
from modelc.space.rules.derivation import constant_data, rounding_error
from modelc.verify.kernels.blueprint import Blueprint, Scheduled
from modelc.verify.kernels.calls import KernelCall
from modelc.verify.kernels.definitions import Definitions
from modelc.verify.kernels.demand import Evaluator
from modelc.verify.kernels.elements import joined, taken
from modelc.verify.kernels.inverse import TakesTooLong
from modelc.verify.kernels.machine import Machine
from modelc.verify.kernels.meaning import of_task
from modelc.verify.kernels.reading import Reading, Verdict
from modelc.verify.kernels.report import OUT_OF_RANGE
from modelc.verify.kernels.rounding import PLACES, Analysis, Rounded
from modelc.verify.kernels.stored import constant_of, index_in, logical

Array = NDArray[Any]
NEAR = 1.0  # standard deviations of roundings from the meaning in float64: of what is farther the machine is asked
COMPUTED, ALWAYS = 256, 16  # samples that are computed as the kernel computes them: the farthest; at least
TRANSFORMED = 8  # times as few of a kernel whose transforms are computed with each
MACHINE_POINTS = 1 << 28
AT_ONCE = 1 << 25  # points of an evaluation, whose numbers, errors and places are there together: about 4 GB


@dataclass
class Kernels:
    """The kernels of one variant, as they compute. An evaluation takes at most so many `points`, where nothing else is
    said; `work` is what all took so far, in operations on one element."""

    blueprint: Blueprint
    points: int
    work: float = 0.0

    @cached_property
    def rounded(self) -> frozenset[str]:
        """The values that are computed through bfloat16, or sums in float16."""
        return rounded_values(self.blueprint.program)

    def multiplied(self, bound: BoundTask) -> str:
        """The narrow dtype that a Task's kernel, or those before it whose parts it adds up, multiplies."""
        dtypes = {b.dtype for b in bound.task.buffers}
        if "bfloat16" in dtypes:
            return "bfloat16"
        return "float16" if "float16" in dtypes and not self.rounded.isdisjoint(bound.outputs) else ""

    @cached_property
    def narrow(self) -> str:
        """The narrow dtype that kernels of the package multiply, if any does."""
        return max(map(self.multiplied, self.blueprint.program.tasks), default="")

    def verdict(
        self,
        call: KernelCall,
        buffer: str,
        index: tuple[Array, ...],
        computed: int = COMPUTED,
    ) -> Verdict:
        """What `call` wrote to `buffer` at `index`, against its Task. Numbers that are not near what the Task means in
        float64 are `computed` as the kernel computes them, so many of the farthest. Raises CannotSay."""
        task, ours = call.use.bound.task, call.wrote[buffer]
        arrays = {**call.read, **self._constants(call)}
        analysis = self._analysis(call.use.bound)
        meaning = self.evaluated(of_task(task, arrays, analysis), buffer, index)
        reading = Reading(ours[index], meaning, index, spread=NEAR)
        ratios = np.where(reading.open, np.inf, reading.ratios.reshape(-1))
        order = np.argsort(-ratios, kind="stable")
        compiled = self.blueprint.scheduled[task.hash]
        if rounding_error(compiled.task, compiled.candidate.stages):
            computed //= TRANSFORMED
        asked = order[: min(computed, max(ALWAYS, int((ratios > 1).sum())))]
        narrow = self.multiplied(call.use.bound)
        by_machine = self._by_machine(call, buffer, reading.at(asked))
        verdict = replace(by_machine.verdict, samples=int(ratios.size - by_machine.open.sum()))
        if reading.verdict.beyond:  # whatever the kernel's arithmetic makes of it: what it means is in range
            verdict = replace(verdict, worst=np.inf, sentence=reading.verdict.sentence, beyond=True)
        return _with_range(verdict) if narrow == "float16" else verdict

    def _by_machine(self, call: KernelCall, buffer: str, reading: Reading) -> Reading:
        """The reading beside the numbers that the kernel's arithmetic gives: its derived Blocks, in the order of its
        loops. The products that a loop adds up may be contracted or not, and loops of a tile and of its rest differ in
        that: of each number the nearer counts. Where loops are cut each product may be either."""
        compiled = self.blueprint.scheduled[call.use.bound.task.hash]
        analysis = self._analysis(call.use.bound)
        nearest: Reading | None = None
        for contracted in (True, False, None):
            machine = Machine(PLACES, analysis.short, analysis.halves, contracted)
            expected = self._derived(call, buffer, reading.index, compiled, machine)
            beside = replace(reading, expected=expected, spread=0.0)
            nearest = beside if nearest is None else nearest.or_nearer(beside)
            if nearest.verdict.worst <= 1:
                break
        assert nearest is not None
        return nearest

    def _derived(
        self, call: KernelCall, buffer: str, index: tuple[Array, ...], compiled: Scheduled, analysis: Analysis
    ) -> Rounded:
        """The elements of a kernel's output by its derived Blocks."""
        task, derived = call.use.bound.task, compiled.derived
        names = {own.name: canonical.name for own, canonical in zip(task.buffers, compiled.task.buffers, strict=True)}
        arrays = {names[b]: logical(derived.buffer(names[b]), data) for b, data in call.read_bytes.items()}
        for b, data in self._constants(call).items():
            anew = constant_data(compiled.task, compiled.candidate.stages, names[b], data)
            arrays[names[b]] = anew.reshape(derived.buffer(names[b]).shape)
        elements = len(call.wrote_bytes[buffer]) // DTYPES[call.placed(buffer).dtype].itemsize
        at = index_in(call.placed(buffer), derived.buffer(names[buffer]), elements, index)
        definitions = replace(of_task(derived, arrays, analysis), order_of=compiled.order_of)
        return self.evaluated(definitions, names[buffer], at, MACHINE_POINTS)

    def _analysis(self, bound: BoundTask) -> Analysis:
        """The arithmetic of a Task's kernel."""
        return Analysis(PLACES, self.multiplied(bound) == "bfloat16", half_sum(bound.task) is not None)

    def evaluated(
        self, definitions: Definitions, buffer: str, index: tuple[Array, ...], points: int | None = None
    ) -> Rounded:
        """The elements of a buffer at `index`; of many points some after the others, neighbours, which read much the
        same, together. Raises CannotSay."""
        left, parts = self.points if points is None else points, list[Rounded]()
        pending, done = [np.lexsort(index[::-1]) if index else np.zeros(1, np.int64)], list[Array]()
        while pending:
            part = pending.pop()
            evaluator = Evaluator(definitions, left if part.size == 1 else min(left, AT_ONCE))
            try:
                parts.append(evaluator.elements(buffer, tuple(i[part] for i in index)))
                done.append(part)
                left -= evaluator.spent
            except TakesTooLong:
                if part.size == 1 or left <= AT_ONCE:
                    raise
                pending += np.array_split(part, 2)
            finally:
                self.work += evaluator.work
        return taken(joined(parts, parts[0].dtype), np.argsort(np.concatenate(done)))

    def _constants(self, call: KernelCall) -> dict[str, Array]:
        """What the Task's constants hold, in logical shape."""
        program, bound = call.use.program, call.use.bound
        return {b: constant_of(program, call.placed(b)) for b in bound.task.constants}


def _with_range(verdict: Verdict) -> Verdict:
    """The verdict on a kernel in float16, which says so where what overflowed is wrong."""
    return replace(verdict, sentence=f"{verdict.sentence}; {OUT_OF_RANGE}") if verdict.beyond else verdict
