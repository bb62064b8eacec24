"""Every kernel of a package by itself: the numbers that it wrote against the meaning of what it read, in float64.

A package is run while it is watched; of each call of a kernel some elements of what it wrote are evaluated by
meaning.py and demand.py from what it really read, and have to lie within the bound that follows from the computation
(rounding.py). What a kernel reads has to be, bit for bit, what was written there before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES
from modelc.ir.program import BoundTask, Placed, Program
from modelc.package.watch import Data, Watched
from modelc.partition.half_sums import SMALLEST
from modelc.partition.precision import rounded_values
from modelc.space.rules.derivation import constant_data, rounding_error
from modelc.verify.kernels.blueprint import Blueprint, Scheduled
from modelc.verify.kernels.calls import Phases, Row, Use, looked_at
from modelc.verify.kernels.demand import Definitions, Evaluator
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.meaning import ROUNDOFF, Imported, channels_of, every_graph, of_task
from modelc.verify.kernels.reading import Reading, Verdict
from modelc.verify.kernels.report import OUT_OF_RANGE, KernelReport, Silence
from modelc.verify.kernels.rounding import Rounded, is_float
from modelc.verify.kernels.samples import Effort, chosen, telling
from modelc.verify.kernels.shadow import Shadow
from modelc.verify.kernels.stored import in_model, index_in, logical

Array = NDArray[Any]
REMEMBERED_BYTES = 1 << 30  # of values that kernels wrote, for what is made of values that are none of the model's
WIDE = 2.0**-13  # bounds in proportion to numbers: wider ones by the model are of more than the kernel
FEW = Effort(
    positions=4, samples=1 << 11, operands=1 << 16, points=1 << 24, calls=1, work=0, kernel_work=0
)  # where transforms have to be evaluated, and of later runs
FEWEST = replace(FEW, positions=1, samples=1 << 9, operands=1 << 14)  # where time is over
OTHER_ENGINE = 4.0  # bounds that another engine, whose ways to compute are not known, may be off by
SETTLED = 0.5  # of the bound of all multiplications: nearer is right by any algorithm that rounds more
FARTHEST = 16  # samples of a kernel by fewer multiplications that are asked about where time is over
LEAST_WORK = 1.2e7  # that all kernels of a package may take, however few they are
LOOKED_AT = 512  # numbers of another engine, those that are farthest from ours
JUDGED_RUNS = 2  # in which kernels are judged while there is time; in later ones for half of it
SOME_CHANNELS = 16  # are looked at in the second run beside those that never varied in the first, and of equal kernels
# where time is over


@dataclass(frozen=True)
class KernelCall:
    """What one call of a Task's kernel read and wrote, by the Task's buffers: the bytes of their places, and arrays in
    logical shape."""

    use: Use
    number: int
    read_bytes: Mapping[str, Data]
    wrote_bytes: Mapping[str, Data]

    def placed(self, buffer: str) -> Placed:
        return self.use.program.values[self.use.bound.values[buffer]]

    @cached_property
    def read(self) -> Mapping[str, Array]:
        return {buffer: logical(self.placed(buffer), data) for buffer, data in self.read_bytes.items()}

    @cached_property
    def wrote(self) -> Mapping[str, Array]:
        return {buffer: logical(self.placed(buffer), data) for buffer, data in self.wrote_bytes.items()}


def calls_of(
    records: Iterable[Watched], rows: Sequence[Row], of_steps: Sequence[Sequence[Use]], phases: Phases
) -> Iterator[KernelCall]:
    """What is watched, put together by calls of Tasks. A call of which a part was not looked at is left out."""
    pending: dict[tuple[int, int], tuple[dict[str, Data], dict[str, Data]]] = {}
    for record in records:
        row = rows[record.place]
        uses = of_steps[row.step]
        number, iteration = divmod(record.call, len(uses))
        use = uses[iteration]
        key = (id(use.bound), number)
        read, wrote = pending.setdefault(key, ({}, {}))
        (wrote if row.after else read)[row.buffer] = record.data
        if len(read) + len(wrote) == len(looked_at(use.bound, phases)):
            del pending[key]
            yield KernelCall(use, number, read, wrote)


@dataclass
class Judge:
    """Judges calls of kernels of one variant, in as many runs as it is told of."""

    blueprint: Blueprint
    effort: Effort
    seed: int = 0
    reports: dict[tuple[str, str], KernelReport] = field(default_factory=dict)  # by the names of Program and Task
    work: float = 0.0  # so far, in operations on one element
    runs: int = 0
    _graphs: list[Imported] = field(default_factory=list)
    _given: dict[str, Array] = field(default_factory=dict)  # the model's values so far
    _writers: dict[str, tuple[KernelCall, str]] = field(default_factory=dict)  # of those that kernels wrote
    _assembled: dict[str, Array] = field(default_factory=dict)  # values that kernels read whole, and wrote in parts
    _bytes: int = 0
    _shadows: dict[int, Shadow] = field(default_factory=dict)  # by the Program's identity
    _channels: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    _judged: set[str] = field(default_factory=set)  # hashes of Tasks

    def __post_init__(self) -> None:
        self._graphs = [Imported(graph) for graph in every_graph(self.blueprint.graph)]

    @cached_property
    def _last_reads(self) -> Mapping[int, list[str]]:
        """The roots that a Task, by its identity, is the last to read of."""
        roots: dict[int, list[str]] = {}
        for program in self.blueprint.program.every_program:
            last = {program.values[name].root: id(bound) for bound in program.tasks for name in bound.inputs}
            for root, task in last.items():
                if root not in program.outputs:
                    roots.setdefault(task, []).append(root)
        return roots

    @cached_property
    def rounded(self) -> frozenset[str]:
        """The values that are computed through bfloat16, or sums in float16."""
        return rounded_values(self.blueprint.program)

    def _multiplied(self, bound: BoundTask) -> str:
        """The narrow dtype that a Task's kernel, or those before it whose parts it adds up, multiplies."""
        dtypes = {b.dtype for b in bound.task.buffers}
        if "bfloat16" in dtypes:
            return "bfloat16"
        return "float16" if "float16" in dtypes and not self.rounded.isdisjoint(bound.outputs) else ""

    @cached_property
    def _narrow(self) -> str:
        """The narrow dtype that kernels of the package multiply, if any does."""
        return max(map(self._multiplied, self.blueprint.program.tasks), default="")

    def begin(self, feed: Mapping[str, Array]) -> None:
        """A run on these inputs begins; states are none of them."""
        self._given, self._writers, self._assembled, self._bytes, self._shadows = dict(feed), {}, {}, 0, {}
        self.runs += 1
        program = self.blueprint.program
        for name, array in feed.items():
            place = program.values[name] if name in program.inputs else None
            if place is not None and (place.shape, DTYPES[place.dtype]) == (array.shape, array.dtype):
                self._shadow(program).write(name, array.tobytes())

    def _shadow(self, program: Program) -> Shadow:
        return self._shadows.setdefault(id(program), Shadow(program.values))

    def look(self, call: KernelCall) -> None:
        """Judges one call, and remembers what it wrote."""
        bound, program = call.use.bound, call.use.program
        report = KernelReport(bound.task.name, bound.task.nodes, calls=1)
        shadow = self._shadow(program)
        shadow.at_call(call.number)
        for buffer, data in call.read_bytes.items():
            if not shadow.holds(bound.values[buffer], data):
                sentence = "is read as something else than what was written there before"
                report = report.with_fault(bound.values[buffer], sentence)
        key = (program.name, bound.task.name)
        previous = self.reports.get(key)
        if previous is None or self.work < self._budget / (1 if self.runs <= JUDGED_RUNS else 2):
            with np.errstate(all="ignore"):
                for buffer in bound.task.outputs:
                    report = self._output(call, buffer, report, previous)
        self.remember(call)
        self.reports[key] = report if previous is None else previous.joined(report)

    def not_run(self, use: Use, buffer: str) -> None:
        """A kernel did not run that had to."""
        self._fault(use.program, use.bound, use.bound.values[buffer], "was not computed: its kernel did not run")

    def end(self, outputs: Mapping[str, Array]) -> None:
        """A run has ended with these outputs, which have to be what kernels wrote there."""
        program = self.blueprint.program
        shadow = self._shadow(program)
        writers = {program.values[name].root: bound for bound in program.tasks for name in bound.outputs}
        for name, array in outputs.items():
            writer = writers.get(program.values[name].root) if name in program.values else None
            whole = writer is not None and program.values[name].shape == array.shape
            if writer is not None and whole and not shadow.holds(name, array.tobytes()):
                self._fault(program, writer, name, "is something else at the end of the run than what was written")

    def _fault(self, program: Program, bound: BoundTask, value: str, sentence: str) -> None:
        key = (program.name, bound.task.name)
        report = self.reports.get(key, KernelReport(bound.task.name, bound.task.nodes))
        self.reports[key] = report.with_fault(value, sentence)

    def remember(self, call: KernelCall) -> None:
        """Takes what one call wrote for what is there from now on."""
        bound, program = call.use.bound, call.use.program
        shadow = self._shadow(program)
        for buffer, data in call.wrote_bytes.items():
            shadow.write(bound.values[buffer], data)
            if program is self.blueprint.program:
                self._remember(call, buffer, call.wrote[buffer])
        if program is self.blueprint.program:
            for buffer, array in call.read.items():
                name = bound.values[buffer]
                new = name in self.blueprint.graph.values and name not in self._given.keys() | self._assembled.keys()
                if new and self._bytes + array.nbytes <= REMEMBERED_BYTES:
                    self._assembled[name] = array
                    self._bytes += array.nbytes
        shadow.forget(self._last_reads.get(id(bound), ()))

    def _remember(self, call: KernelCall, buffer: str, array: Array) -> None:
        name = call.use.bound.values[buffer]
        if name in self.blueprint.graph.values:
            self._given[name], self._writers[name] = array, (call, buffer)
            self._bytes += array.nbytes
            while self._bytes > REMEMBERED_BYTES:
                oldest = next(iter(self._writers))
                del self._writers[oldest]
                self._bytes -= self._given.pop(oldest).nbytes

    def written(self) -> dict[str, tuple[BoundTask, Array]]:
        """The model's values that kernels wrote in the last run, as the model has them."""
        values: dict[str, tuple[BoundTask, Array]] = {}
        for name, (call, _) in self._writers.items():
            array = in_model(self._given[name], self.blueprint.graph.values[name], self.blueprint.graph)
            if array is not None:
                values[name] = (call.use.bound, array)
        return values

    def assembled(self) -> dict[str, Array]:
        """The model's values that kernels read in the last run, and none wrote as a whole, as the model has them."""
        values = self.blueprint.graph.values
        arrays = {name: in_model(array, values[name], self.blueprint.graph) for name, array in self._assembled.items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def explains(self, name: str, theirs: Array) -> bool:
        """Whether rounding explains how far another engine's numbers are from those that a kernel wrote in the last
        run: where they are farthest apart, ours are right, and theirs within a few times the bound."""
        call, buffer = self._writers[name]
        ours = in_model(self._given[name], self.blueprint.graph.values[name], self.blueprint.graph)
        if ours is None or any(n < m for n, m in zip(ours.shape, theirs.shape, strict=True)):
            return False
        ours = ours[tuple(slice(m) for m in theirs.shape)]
        with np.errstate(all="ignore"):
            apart = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)).reshape(-1)
            worst = np.argsort(np.where(np.isnan(apart), np.inf, apart))[-LOOKED_AT:]
            index = np.unravel_index(worst, theirs.shape) if theirs.shape else ()
            try:
                own, other = self.verdicts(call, buffer, index), self.verdicts(call, buffer, index, theirs)
            except CannotSay:
                return False
        return all(verdict.worst <= 1 for verdict in own) and all(verdict.worst <= OTHER_ENGINE for verdict in other)

    def judged_wholly(self, confirmed: Collection[str] = ()) -> str:
        """Why some element of some kernel of the last run was not judged; "" where all were. All elements of the
        `confirmed` values of the model are another engine's, or explained()."""
        return ""

    # --- one output -----------------------------------------------------------------------------------------------

    def _output(
        self, call: KernelCall, buffer: str, report: KernelReport, previous: KernelReport | None
    ) -> KernelReport:
        bound, ours = call.use.bound, call.wrote[buffer]
        task, name = bound.task, bound.values[buffer]
        key = (task.hash, buffer)
        if key not in self._channels:
            self._channels[key] = channels_of(task, buffer)
        channels = self._channels[key]
        report = report.with_silence(name, Silence.of(ours, channels[0] if channels else None))
        if not ours.size:
            return report
        compiled = self.blueprint.scheduled[task.hash]
        rng = np.random.default_rng((self.seed, call.number, len(self.reports)))
        effort = FEWEST if self._late else FEW if _rounds_otherwise(compiled) else self.effort
        subset = None
        if previous is not None and self.runs > 1 and channels:
            silence = previous.silences.get(name)
            silent = np.zeros(0, np.int64) if silence is None else silence.channels
            subset, effort = np.union1d(silent, _random_channels(channels[0], ours, rng)), FEW
        elif self._late and channels and task.hash in self._judged:
            subset = np.unique(_random_channels(channels[0], ours, rng))
        tiles = _tiles(task, compiled, buffer, ours.ndim)
        index = chosen(ours.shape, channels, tiles, effort, rng, _depth(task), subset)
        if subset is None and channels and len(index[0]) < ours.size and ours.shape[channels[0]] <= effort.samples:
            more = telling(ours, channels[0], effort, rng, _depth(task))
            index = tuple(np.concatenate(pair) for pair in zip(index, more, strict=True))
        try:
            verdicts = self.verdicts(call, buffer, index)
        except CannotSay as reason:
            return report.without(name, str(reason))
        for verdict in verdicts:
            report = report.with_verdict(name, verdict)
        self._judged.add(task.hash)
        return report

    def verdicts(
        self, call: KernelCall, buffer: str, index: tuple[Array, ...], numbers: Array | None = None
    ) -> list[Verdict]:
        """What `call` wrote to `buffer` at `index`, or other `numbers` for it, against what the model, the Task, or
        both, say. Raises CannotSay."""
        bound, ours = call.use.bound, call.wrote[buffer] if numbers is None else numbers
        narrow = self._multiplied(bound)
        by_model = self._by_model(call, bound.values[buffer], ours, index, narrow)
        readings = [] if by_model is None else [by_model]
        if by_model is None or narrow or by_model.verdict.open or by_model.verdict.width > WIDE:
            try:
                readings.append(self._by_task(call, buffer, ours, index, narrow))
            except CannotSay:
                if by_model is None:
                    raise
        compiled = self.blueprint.scheduled[bound.task.hash]
        if _rounds_otherwise(compiled):
            readings = [self._allowing(reading, call, buffer, compiled) for reading in readings]
        return [_with_range(reading.verdict) if narrow == "float16" else reading.verdict for reading in readings]

    def _by_model(
        self, call: KernelCall, name: str, ours: Array, index: tuple[Array, ...], narrow: str
    ) -> Reading | None:
        """By the imported nodes; None where they do not say what the value is."""
        imported = next((g for g in self._graphs if name in g.computed), None)
        if imported is None:
            return None
        value = imported.graph.values[name]
        mine = in_model(ours, value, imported.graph)
        if mine is None:
            return None
        arrays = dict(self._given) if imported is self._graphs[0] else {}
        arrays |= {call.use.bound.values[b]: array for b, array in call.read.items()}
        for output in call.wrote:  # another engine makes all of them anew
            arrays.pop(call.use.bound.values[output], None)
        usable = {}
        for model_name, array in arrays.items():
            if model_name in imported.graph.values and imported.graph.values[model_name].data is None:
                there = in_model(array, imported.graph.values[model_name], imported.graph)
                if there is not None:
                    usable[model_name] = there
        read = {call.use.bound.values[b] for b in call.read}
        if not self.rounded.isdisjoint(read - usable.keys()):  # kernels before this one are evaluated too
            narrow = narrow or self._narrow
        inside = np.logical_and.reduce([i < n for i, n in zip(index, value.shape, strict=True)]) if index else None
        index = tuple(i[inside] for i in index) if index else ()
        try:
            meaning = self._evaluated(imported.definitions(usable, narrow), self.effort.points, name, index)
        except CannotSay:
            return None
        size = np.abs(meaning.value) if is_float(meaning.dtype) else np.zeros(())
        roundoff = ROUNDOFF.get(ours.dtype.name, 0.0) if meaning.dtype != ours.dtype.name else 0.0
        stored = roundoff * np.maximum(size, SMALLEST * (size > 0))
        return Reading(mine[index], meaning, np.asarray(stored, np.float64), index, "model")

    def _by_task(self, call: KernelCall, buffer: str, ours: Array, index: tuple[Array, ...], narrow: str) -> Reading:
        task = call.use.bound.task
        arrays = {**call.read, **self._constants(call)}
        meaning = self._evaluated(of_task(task, arrays, narrow), self.effort.points, buffer, index)
        return Reading(ours[index], meaning, np.zeros(()), index, "task")

    def _evaluated(self, definitions: Definitions, points: int, buffer: str, index: tuple[Array, ...]) -> Rounded:
        evaluator = Evaluator(definitions, points)
        try:
            return evaluator.elements(buffer, index)
        finally:
            self.work += evaluator.work

    def _allowing(self, reading: Reading, call: KernelCall, buffer: str, compiled: Scheduled) -> Reading:
        """The reading of a kernel by fewer multiplications, which rounds more. What is well within the bound of all
        multiplications is right; of what is not, the derived Blocks give the bound of the farthest of each channel, or,
        where time is over, of the farthest ones."""
        ratios = reading.ratios.reshape(-1)
        settled = ratios <= SETTLED
        if settled.all():
            return reading
        farthest = np.argsort(-ratios, kind="stable")[: (~settled).sum()]
        channels = self._channels.get((call.use.bound.task.hash, buffer), ())
        if channels:
            _, first = np.unique(reading.index[channels[0]][farthest], return_index=True)
            farthest = farthest[np.sort(first)]
        asked = farthest[: FARTHEST if self._late or not channels else None]
        settled[asked] = True
        kept = reading.at(np.flatnonzero(settled))
        extra = np.broadcast_to(kept.extra, kept.ratios.shape).copy()
        more = kept.ratios > SETTLED
        extra[more] += self._more_rounding(call, buffer, tuple(i[more] for i in kept.index), compiled)
        return replace(kept, extra=extra)

    @property
    def _late(self) -> bool:
        return self.work > self._budget

    @cached_property
    def _budget(self) -> float:
        """Of operations on one element: more for more kernels, as compilation takes longer for these too."""
        kernels = {bound.task.hash for bound in self.blueprint.program.kernels}
        return min(self.effort.work, max(LEAST_WORK, self.effort.kernel_work * len(kernels)))

    def _constants(self, call: KernelCall) -> dict[str, Array]:
        """What the Task's constants hold, in logical shape."""
        program, bound = call.use.program, call.use.bound
        return {b: constant_of(program, call.placed(b)) for b in bound.task.constants}

    def _more_rounding(self, call: KernelCall, buffer: str, index: tuple[Array, ...], compiled: Scheduled) -> Array:
        """How far a right kernel by minimal filtering or Strassen's products may be off: by the derived Blocks."""
        task = call.use.bound.task
        names = {own.name: canonical.name for own, canonical in zip(task.buffers, compiled.task.buffers, strict=True)}
        derived = compiled.derived
        arrays = {names[b]: logical(derived.buffer(names[b]), data) for b, data in call.read_bytes.items()}
        for b, data in self._constants(call).items():
            anew = constant_data(compiled.task, compiled.candidate.stages, names[b], data)
            arrays[names[b]] = anew.reshape(derived.buffer(names[b]).shape)
        elements = len(call.wrote_bytes[buffer]) // DTYPES[call.placed(buffer).dtype].itemsize
        at = index_in(call.placed(buffer), derived.buffer(names[buffer]), elements, index)
        narrow = self._multiplied(call.use.bound)
        return np.asarray(self._evaluated(of_task(derived, arrays, narrow), 1 << 28, names[buffer], at).bound)


