"""Every kernel of a package by itself. A package is run while it is watched, and of each kernel is asked:

    constants    are they the model's, all of them (constants.py)?
    schedule     do its Tasks mean what the imported nodes mean, in float64 (schedule.py)? Once for each Task
    machine      did it write, of what it really read, the numbers that its Nest makes in its dtypes and order
                 (machine.py)? Of each call, on samples; those that are nearest to the meaning in float64 are right

What a kernel reads has to be, bit for bit, what was written there before. How far rounding takes a kernel decides
nothing: roundings of like numbers are not independent, and two ways to compute the same round differently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from modelc.forks import cores, shared
from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES
from modelc.ir.program import BoundTask, Program
from modelc.package import Package
from modelc.package.spec import Plan
from modelc.runtime.files import PARAMS
from modelc.verify.compare import differences, unsettled
from modelc.verify.kernels.blueprint import Blueprint, Scheduled
from modelc.verify.kernels.calls import KernelCall, Use
from modelc.verify.kernels.computed import MACHINE_POINTS, Kernels
from modelc.verify.kernels.constants import wrong_constants, wrongly_imported
from modelc.verify.kernels.inverse import CannotSay
from modelc.verify.kernels.machine import Machine
from modelc.verify.kernels.meaning import Imported, channels_of, every_graph
from modelc.verify.kernels.memory import ExpectedMemory
from modelc.verify.kernels.reading import UNEXPLAINED, Explanation, Reading
from modelc.verify.kernels.report import KernelReport, Silence
from modelc.verify.kernels.room import room
from modelc.verify.kernels.rounding import PLACES
from modelc.verify.kernels.samples import Effort, chosen, for_tables, telling
from modelc.verify.kernels.schedule import Cut, Scheduling
from modelc.verify.kernels.stored import in_model

Array = NDArray[Any]
LANES = 4  # of kernels, that are judged at the same time at most
WAITING_BYTES = 1 << 29  # of calls that wait to be judged
LEAST_SHARED_BYTES = 1 << 20  # of those that several processes judge
FEW = Effort(
    positions=4, samples=1 << 11, operands=1 << 16, points=1 << 24, calls=1, work=0, kernel_work=0
)  # of later runs, and of a kernel that was judged in another place
FEWEST = replace(FEW, positions=1, samples=1 << 9, operands=1 << 14)  # where time is over
MOST_DEPARTING = 1 << 9  # numbers that stand for a value which is near in the whole model
DEPARTING = 1 << 12  # numbers that depart from another engine's, which are judged: the farthest, and as many others
DEPARTING_TERMS = 1 << 21  # that these numbers may have in all, where that leaves MOST_DEPARTING
LEAST_WORK = 1.2e7  # that all kernels of a package may take, however few they are
JUDGED_RUNS = 2  # in which kernels are judged while there is time; in later ones for half of it
SOME_CHANNELS = 16  # are looked at in the second run beside those that never varied in the first, and of equal kernels
# where time is over


@dataclass
class Lane:
    """Kernels that are judged one after the other, those of equal Tasks in the same lane: `work` is what that took so
    far, `share` what they may take of all that is allowed. Lanes do not depend on how many processes there are."""

    share: float = 0.0
    work: float = 0.0
    first: dict[str, int] = field(default_factory=dict)  # by a Task's hash, the BoundTask judged first: its identity
    traced: set[tuple[int, str]] = field(default_factory=set)  # outputs of BoundTasks, by their identity


@dataclass
class Judge:
    """Judges calls of kernels of one variant, in as many runs as it is told of."""

    blueprint: Blueprint
    effort: Effort
    seed: int = 0
    reports: dict[tuple[str, str], KernelReport] = field(default_factory=dict)  # by the names of Program and Task
    runs: int = 0
    _graphs: list[Imported] = field(default_factory=list)
    _given: dict[str, Array] = field(default_factory=dict)  # the model's values so far
    _usable: dict[str, Array | None] = field(default_factory=dict)  # those as the model has them, if asked for
    _writers: dict[str, tuple[KernelCall, str]] = field(default_factory=dict)  # of those that kernels wrote
    _assembled: dict[str, tuple[BoundTask, Array]] = field(default_factory=dict)  # read whole, and written in parts
    _bytes: int = 0
    _room: int = 0  # of values that kernels wrote, for what is made of values that are none of the model's
    _memories: dict[int, ExpectedMemory] = field(default_factory=dict)  # by the Program's identity
    _channels: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    _compared: bool = False  # whether all constants of the package were
    _lanes: list[Lane] = field(default_factory=list)
    _lane: Lane = field(default_factory=Lane)  # that is judged
    _waiting: list[tuple[KernelCall, KernelReport]] = field(default_factory=list)  # calls to be judged
    _waiting_bytes: int = 0
    _schedulings: dict[int, Scheduling] = field(default_factory=dict)  # by the Program's identity
    _evicted: bool = False  # whether a value of the last run is there no more

    def __post_init__(self) -> None:
        self.kernels = Kernels(self.blueprint, self.effort.points)
        self._graphs = [Imported(graph) for graph in every_graph(self.blueprint.graph)]
        self._lanes = [Lane(share) for share in self._shares]

    @cached_property
    def _lane_of(self) -> dict[str, int]:
        """The lane of each Task by its hash."""
        programs = self.blueprint.program.every_program
        tasks = dict.fromkeys(bound.task.hash for program in programs for bound in program.tasks)
        return {key: number % LANES for number, key in enumerate(tasks)}

    @property
    def _shares(self) -> list[float]:
        """What each lane may take of all work."""
        counts = [list(self._lane_of.values()).count(lane) for lane in range(LANES)]
        return [count / max(1, sum(counts)) for count in counts]

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

    def look_at_constants(self, package: Package, plan: Plan, of_steps: Sequence[Sequence[Use]]) -> None:
        """Compares all constants of a package."""
        program = self.blueprint.program
        self._compared = (package.path / PARAMS).exists()
        for name, sentence in wrongly_imported(program, self.blueprint.graph):
            bound = next(bound for bound in program.tasks if name in bound.values.values())
            self._fault(program, bound, name, sentence)
        scheduled = self.blueprint.scheduled
        for where, bound, name, sentence in wrong_constants(package, plan, of_steps, scheduled):
            self._fault(where, bound, name, sentence)

    def begin(self, feed: Mapping[str, Array]) -> None:
        """A run on these inputs begins; states are none of them."""
        self.release()
        self._given, self._bytes, self._evicted, self._room = dict(feed), 0, False, room()
        self.runs += 1
        program = self.blueprint.program
        for name, array in feed.items():
            place = program.values[name] if name in program.inputs else None
            if place is not None and (place.shape, DTYPES[place.dtype]) == (array.shape, array.dtype):
                self._memory(program).write(name, array.tobytes())

    def _memory(self, program: Program) -> ExpectedMemory:
        return self._memories.setdefault(id(program), ExpectedMemory(program.values))

    def look(self, call: KernelCall) -> None:
        """Remembers what one call wrote; it is judged when the run ends, or a lot has come together."""
        bound, program = call.use.bound, call.use.program
        report = KernelReport(bound.task.name, bound.task.nodes, calls=1)
        memory = self._memory(program)
        memory.at_call(call.number)
        reads = dict(call.read_bytes)
        for buffer, data in call.read_bytes.items():
            if memory.holds(bound.values[buffer], data):
                reads[buffer] = memory.shared(bound.values[buffer], data)
            else:
                sentence = "is read as something else than what was written there before"
                report = report.with_fault(bound.values[buffer], sentence)
        call = replace(call, read_bytes=reads)
        self._waiting.append((call, report))
        self._waiting_bytes += sum(map(len, (*call.read_bytes.values(), *call.wrote_bytes.values())))
        self.remember(call)
        if self._waiting_bytes > WAITING_BYTES:
            self.judge_waiting()

    def judge_waiting(self) -> None:
        """Judges all calls that wait for it, by several processes where they are many."""
        processes = cores() if self._waiting_bytes > LEAST_SHARED_BYTES else 1
        made: dict[tuple[str, str], KernelReport] = {}
        for number, (lane, reports) in shared(self._judged, range(LANES), processes):
            self._lanes[number] = lane
            made |= reports
        for call, _ in self._waiting:  # in the order of execution
            key = _key(call)
            self.reports[key] = made[key]
        self._waiting, self._waiting_bytes = [], 0

    def _judged(self, number: int) -> tuple[Lane, dict[tuple[str, str], KernelReport]]:
        """A lane after its calls of those that wait, and the reports on its kernels."""
        self._lane = lane = self._lanes[number]
        self.kernels.work, allowed = lane.work, self._budget / (1 if self.runs <= JUDGED_RUNS else 2)
        made: dict[tuple[str, str], KernelReport] = {}
        for call, report in self._waiting:
            task, key = call.use.bound.task, _key(call)
            if self._lane_of[task.hash] != number:
                continue
            previous = made.get(key, self.reports.get(key))
            if previous is None or self.kernels.work < allowed:
                with np.errstate(all="ignore"):
                    for buffer in task.outputs:
                        report = self._output(call, buffer, report, previous)
            made[key] = report if previous is None else previous.joined(report)
        lane.work = self.kernels.work
        return lane, made

    def not_run(self, use: Use, buffer: str) -> None:
        """A kernel did not run that had to."""
        self._fault(use.program, use.bound, use.bound.values[buffer], "was not computed: its kernel did not run")

    def end(self, outputs: Mapping[str, Array]) -> None:
        """A run has ended with these outputs, which have to be what kernels wrote there."""
        self.judge_waiting()
        program = self.blueprint.program
        memory = self._memory(program)
        writers = {program.values[name].root: bound for bound in program.tasks for name in bound.outputs}
        for name, array in outputs.items():
            writer = writers.get(program.values[name].root) if name in program.values else None
            if writer is None:
                continue
            shape = program.values[name].shape
            if shape == array.shape:
                stays = memory.holds(name, array.tobytes())
            else:  # data says how much there is of it
                fits = len(shape) == array.ndim and all(n <= most for n, most in zip(array.shape, shape, strict=True))
                stays = not fits or memory.begins_with(name, array)
            if not stays:
                self._fault(program, writer, name, "is something else at the end of the run than what was written")

    def release(self) -> None:
        """Forgets the values of the last run."""
        self._given, self._writers, self._assembled, self._usable, self._memories = {}, {}, {}, {}, {}

    def _fault(self, program: Program, bound: BoundTask, value: str, sentence: str) -> None:
        key = (program.name, bound.task.name)
        report = self.reports.get(key, KernelReport(bound.task.name, bound.task.nodes))
        self.reports[key] = report.with_fault(value, sentence)

    def remember(self, call: KernelCall) -> None:
        """Takes what one call wrote for what is there from now on."""
        bound, program = call.use.bound, call.use.program
        memory = self._memory(program)
        for buffer, data in call.wrote_bytes.items():
            memory.write(bound.values[buffer], data)
            if program is self.blueprint.program:
                self._remember(call, buffer, call.wrote[buffer])
        if program is self.blueprint.program:
            for buffer, array in call.read.items():
                name = bound.values[buffer]
                new = name in self.blueprint.graph.values and name not in self._given.keys() | self._assembled.keys()
                if new and self._bytes + array.nbytes <= self._room:
                    self._assembled[name] = bound, array
                    self._bytes += array.nbytes
        memory.forget(self._last_reads.get(id(bound), ()))

    def _remember(self, call: KernelCall, buffer: str, array: Array) -> None:
        name = call.use.bound.values[buffer]
        if name in self.blueprint.graph.values:
            self._given[name], self._writers[name] = array, (call, buffer)
            self._usable.pop(name, None)
            self._bytes += array.nbytes
            while self._bytes > self._room:
                oldest = next(iter(self._writers))
                del self._writers[oldest]
                self._bytes -= self._given.pop(oldest).nbytes
                self._usable.pop(oldest, None)
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

    def explains(self, name: str, theirs: Array, whole: bool = True) -> Explanation:
        """What is known of the elements of a value of the last run that depart from `theirs`, another engine's, beyond
        roundoff: of those of the `whole` value, or of a few; where there are many, of those that depart most and of
        some of the others."""
        call, buffer = self._writers[name]
        ours = in_model(self._given[name], self.blueprint.graph.values[name], self.blueprint.graph)
        if ours is None or any(n < m for n, m in zip(ours.shape, theirs.shape, strict=True)):
            return UNEXPLAINED
        ours = ours[tuple(slice(m) for m in theirs.shape)]
        departing = np.flatnonzero(unsettled(ours, theirs))
        apart = differences(ours.reshape(-1)[departing], theirs.reshape(-1)[departing])
        departing = departing[np.argsort(-apart, kind="stable")]  # the farthest first
        fitting = min(DEPARTING, DEPARTING_TERMS // _depth(call.use.bound.task))
        most = max(MOST_DEPARTING, fitting if whole else 0)
        others = departing[most :: max(1, departing.size // most)][: most * whole]
        pieces = [np.sort(piece) for piece in (departing[:most], others)]
        indices = [np.unravel_index(piece, theirs.shape) if theirs.shape else () for piece in pieces]
        with np.errstate(all="ignore"):
            if not all(self._is_computed(call, buffer, index) for index in indices):
                return UNEXPLAINED
            rounded = [self._is_rounded(call, buffer, index, theirs) for index in indices]
            return Explanation(True, False if False in rounded else None if None in rounded else True)

    def _is_computed(self, call: KernelCall, buffer: str, index: tuple[Array, ...]) -> bool:
        """Whether all that a call wrote at `index` is what its kernel computes."""
        try:
            verdict = self.kernels.verdict(call, buffer, index, computed=DEPARTING)
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
            expected = self.kernels.evaluated(
                cut.by_model(machine), call.use.bound.values[buffer], index, MACHINE_POINTS
            )
        except CannotSay:
            return None
        verdict = Reading(theirs[index], expected, index).verdict
        return False if verdict.worst > 1 else None if verdict.open else True

    def judged_wholly(self, confirmed: Collection[str] = ()) -> str:
        """Why some element of some kernel of the last run was not judged; "" where all were. All elements of the
        `confirmed` values of the model are another engine's, or explained()."""
        if self._evicted:
            return f"what kernels wrote takes more than {self._room >> 30} GiB"
        for report in self.reports.values():
            for name, reason in report.unjudged.items():
                if name in self.blueprint.graph.values and name not in confirmed:
                    return f"kernel {report.kernel} could not be judged: {reason}"
        return ""

    @property
    def right(self) -> bool:
        """Whether every kernel was judged, and is right."""
        return all(report.passed and not report.unjudged for report in self.reports.values())

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
        rng = np.random.default_rng((self.seed, call.number, self.runs, crc32("\0".join(_key(call)).encode())))
        first = self._lane.first.get(task.hash)
        is_again = self._compared and first not in (None, id(bound))  # the same code, on constants that are right
        effort = FEWEST if self._late else FEW if is_again else for_tables(self.effort, task)
        subset = None
        if previous is not None and self.runs > 1 and channels:
            silence = previous.silences.get(name)
            silent = np.zeros(0, np.int64) if silence is None else silence.channels
            subset, effort = np.union1d(silent, _random_channels(channels[0], ours, rng)), FEW
        elif channels and (is_again or (self._late and first is not None)):
            subset = np.unique(_random_channels(channels[0], ours, rng))
        tiles, depth = _tiles(task, compiled, buffer, ours.ndim), _depth(task)
        index = chosen(ours.shape, channels, tiles, effort, rng, depth, subset)
        if subset is None and channels and len(index[0]) < ours.size and ours.shape[channels[0]] <= effort.samples:
            more = telling(ours, channels[0], effort, rng, depth)
            index = tuple(np.concatenate(pair) for pair in zip(index, more, strict=True))
        try:
            verdict = self.kernels.verdict(call, buffer, index)
        except CannotSay as reason:
            report = report.without(name, str(reason))
        else:
            report = report.with_verdict(name, verdict)
        if (id(bound), buffer) not in self._lane.traced:
            self._lane.traced.add((id(bound), buffer))
            few = chosen(ours.shape, channels, tiles, FEWEST if self._late or is_again else FEW, rng, depth)
            report = self._traced_to_model(call, buffer, few, report)
        self._lane.first.setdefault(task.hash, id(bound))
        return report

    # --- is the schedule the model? ---------------------------------------------------------------------------------

    def _cut(self, call: KernelCall, buffer: str) -> Cut | None:
        """Where the model is cut before what a call wrote to `buffer`: at the values that kernels read and wrote; None
        where it is none of the model's."""
        name = call.use.bound.values[buffer]
        imported = next((g for g in self._graphs if name in g.producers), None)
        if imported is None:
            return None
        given = dict(self._given) if imported is self._graphs[0] else {}
        given |= {call.use.bound.values[b]: array for b, array in call.read.items()}
        for output in call.wrote:
            given.pop(call.use.bound.values[output], None)
        usable = {n: there for n, x in given.items() if (there := self._of_model(n, x, imported)) is not None}
        read = {call.use.bound.values[b] for b in call.read}
        narrow = self.kernels.multiplied(call.use.bound)
        if not self.kernels.rounded.isdisjoint(read - usable.keys()):  # kernels before this one are evaluated too
            narrow = narrow or self.kernels.narrow
        return Cut(imported, usable, {n: given[n] for n in usable}, narrow)

    def _of_model(self, name: str, stored: Array, imported: Imported) -> Array | None:
        """What is stored of a value as the model has it; None where it is none of the model's."""
        if imported is not self._graphs[0] or self._given.get(name) is not stored:
            return _of_model(name, stored, imported)
        if name not in self._usable:
            self._usable[name] = _of_model(name, stored, imported)
        return self._usable[name]

    def _traced_to_model(
        self, call: KernelCall, buffer: str, index: tuple[Array, ...], report: KernelReport
    ) -> KernelReport:
        """The report with what the Tasks mean beside the imported nodes; as it is where the value is none of the
        model's, or cannot be traced to values that are."""
        cut, name, program = self._cut(call, buffer), call.use.bound.values[buffer], call.use.program
        if cut is None:
            return report
        scheduling = self._schedulings.setdefault(id(program), Scheduling(program, cut.imported.graph))
        try:
            sentence = scheduling.departure(cut, name, index, self.kernels.evaluated)
        except CannotSay:
            return report
        report = report.traced(name)
        return report.with_fault(name, sentence) if sentence else report

    @property
    def _late(self) -> bool:
        return self.kernels.work > self._budget

    @property
    def _budget(self) -> float:
        """Of operations on one element, that the lane may take."""
        return self._lane.share * self._allowed

    @cached_property
    def _allowed(self) -> float:
        """Those of all lanes: more for more kernels, as compilation takes longer for these too."""
        kernels = {bound.task.hash for bound in self.blueprint.program.kernels}
        return min(self.effort.work, max(LEAST_WORK, self.effort.kernel_work * len(kernels)))


def _key(call: KernelCall) -> tuple[str, str]:
    """Of the report on a kernel."""
    return call.use.program.name, call.use.bound.task.name


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
