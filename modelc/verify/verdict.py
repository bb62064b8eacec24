"""Whether a package is right (docs/verify.md).

kernels     every kernel by itself computes, from what it really read, what it means (kernels/)
whole       every output is near ONNX Runtime's: within `rtol` and `atol`; what went through bfloat16 or float16, or by
            fewer multiplications, as a whole
witness     where an output is not near and all kernels are right, each is compared with ONNX Runtime's piece of the
            model on the same inputs (witness.py): if all agree, the model amplifies what rounding leaves
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

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelcError, VerificationError
from modelc.frontend.witness.surgery import dequantizes, multiplies_halves, quantizes
from modelc.frontend.witness.unsigned import multiplies_bytes
from modelc.package import Package, read_package
from modelc.package.watch import Watch, Watched
from modelc.verify.as_used import JudgedRuns, as_used
from modelc.verify.check import (
    Arrays,
    Carried,
    Runner,
    as_numbers,
    check_inputs,
    drawn_for_variants,
    filled_up,
    not_run_note,
    variant_of,
    without_constants,
)
from modelc.verify.compare import (
    BF16,
    F16,
    HALVES,
    QUANTIZED,
    Distance,
    Tolerance,
    distance,
    filtered_distance,
    rounded_distance,
)
from modelc.verify.engine import Engine, EngineError
from modelc.verify.kernels.blueprint import Blueprint
from modelc.verify.kernels.calls import Row, rows_of, uses_by_step
from modelc.verify.kernels.judge import Judge, calls_of
from modelc.verify.kernels.samples import EFFORTS, Effort
from modelc.verify.lengths import padded_to
from modelc.verify.reference import Reference, fixed_inputs
from modelc.verify.report import NAMED, LayerReport, OutputReport, Report
from modelc.verify.witness import Written, compare_pieces

RTOL, ATOL, SAMPLES = 1e-3, 1e-4, 2
HIDDEN = 0.01  # relative RMS error of an output that `atol` may hide where its kernels are not judged


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
) -> Report:
    """Runs both on `inputs`, or on `samples` drawn inputs for every variant of the package; with `every_variant`, the
    others than that of `inputs` are not left out. What was fixed of the model's inputs is given to it too. `bf16` is
    the policy for outputs computed through bfloat16, `f16` for those in float16. A package that crashes or does not end
    fails; one whose files are damaged raises PackageError, inputs that do not fit InputError. Kernels are judged by the
    `blueprints` of all variants, none where these are not known, with an effort of EFFORTS, or with a `brief` one,
    which takes a small share of the time that compiling takes; `per_layer` compares them with ONNX Runtime's pieces
    too, whether or not an output departs. `say` is told how many kernels of how many have run."""
    start = time.monotonic()
    read = read_package(package, check=True)
    if inputs is not None:
        inputs = without_constants(fixed_inputs(read), inputs)
        check_inputs(read, inputs)
    given = [] if inputs is None else [(variant_of(read, inputs), dict(inputs))]
    drawn_for = set(range(len(read.manifest.variants))) - {number for number, _ in given}
    effort = EFFORTS[check] if brief else replace(EFFORTS[check], kernel_work=inf)
    effort = replace(effort, work=effort.work / len(read.manifest.variants))
    with ExitStack() as stack:
        wanted = stack.enter_context(Reference(read, model))
        narrow = multiplied(read)
        policy = f16 if narrow == "float16" else bf16
        whole = _Whole(read, wanted.path, rtol, atol, policy, bool(blueprints))
        reference = whole.reference(stack)
        inside = [_Inside.of(read, number, blueprint, effort, seed) for number, blueprint in enumerate(blueprints)]
        failure: str | None = None
        compared = 0
        layers: tuple[LayerReport, ...] = ()
        feeds: Iterable[tuple[int, Arrays]] = ()
        try:  # before inputs are drawn as the manifest says: it may say something else than the library
            runner = Runner(read, stack)
            feeds = given
            if inputs is None or every_variant:
                feeds = chain(given, drawn_for_variants(read, model, seed, samples, drawn_for, runner.not_run))
        except VerificationError as error:
            failure = f"did not run: {error}"
        carried, judged = Carried(read), JudgedRuns(read)
        going = _Going(say, _expected(read, given, drawn_for if feeds is not given else (), samples))
        variants = dict[int, None]()
        for number, feed in feeds:
            variants[number] = None
            fed = wanted.feed({**feed, **carried.before(number)}, compared)
            compared += 1
            within = inside[number] if inside else None
            try:  # first, as it says what is out of range
                made = runner.run(feed, within.watch({**fed, **filled_up(read, feed)}, going) if within else None)
            except VerificationError as error:
                failure = f"did not run: {error}"
                break
            judged.keep(number, feed, made)
            going.run_ended(len(read.manifest.variants[number].steps))
            if within is not None:
                within.end(made)
            expected = reference.run(fed)
            carried.after(expected)
            shorter = padded_to(read, number, feed)
            reports = [
                replace(output, padded=shorter * (not output.passed)) for output in whole.compare(made, expected)
            ]
            departs = not all(output.passed for output in reports)
            if within is not None and not shorter and (departs or per_layer) and number not in whole.witnessed:
                whole.witnessed[number] = within.witnessed(wanted.path, fed, whole)
                layers += whole.witnessed[number]
            whole.collect(reports, number, within)
        notes = [] if failure else [not_run_note(number, runner.not_run(number), read) for number in variants]
    kernels = tuple(report for watched in inside for report in watched.judge.reports.values())
    notes += whole.notes + _notes(kernels, bool(blueprints))
    outputs = tuple(whole.outputs.values())
    about = reference.about
    told = tuple(dict.fromkeys(filter(None, notes)))
    report = Report(about, rtol, atol, bf16, f16, narrow, seed, compared, outputs, kernels, layers, failure, told)
    return replace(report, used=as_used(judged, time.monotonic() - start)) if report.passed else report


def multiplied(package: Package) -> str:
    """The 16-bit floats that outputs are computed through: a package has those of one precision. "" where none are."""
    plans = package.manifest.variants
    if not any(plan.rounded for plan in plans):
        return ""
    dtypes = {step.dtype for plan in plans for step in plan.steps}
    return "float16" if "float16" in dtypes and "bfloat16" not in dtypes else "bfloat16"


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
        more = f", and of {len(silent) - 1} more values" if len(silent) > 1 else ""
        notes.append(
            f"not compared: {count} of {channels} channels of {name!r}{more} had the same number everywhere in every "
            "sample; --inputs F.npz gives data"
        )
    return notes


def _expected(read: Package, given: Sequence[tuple[int, Arrays]], drawn_for: Collection[int], samples: int) -> int:
    """How many kernels will run, but for what control flow, states and lengths add."""
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

    @classmethod
    def of(cls, package: Package, number: int, blueprint: Blueprint, effort: Effort, seed: int) -> _Inside:
        return cls(Judge(blueprint, effort, seed), blueprint, package, number, effort)

    def watch(self, feed: Arrays, going: _Going) -> Watch:
        """What to look at in a run on `feed`, and whom to tell how far it is."""
        plan, phases = self.package.manifest.variants[self.number], self.blueprint.phases
        of_steps = uses_by_step(self.blueprint.program, plan, phases)
        rows = rows_of(of_steps, plan, phases, self.effort.calls)
        if not self.judge.runs:
            self.judge.look_at_constants(self.package.path, plan, of_steps)
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
        for row in self.unseen:
            self.judge.not_run(row.use, row.buffer)
        self.judge.end(outputs)

    def witnessed(self, model: Path, feed: Arrays, whole: _Whole) -> tuple[LayerReport, ...]:
        """Every kernel of the last run against ONNX Runtime's piece."""
        values = {
            name: Written(bound.task.name, bound.task.nodes, array, name in self.judge.rounded)
            for name, (bound, array) in self.judge.written().items()
        }
        try:
            tolerance = (max(whole.rtol, RTOL), max(whole.atol, ATOL))  # no piece is equal to the last bit
            limits = (tolerance, whole.policy, whole.filters)
            return compare_pieces(model, feed, values, self.judge.assembled(), *limits, self.judge.explains)
        except EngineError as error:
            whole.notes.append(f"kernels cannot be compared with ONNX Runtime's pieces of the model: {error}")
            return ()


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