def _with_range(verdict: Verdict) -> Verdict:
    """The verdict on a kernel in float16, which says so where what overflowed is wrong."""
    return replace(verdict, sentence=f"{verdict.sentence}; {OUT_OF_RANGE}") if verdict.beyond else verdict


def _rounds_otherwise(compiled: Scheduled) -> bool:
    """Whether a kernel is by minimal filtering or Strassen's products."""
    return rounding_error(compiled.task, compiled.candidate.stages) > 0


def constant_of(program: Program, placed: Placed) -> Array:
    """The data of a constant, or of a view of one."""
    data = program.constants[placed.root]
    if not placed.is_view and placed.strides is None:
        return data.reshape(placed.shape)
    flat = np.asarray(data, order="C").reshape(-1)
    return logical(placed, flat[placed.offset : placed.offset + placed.elements].tobytes())


def _random_channels(channel: int, array: Array, rng: np.random.Generator) -> Array:
    return rng.integers(0, array.shape[channel], SOME_CHANNELS)


def _depth(task: Task) -> int:
    """How many terms the longest sum of a Task has."""
    blocks = (block for block in task.blocks if isinstance(block, Block))
    return max((prod(it.extent for it in block.reduction) for block in blocks), default=1)


def _tiles(task: Task, compiled: Scheduled, buffer: str, rank: int) -> list[list[int]]:
    """Sizes of tiles along each dimension of an output: those of the iterators that its Blocks write it by."""
    names = {own.name: canonical.name for own, canonical in zip(task.buffers, compiled.task.buffers, strict=True)}
    tiles: list[list[int]] = [[] for _ in range(rank)]
    for block in compiled.derived.blocks:
        schedule = compiled.candidate.blocks.get(block.name)
        for write in getattr(block, "writes", ()):
            if write.buffer == names[buffer] and schedule is not None and len(write.indices) == rank:
                for d, index in enumerate(write.indices):
                    tiles[d] += schedule.tiles.get(str(index), ())
    return tiles
