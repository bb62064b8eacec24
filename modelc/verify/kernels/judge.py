"""Every kernel of a package by itself. A package is run while it is watched, and of each kernel is asked:

    constants    are they the model's, all of them (constants.py)?
    schedule     do its Tasks mean what the imported nodes mean, in float64 (schedule.py)? Once for each Task
    machine      did it write, of what it really read, the numbers that its Nest makes in its dtypes and order
                 (machine.py)? Of each call, on samples; those that are nearest to the meaning in float64 are right

What a kernel reads has to be, bit for bit, what was written there before. How far rounding takes a kernel decides
nothing: roundings of like numbers are not independent, and two ways to compute the same round differently.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES
from modelc.ir.program import BoundTask, Placed, Program
from modelc.package.spec import Plan
from modelc.package.watch import Data, Watched
from modelc.partition.half_sums import half_sum
from modelc.partition.precision import rounded_values
from modelc.space.rules.derivation import constant_data, rounding_error
from modelc.verify.kernels.blueprint import Blueprint, Scheduled
from modelc.verify.kernels.calls import Phases, Row, Use, looked_at
from modelc.verify.kernels.constants import wrong_constants, wrongly_imported
from modelc.verify.kernels.demand import Definitions, Evaluator
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.machine import Machine
from modelc.verify.kernels.meaning import ROUNDOFF, Imported, channels_of, every_graph, of_task
from modelc.verify.kernels.reading import UNEXPLAINED, Explanation, Reading, Verdict, beyond_roundoff
from modelc.verify.kernels.report import OUT_OF_RANGE, KernelReport, Silence
from modelc.verify.kernels.rounding import FINE, PLACES, Analysis, Rounded, is_float
from modelc.verify.kernels.samples import Effort, chosen, telling
from modelc.verify.kernels.schedule import Scheduling, disagreement
from modelc.verify.kernels.shadow import Shadow
from modelc.verify.kernels.stored import constant_of, elements_in_model, in_model, index_in, logical

Array = NDArray[Any]
REMEMBERED_BYTES = 1 << 30  # of values that kernels wrote, for what is made of values that are none of the model's
FEW = Effort(
    positions=4, samples=1 << 11, operands=1 << 16, points=1 << 24, calls=1, work=0, kernel_work=0
)  # where transforms have to be evaluated, and of later runs
FEWEST = replace(FEW, positions=1, samples=1 << 9, operands=1 << 14)  # where time is over
NEAR = 1.0  # standard deviations of roundings from the meaning in float64: of what is farther the machine is asked
COMPUTED, ALWAYS = 256, 16  # samples that are computed as the kernel computes them: the farthest; at least
TRANSFORMED = 8  # times as few of a kernel whose transforms are computed with each
MACHINE_POINTS = 1 << 28
DEPARTING = 1 << 12  # numbers that depart from another engine's, which are judged at a time
LEAST_WORK = 1.2e7  # that all kernels of a package may take, however few they are
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


@dataclass(frozen=True)
class _Cut:
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
        return self.imported.definitions(self.values, analysis, ROUNDOFF.get(self.narrow, 0.0))


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
    _assembled: dict[str, tuple[BoundTask, Array]] = field(default_factory=dict)  # read whole, and written in parts
    _bytes: int = 0
    _shadows: dict[int, Shadow] = field(default_factory=dict)  # by the Program's identity
    _channels: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    _judged: set[str] = field(default_factory=set)  # hashes of Tasks
    _traced: set[tuple[int, str]] = field(default_factory=set)  # outputs of BoundTasks, by their identity
    _schedulings: dict[int, Scheduling] = field(default_factory=dict)  # by the Program's identity
    _evicted: bool = False  # whether a value of the last run is there no more

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

    def look_at_constants(self, folder: Path, plan: Plan, of_steps: Sequence[Sequence[Use]]) -> None:
        """Compares all constants of the package in `folder`."""
        program = self.blueprint.program
        for name, sentence in wrongly_imported(program, self.blueprint.graph):
            bound = next(bound for bound in program.tasks if name in bound.values.values())
            self._fault(program, bound, name, sentence)
        for where, bound, name, sentence in wrong_constants(folder, plan, of_steps, self.blueprint.scheduled):
            self._fault(where, bound, name, sentence)

    def begin(self, feed: Mapping[str, Array]) -> None:
        """A run on these inputs begins; states are none of them."""
        self._given, self._writers, self._assembled, self._bytes, self._shadows = dict(feed), {}, {}, 0, {}
        self._evicted = False
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
                    self._assembled[name] = bound, array
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
                self._evicted = True

    def written(self) -> dict[str, tuple[BoundTask, Array]]:
        """The model's values that kernels wrote in the last run, as the model has them."""
        values: dict[str, tuple[BoundTask, Array]] = {}
        for name, (call, _) in self._writers.items():
            array = in_model(self._given[name], self.blueprint.graph.values[name], self.blueprint.graph)
            if array is not None:
                values[name] = (call.use.bound, array)
        return values

    def assembled(self) -> dict[str, tuple[BoundTask, Array]]:
        """The model's values that kernels read in the last run, and none wrote as a whole, as the model has them, and
        who read them first."""
        values: dict[str, tuple[BoundTask, Array]] = {}
        for name, (bound, stored) in self._assembled.items():
            array = in_model(stored, self.blueprint.graph.values[name], self.blueprint.graph)
            if array is not None:
                values[name] = bound, array
        return values

    def explains(self, name: str, theirs: Array) -> Explanation:
        """What is known of each element of a value of the last run that departs from `theirs`, another engine's, beyond
        roundoff."""
        call, buffer = self._writers[name]
        ours = in_model(self._given[name], self.blueprint.graph.values[name], self.blueprint.graph)
        if ours is None or any(n < m for n, m in zip(ours.shape, theirs.shape, strict=True)):
            return UNEXPLAINED
        departing = np.flatnonzero(beyond_roundoff(ours[tuple(slice(m) for m in theirs.shape)], theirs).reshape(-1))
        pieces = [departing[k : k + DEPARTING] for k in range(0, departing.size, DEPARTING)]
        indices = [np.unravel_index(piece, theirs.shape) if theirs.shape else () for piece in pieces]
        with np.errstate(all="ignore"):
            if not all(self._is_computed(call, buffer, index) for index in indices):
                return UNEXPLAINED
            rounded = [self._is_rounded(call, buffer, index, theirs) for index in indices]
            return Explanation(True, False if False in rounded else None if None in rounded else True)

    def _is_computed(self, call: KernelCall, buffer: str, index: tuple[Array, ...]) -> bool:
        """Whether all that a call wrote at `index` is what its kernel computes."""
        try:
            verdict = self.verdict(call, buffer, index, computed=DEPARTING)
        except CannotSay:
            return False
        return verdict.worst <= 1 and not verdict.open

    def _is_rounded(self, call: KernelCall, buffer: str, index: tuple[Array, ...], theirs: Array) -> bool | None:
        """Whether another engine's numbers at `index` are within what rounding leaves of the imported nodes; None where
        nothing can be told."""
        cut = self._cut(call, buffer)
        if cut is None:
            return None
        machine = Machine(PLACES, cut.analysis.short, cut.analysis.halves, contracted=False)
        try:
            expected = self._evaluated(cut.by_model(machine), MACHINE_POINTS, call.use.bound.values[buffer], index)
        except CannotSay:
            return None
        verdict = Reading(theirs[index], expected, index).verdict
        return False if verdict.worst > 1 else None if verdict.open else True

    def judged_wholly(self, confirmed: Collection[str] = ()) -> str:
        """Why some element of some kernel of the last run was not judged; "" where all were. All elements of the
        `confirmed` values of the model are another engine's, or explained()."""
        if self._evicted:
            return f"what kernels wrote takes more than {REMEMBERED_BYTES >> 30} GiB"
        for report in self.reports.values():
            for name, reason in report.unjudged.items():
                if name in self.blueprint.graph.values and name not in confirmed:
                    return f"kernel {report.kernel} could not be judged: {reason}"
        return ""

    @property
    def doubted(self) -> frozenset[str]:
        """The values whose numbers are not those that their kernels should compute."""
        return frozenset(name for report in self.reports.values() for name in report.numbers)

    def clear(self, settled: Collection[str]) -> None:
        """The `settled` values are another engine's to roundoff: whatever was said of their numbers, they are right."""
        for key, report in self.reports.items():
            for name in (name for name in report.numbers if name in settled):
                self.reports[key] = report = report.cleared(name)

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
        effort = FEWEST if self._late else self.effort
        subset = None
        if previous is not None and self.runs > 1 and channels:
            silence = previous.silences.get(name)
            silent = np.zeros(0, np.int64) if silence is None else silence.channels
            subset, effort = np.union1d(silent, _random_channels(channels[0], ours, rng)), FEW
        elif self._late and channels and task.hash in self._judged:
            subset = np.unique(_random_channels(channels[0], ours, rng))
        tiles, depth = _tiles(task, compiled, buffer, ours.ndim), _depth(task)
        index = chosen(ours.shape, channels, tiles, effort, rng, depth, subset)
        if subset is None and channels and len(index[0]) < ours.size and ours.shape[channels[0]] <= effort.samples:
            more = telling(ours, channels[0], effort, rng, depth)
            index = tuple(np.concatenate(pair) for pair in zip(index, more, strict=True))
        try:
            verdict = self.verdict(call, buffer, index)
        except CannotSay as reason:
            report = report.without(name, str(reason))
        else:
            report = report.with_verdict(name, verdict)
        if (id(bound), buffer) not in self._traced:
            self._traced.add((id(bound), buffer))
            few = chosen(ours.shape, channels, tiles, FEWEST if self._late else FEW, rng, depth)
            report = self._traced_to_model(call, buffer, few, report)
        self._judged.add(task.hash)
        return report

    # --- is the machine code the schedule? ------------------------------------------------------------------------

    def verdict(
        self,
        call: KernelCall,
        buffer: str,
        index: tuple[Array, ...],
        numbers: Array | None = None,
        computed: int = COMPUTED,
    ) -> Verdict:
        """What `call` wrote to `buffer` at `index`, or other `numbers` for it, against its Task. Numbers that are not
        near what the Task means in float64 are `computed` as the kernel computes them, so many of the farthest. Raises
        CannotSay."""
        task, ours = call.use.bound.task, call.wrote[buffer] if numbers is None else numbers
        arrays = {**call.read, **self._constants(call)}
        analysis = self._analysis(call.use.bound)
        meaning = self._evaluated(of_task(task, arrays, analysis), self.effort.points, buffer, index)
        reading = Reading(ours[index], meaning, index, spread=NEAR)
        ratios = np.where(reading.open, np.inf, reading.ratios.reshape(-1))
        order = np.argsort(-ratios, kind="stable")
        compiled = self.blueprint.scheduled[task.hash]
        if rounding_error(compiled.task, compiled.candidate.stages):
            computed //= TRANSFORMED
        asked = order[: min(computed, max(ALWAYS, int((ratios > 1).sum())))]
        narrow = self._multiplied(call.use.bound)
        by_machine = self._by_machine(call, buffer, reading.at(asked))
        verdict = replace(by_machine.verdict, samples=int(ratios.size - by_machine.open.sum()))
        if reading.verdict.beyond:  # whatever the kernel's arithmetic makes of it: what it means is in range
            verdict = replace(verdict, worst=np.inf, sentence=reading.verdict.sentence, beyond=True)
        return _with_range(verdict) if narrow == "float16" else verdict

    def _by_machine(self, call: KernelCall, buffer: str, reading: Reading) -> Reading:
        """The reading beside the numbers that the kernel's arithmetic gives: its derived Blocks, in the order of its
        loops. The products that a loop adds up may be contracted or not, and where loops are cut each may be either."""
        compiled = self.blueprint.scheduled[call.use.bound.task.hash]
        analysis = self._analysis(call.use.bound)
        readings = []
        for contracted in (True, False, None):
            machine = Machine(PLACES, analysis.short, analysis.halves, contracted)
            expected = self._derived(call, buffer, reading.index, compiled, machine)
            readings.append(replace(reading, expected=expected, spread=0.0))
            if readings[-1].verdict.worst <= 1:
                break
        return min(readings, key=lambda r: r.verdict.worst)

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
        return self._evaluated(definitions, MACHINE_POINTS, names[buffer], at)

    def _analysis(self, bound: BoundTask) -> Analysis:
        """The arithmetic of a Task's kernel."""
        return Analysis(PLACES, self._multiplied(bound) == "bfloat16", half_sum(bound.task) is not None)

    # --- is the schedule the model? ---------------------------------------------------------------------------------

    def _cut(self, call: KernelCall, buffer: str) -> _Cut | None:
        """Where the model is cut before what a call wrote to `buffer`: at the values that kernels read and wrote; None
        where it is none of the model's."""
        name = call.use.bound.values[buffer]
        imported = next((g for g in self._graphs if name in g.computed), None)
        if imported is None:
            return None
        given = dict(self._given) if imported is self._graphs[0] else {}
        given |= {call.use.bound.values[b]: array for b, array in call.read.items()}
        for output in call.wrote:
            given.pop(call.use.bound.values[output], None)
        usable = {n: there for n, x in given.items() if (there := _of_model(n, x, imported)) is not None}
        read = {call.use.bound.values[b] for b in call.read}
        narrow = self._multiplied(call.use.bound)
        if not self.rounded.isdisjoint(read - usable.keys()):  # kernels before this one are evaluated too
            narrow = narrow or self._narrow
        return _Cut(imported, usable, {n: given[n] for n in usable}, narrow)

    def _traced_to_model(
        self, call: KernelCall, buffer: str, index: tuple[Array, ...], report: KernelReport
    ) -> KernelReport:
        """The report with what the Tasks mean beside the imported nodes; as it is where the value is none of the
        model's, or cannot be traced to values that are."""
        cut, name, program = self._cut(call, buffer), call.use.bound.values[buffer], call.use.program
        if cut is None:
            return report
        graph = cut.imported.graph
        value = graph.values[name]
        if len(value.shape) != call.wrote[buffer].ndim:
            return report
        inside = np.logical_and.reduce([i < n for i, n in zip(index, value.shape, strict=True)]) if index else None
        index = tuple(i[inside] for i in index) if index else ()
        scheduling = self._schedulings.setdefault(id(program), Scheduling(program, graph))
        try:
            model = self._evaluated(cut.by_model(cut.analysis), self.effort.points, name, index)
            by_tasks = scheduling.definitions(cut.stored, cut.analysis)
            schedule = self._evaluated(by_tasks, self.effort.points, name, index)
        except CannotSay:
            return report
        if not is_float(schedule.dtype):
            whole = elements_in_model(schedule.value.astype(DTYPES[schedule.dtype]), value, graph)
            if whole is None:
                return report
            schedule = replace(schedule, value=whole)
        sentence = disagreement(schedule, model, index)
        if sentence is not None and cut.narrow == "float16" and not np.isfinite(schedule.value).all():
            sentence = f"{sentence}; {OUT_OF_RANGE}"
        report = report.traced(name)
        return report if sentence is None else report.with_fault(name, sentence)

    def _evaluated(self, definitions: Definitions, points: int, buffer: str, index: tuple[Array, ...]) -> Rounded:
        evaluator = Evaluator(definitions, points)
        try:
            return evaluator.elements(buffer, index)
        finally:
            self.work += evaluator.work

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


def _with_range(verdict: Verdict) -> Verdict:
    """The verdict on a kernel in float16, which says so where what overflowed is wrong."""
    return replace(verdict, sentence=f"{verdict.sentence}; {OUT_OF_RANGE}") if verdict.beyond else verdict


def _of_model(name: str, stored: Array, imported: Imported) -> Array | None:
    """What is stored of a value as the model has it; None where it is none of the model's."""
    value = imported.graph.values.get(name)
    return None if value is None or value.data is not None else in_model(stored, value, imported.graph)


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