@dataclass
class _Whole:
    """The outputs of a package and those of `model` in ONNX Runtime."""

    package: Package
    model: Path
    rtol: float
    atol: float
    policy: Tolerance  # of what is computed through 16-bit floats
    judged: bool  # whether kernels are, by themselves
    outputs: dict[str, OutputReport] = field(default_factory=dict)
    witnessed: dict[int, tuple[LayerReport, ...]] = field(default_factory=dict)  # by variant
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        plans = self.package.manifest.variants
        self.rounded = frozenset(name for plan in plans for name in plan.rounded)
        self.filters = any(plan.filters for plan in plans)
        self.quantized = quantizes(self.model)
        self.halves = multiplies_halves(self.model)
        self.plain = self.quantized or dequantizes(self.model) or multiplies_bytes(self.model)

    def reference(self, stack: ExitStack) -> Engine:
        """ONNX Runtime; where numbers are quantized without its fusions, which change them, and with products of bytes
        that are exact on every CPU."""
        return stack.enter_context(Engine("ort-plain" if self.plain else "ort", self.model, timed=False))

    def compare(self, made: Arrays, reference: Arrays) -> list[OutputReport]:
        """One report for each output. Raises ModelcError for one that the model does not have."""
        if missing := made.keys() - reference.keys():
            raise ModelcError(
                f"the model has no output {min(missing)!r}: {self.package.path} was compiled from another model"
            )
        dtypes = {t.name: t.dtype for t in self.package.manifest.variants[0].outputs}
        reports = []
        for name, array in made.items():
            dtype, theirs = dtypes[name], reference[name]
            theirs = as_numbers(theirs, dtype) if theirs.dtype == np.uint8 else theirs
            apart = self._distance(name, as_numbers(array, dtype), theirs)
            flags = (name in self.rounded, self.filters and name not in self.rounded)
            hidden = not self.judged and name not in self.rounded and apart.rms_rel > HIDDEN
            reports.append(OutputReport(name, apart, apart.passed and not hidden, *flags))
        return reports

    def _distance(self, name: str, ours: NDArray[Any], reference: NDArray[Any]) -> Distance:
        if name in self.rounded:
            return rounded_distance(ours, reference, self.policy)
        plainly = filtered_distance if self.filters else distance
        apart = plainly(ours, reference, self.rtol, self.atol)
        if apart.passed or not self.halves:
            return apart
        apart = rounded_distance(ours, reference, HALVES)
        note = f"the model has weights in float16: a relative RMS error of {HALVES.rms:g} is allowed, for ONNX Runtime "
        note += "rounds to that what it folds into them"
        self.notes += [note] * (note not in self.notes)
        return apart

    def collect(self, reports: Sequence[OutputReport], variant: int, inside: _Inside | None) -> None:
        """The reports of one sample, with the verdict of the witness on those that depart."""
        for report in reports:
            if not report.passed and self._amplified(report, variant, inside):
                report = replace(report, passed=True, amplified=True, padded="")
            before = self.outputs.get(report.name)
            self.outputs[report.name] = report if before is None else before.worse(report)

    def _amplified(self, report: OutputReport, variant: int, inside: _Inside | None) -> bool:
        if inside is None or not all(kernel.passed for kernel in inside.judge.reports.values()):
            return False
        steps = self.quantized and report.distance.rms_rel <= QUANTIZED.rms  # roundings to whole numbers may explain it
        if report.padded:  # its kernels ran on what was filled up, which may be what makes the difference
            return steps
        if report.rounded and not steps:
            return False
        layers = self.witnessed.get(variant, ())
        return bool(layers) and all(layer.passed for layer in layers)
