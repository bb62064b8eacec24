"""Whether a package is right (docs/verify.md).

imported    the constants of the imported model are those of its file (kernels/imported.py)
kernels     every kernel by itself computes, from what it really read, what it means (kernels/)
whole       every output is near ONNX Runtime's: within `rtol` and `atol`; what went through bfloat16 or float16, or by
            fewer multiplications, as a whole (whole.py)
witness     where an output is not near and all kernels are right, each is compared with ONNX Runtime's piece of the
            model on the same inputs (witness.py): if every element agrees or was judged, the model amplifies what
            rounding leaves
as_used     the same bits as users run it: unwatched, again and again, in every setting (as_used.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.errors import VerificationError
from modelc.frontend.steering.unread import index_inputs, unread_rows
from modelc.frontend.steering.uses import read_uses
from modelc.ir.sizes import Sizes
from modelc.package import Package, at_sizes, emulated, read_package
from modelc.package.watch import Watch, Watched
from modelc.verify.as_used import JudgedRuns, as_used
from modelc.verify.check import (
    Arrays,
    Carried,
    Runner,
    check_inputs,
    declines,
    drawn_for_variants,
    is_behind,
    not_run_note,
    variant_of,
    without_constants,
)
from modelc.verify.compare import ATOL, BF16, F16, RTOL, Tolerance, distance
from modelc.verify.engine import EngineError
from modelc.verify.kernels.blueprint import Blueprint
from modelc.verify.kernels.calls import Row, calls_of, rows_of, uses_by_step
from modelc.verify.kernels.imported import taken_over
from modelc.verify.kernels.judge import Judge
from modelc.verify.kernels.reading import BOTH_RIGHT, Explanation
from modelc.verify.kernels.samples import EFFORTS, Effort
from modelc.verify.narrow import narrow_outputs
from modelc.verify.pieces import Limits, Written
from modelc.verify.reference import Reference, fixed_inputs
from modelc.verify.report import NAMED, Report
from modelc.verify.saturation import saturation
from modelc.verify.whole import Whole, moved_runs
from modelc.verify.witness import Witnessed, compare_pieces

SAMPLES = 2


def verify_outputs(
    package: str | Path,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    samples: int = SAMPLES,
    rtol: float = RTOL,
    atol: float = ATOL,
    bf16: Tolerance = BF16,
    f16: Tolerance = F16,
    every_variant: bool = False,
    blueprints: Sequence[Blueprint] = (),
    check: str = "default",
    per_layer: bool = False,
    brief: bool = False,
    say: Callable[[str], None] = lambda text: None,
    runs: Sequence[Sizes] = (),
    feeds: Sequence[Arrays] = (),
) -> Report:
    """Runs both on `inputs`, or on `samples` drawn inputs for every variant of the package; with `every_variant`, the
    others than that of `inputs` are not left out. What was fixed of the model's inputs is given to it too. `bf16` is
    the policy for outputs computed through bfloat16, `f16` for those in float16. A package that crashes or does not end
    fails; one whose files are damaged raises PackageError, inputs that do not fit InputError. Kernels are judged by the
    `blueprints` of all variants, none where these are not known, with an effort of EFFORTS, or with a `brief` one,
    which takes a small share of the time that compiling takes; `per_layer` compares them with ONNX Runtime's pieces
    too, whether or not an output departs. `say` is told how many kernels of how many have run. A package for any size
    is one of as many variants as there are `runs`, which are on `feeds` where that is said (found.py)."""
    start = time.process_time()
    read = at_sizes(read_package(package, check=True), runs)
    if inputs is not None and not feeds:
        inputs = without_constants(fixed_inputs(read), inputs)
        check_inputs(read, inputs)
        given = [(variant_of(read, inputs), dict(inputs))]
    else:
        given = [*enumerate(feeds)]
    drawn_for = set(range(len(read.manifest.variants))) - {number for number, _ in given}
    behind = {number for number in drawn_for if is_behind(read, number)}
    behind = behind if behind and emulated(read) else set()
    drawn_for -= behind
    effort = EFFORTS[check] if brief else replace(EFFORTS[check], kernel_work=inf)
    effort = replace(effort, work=effort.work / len(read.manifest.variants))
    with ExitStack() as stack:
        wanted = stack.enter_context(Reference(read, model))
        narrow = narrow_outputs(read, [blueprint.program for blueprint in blueprints])
        policy = f16 if narrow.dtype == "float16" else bf16
        whole = Whole(read, wanted.path, rtol, atol, policy, narrow)
        reference = whole.reference(stack)
        inside = [_Inside.of(read, number, blueprint, effort, seed) for number, blueprint in enumerate(blueprints)]
        imported = taken_over([blueprint.graph for blueprint in blueprints], Path(model))
        failure = narrow.fault or imported.fault or None
        compared = 0
        fed_to: Iterable[tuple[int, Arrays]] = ()
        try:  # before inputs are drawn as the manifest says: it may say something else than the library
            runner = Runner(read, stack)
            fed_to = given
            if not given or every_variant:
                fed_to = chain(given, drawn_for_variants(read, model, seed, samples, drawn_for, runner.not_run))
        except VerificationError as error:
            failure = f"did not run: {error}"
        carried, judged = Carried(read), JudgedRuns(read)
        uses, indices = read_uses(model), list[Arrays]()
        indexing = index_inputs(uses)
        going = _Going(say, _expected(read, given, drawn_for if fed_to is not given else (), samples))
        variants, ran, declined, latest = dict[int, None](), set[int](), dict[int, str](), -1
        for number, feed in fed_to:
            if inside and variants and number != latest:
                inside[latest].release()
            variants[number], latest = None, number
            fed = wanted.feed({**feed, **carried.before(number)}, compared)
            compared += 1
            within = inside[number] if inside else None
            try:  # first, as it says what is out of range
                made = runner.run(number, feed, within.watch({**fed, **feed}, going) if within else None)
            except EngineError as error:
                if number not in drawn_for or not declines(read, number, str(error)):
                    raise
                declined[number] = f"did not run: {error}"
                if within is not None:
                    within.judge.judge_waiting()
                continue
            except VerificationError as error:
                failure = f"did not run: {error}"
                if within is not None:
                    within.judge.judge_waiting()
                break
            ran.add(number)
            judged.keep(number, feed, made)
            indices.append({name: array for name, array in feed.items() if name in indexing})
            going.run_ended(len(read.manifest.variants[number].steps))
            if within is not None:
                within.end(made)
            expected = reference.run(fed)
            carried.after(expected)
            if compared == 1:
                whole.notes.append(saturation(wanted.signed, fed, read.manifest.variants[number], made, expected))
            reports = whole.compare(made, expected)
            departs = not all(output.passed for output in reports)
            far = whole.far(reports, made, expected, number)
            doubted = within is not None and within.judge.doubted
            asked = departs or doubted or far or (per_layer and number not in whole.witnessed)
            if within is not None and asked:
                witnessed = within.witnessed(wanted.path, fed, whole, departs)
                within.judge.clear({layer.value for layer in witnessed.layers if layer.settled})
                whole.witness(number, witnessed)
                reports = whole.read_by_two(reports, far, witnessed)
            elif within is None and far:
                reports = whole.moved_less(reports, far, made, expected, moved_runs(reference, fed))
            whole.collect(reports, number, within.judge if within else None)
        failure = failure or next((why for number, why in declined.items() if number not in ran), None)
        notes = [] if failure else [not_run_note(number, runner.not_run(number), read) for number in variants]
        opening = "" if failure else runner.opening_note
    kernels = tuple(report for watched in inside for report in watched.judge.reports.values())
    if behind:
        notes.append("nothing was compared of runs that find a cache: where a process makes one run, each is the first")
    notes += [*whole.notes, *_notes(kernels, bool(blueprints)), *unread_rows(uses, indices)]
    outputs = tuple(whole.outputs.values())
    about = reference.about
    told = tuple(dict.fromkeys(filter(None, notes)))
    layers, dtype = tuple(whole.layers.values()), narrow.dtype
    report = Report(about, rtol, atol, bf16, f16, dtype, seed, compared, outputs, kernels, layers, failure, told)
    sizes = tuple({str(dims): dims for number in variants if read.runs and (dims := read.dims[number])}.values())
    report = replace(report, opening=opening, distinct=_distinct(read, inside), imported=imported, sizes=sizes)
    return replace(report, used=as_used(judged, time.process_time() - start)) if report.passed else report


def _distinct(read: Package, inside: Sequence[_Inside]) -> int:
    """How many kernels were judged: those of equal Tasks are one, and those of a Task at several sizes."""
    judged = {key for watched in inside for key, report in watched.judge.reports.items() if report.samples}
    programs = (program for watched in inside for program in watched.blueprint.program.every_program)
    if read.runs:
        names = {name for _, name in judged}
        steps = (step for plan in read.manifest.variants for step in plan.steps)
        return len({step.task for step in steps if {step.name, step.name.rpartition(".")[0]} & names})
    return len({bound.task.hash for p in programs for bound in p.tasks if (p.name, bound.task.name) in judged})


def _notes(kernels: Sequence[Any], judged: bool) -> list[str]:
    """What could not be judged, and what no input made vary."""
    if not judged:
        return []
    notes = []
    if missing := [kernel for kernel in kernels if kernel.unjudged]:
        first = next(iter(missing[0].unjudged.values()))
        names = ", ".join(kernel.kernel for kernel in missing[:NAMED])
        notes.append(f"{len(missing)} kernels could not be judged by themselves ({names}: {first})")
    silent = [(name, *count) for kernel in kernels for name, count in kernel.silent.items()]
    if silent:
        name, count, channels = max(silent, key=lambda counted: counted[1] / counted[2])
        others = len(silent) - 1
        more = f" and some of {others} more value{'s' * (others > 1)}" if others else ""
        notes.append(
            f"not compared: {count} of {channels} channels of {name!r}{more}, which no sample makes vary; "
            "--inputs F.npz gives data"
        )
    return notes


def _expected(read: Package, given: Sequence[tuple[int, Arrays]], drawn_for: Collection[int], samples: int) -> int:
    """How many kernels will run, but for what control flow and states add."""
    runs = [number for number, _ in given] + [number for number in drawn_for for _ in range(samples)]
    return sum(len(read.manifest.variants[number].steps) for number in runs)


@dataclass
class _Going:
    """How many kernels have run in runs that have ended, of those that will."""

    say: Callable[[str], None]
    expected: int
    ended: int = 0

    def within_run(self, kernels: int) -> None:
        self.say(f"{min(self.ended + kernels, self.expected)} of {self.expected} kernels judged")

    def run_ended(self, kernels: int) -> None:
        self.ended += kernels
        self.within_run(0)


@dataclass
class _Inside:
    """The kernels of one variant, which are judged while it runs."""

    judge: Judge
    blueprint: Blueprint
    package: Package
    number: int
    effort: Effort
    unseen: Sequence[Row] = ()  # of the last run: outputs of kernels that no control flow decides about
    outputs: Arrays = field(default_factory=dict)  # of the last run

    @classmethod
    def of(cls, package: Package, number: int, blueprint: Blueprint, effort: Effort, seed: int) -> _Inside:
        return cls(Judge(blueprint, effort, seed), blueprint, package, number, effort)

    def watch(self, feed: Arrays, going: _Going) -> Watch:
        """What to look at in a run on `feed`, and whom to tell how far it is."""
        plan, phases = self.package.manifest.variants[self.number], self.blueprint.phases
        of_steps = uses_by_step(self.blueprint.program, plan, phases)
        rows = rows_of(of_steps, plan, phases, self.effort.calls)
        if not self.judge.runs:
            self.judge.look_at_constants(self.package, plan, of_steps)
        self.judge.begin({tensor.name: feed[tensor.name] for tensor in plan.inputs})

        within = {k for control in plan.control for k in range(control.first, control.end)}
        due = {number: row for number, row in enumerate(rows) if row.after and row.step not in within}

        def consume(records: Iterator[Watched]) -> None:
            for call in calls_of(_ticking_off(due, _told(records, rows, going)), rows, of_steps, phases):
                self.judge.look(call)
            self.unseen = tuple(due.values())

        return Watch([row.place for row in rows], consume)

    def end(self, outputs: Arrays) -> None:
        """The run has come to its end: every kernel was to run, and what it made of an output to stay there."""
        self.judge.end(outputs)
        for row in self.unseen:
            self.judge.not_run(row.use, row.buffer)
        self.outputs = outputs

    def release(self) -> None:
        """Forgets the last run, as one of another variant follows."""
        self.judge.release()
        self.outputs, self.unseen = {}, ()

    def witnessed(self, model: Path, feed: Arrays, whole: Whole, departs: bool) -> Witnessed:
        """Every kernel of the last run against ONNX Runtime's piece; where an output `departs`, in the whole too. An
        output that is a view of what a kernel wrote is one more value, right by its meaning as that is; and so is what
        a kernel read that was written in parts, or is a view, which has to be near ONNX Runtime's."""
        program, rounded = self.blueprint.program, self.judge.kernels.rounded
        written, assembled = self.judge.written(), self.judge.assembled()
        writers = {program.values[name].root: bound for bound in program.tasks for name in bound.outputs}
        views = {name for name in self.outputs if name in program.values} - written.keys()
        made = {name: (writers.get(program.values[name].root), self.outputs[name]) for name in views}
        place = {id(bound): number for number, bound in enumerate(program.tasks)}
        listed = (*assembled.items(), *written.items(), *sorted(made.items()))
        by_execution = sorted(
            ((name, bound, array) for name, (bound, array) in listed if bound is not None),
            key=lambda value: place.get(id(value[1]), len(place)),
        )
        values = {
            name: Written(bound.task.name, bound.task.nodes, array, whole.narrow.dtype if name in rounded else "")
            for name, bound, array in by_execution
        }

        def explains(name: str, theirs: NDArray[Any]) -> Explanation:
            if name in views:
                return BOTH_RIGHT
            if name in assembled:
                near = distance(assembled[name][1], theirs, limits.rtol, limits.atol)
                return BOTH_RIGHT if near.passed else Explanation(self.judge.right, None)
            return self.judge.explains(name, theirs, whole=departs or bool(self.judge.doubted))

        ordinary = 0.0 if self.judge.doubted else whole.ordinary(self.number)  # of a doubt pieces decide
        # no piece is equal to the last bit
        limits = Limits(max(whole.rtol, RTOL), max(whole.atol, ATOL), whole.policy, whole.filters, ordinary)
        try:
            return compare_pieces(model, feed, values, limits, explains, departs)
        except EngineError as error:
            whole.notes.append(f"kernels cannot be compared with ONNX Runtime's pieces of the model: {error}")
            return Witnessed(())


def _ticking_off(due: dict[int, Row], records: Iterator[Watched]) -> Iterator[Watched]:
    """The records, of which those that are due become less."""
    for record in records:
        due.pop(record.place, None)
        yield record


def _told(records: Iterator[Watched], rows: Sequence[Row], going: _Going) -> Iterator[Watched]:
    """The records; of each, how far the run is that makes them."""
    for record in records:
        going.within_run(rows[record.place].step)
        yield record
