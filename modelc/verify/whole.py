"""The outputs of a package as a whole, beside those of the model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelcError
from modelc.frontend.witness.surgery import dequantizes, multiplies_halves, quantizes, reads_by_value
from modelc.frontend.witness.unsigned import multiplies_bytes
from modelc.package import Package
from modelc.verify.beginning import beginning_of, made_of
from modelc.verify.check import Arrays, as_numbers
from modelc.verify.compare import (
    ATOL,
    HALVES,
    QUANTIZED,
    ROUNDOFF,
    RTOL,
    Distance,
    Tolerance,
    distance,
    filtered_distance,
    largest_of,
    rounded_distance,
    scaled,
    unsettled,
)
from modelc.verify.engine import Engine
from modelc.verify.kernels.judge import Judge
from modelc.verify.narrow import Narrow
from modelc.verify.pieces import moves_as_far
from modelc.verify.report import AGREEING, CONTRADICTS, LayerReport, OutputReport
from modelc.verify.witness import MOVES, Witnessed, moved_by

FAR = 32.0  # roundoffs of an output's scale, of one kernel; of more, as independent roundings add up
FILTERED_FAR = 8.0  # times as far by fewer multiplications
MOVED = 16 * ROUNDOFF["float32"]  # by which inputs are moved to see how far a model takes a rounding


@dataclass
class Whole:
    """The outputs of a package and those of `model` in ONNX Runtime. `narrow` are those that are computed through
    16-bit floats, for which `policy` is."""

    package: Package
    model: Path
    rtol: float
    atol: float
    policy: Tolerance
    narrow: Narrow
    outputs: dict[str, OutputReport] = field(default_factory=dict)
    witnessed: dict[int, Witnessed] = field(default_factory=dict)  # by variant, of the last run that was put to it
    layers: dict[tuple[int, str], LayerReport] = field(default_factory=dict)  # by variant and value
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.filters = any(plan.filters for plan in self.package.manifest.variants)
        self.quantized = quantizes(self.model)
        self.halves = multiplies_halves(self.model)
        self.plain = self.quantized or dequantizes(self.model) or multiplies_bytes(self.model)
        self._reads: Mapping[str, Sequence[str]] | None = None

    def reference(self, stack: ExitStack) -> Engine:
        """ONNX Runtime; where numbers are quantized without its fusions, which change them."""
        return stack.enter_context(Engine("ort-unoptimised" if self.plain else "ort", self.model, timed=False))

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
            rounded = name in self.narrow.outputs
            filtered = self.filters and not rounded
            report = OutputReport(name, apart, apart.passed, rounded, filtered, largest=largest_of(theirs))
            reports.append(report)
        return reports

    def _distance(self, name: str, ours: NDArray[Any], reference: NDArray[Any]) -> Distance:
        if name in self.narrow.outputs:
            return rounded_distance(ours, reference, self.policy)
        plainly = filtered_distance if self.filters else distance
        apart = plainly(ours, reference, self.rtol, scaled(self.atol, reference))
        if apart.passed or not self.halves:
            return apart
        apart = rounded_distance(ours, reference, HALVES)
        note = f"the model has weights in float16: a relative RMS error of {HALVES.rms:g} is allowed, for ONNX Runtime "
        note += "rounds to that what it folds into them"
        self.notes += [note] * (note not in self.notes)
        return apart

    def ordinary(self, variant: int) -> float:
        """The roundoffs of its scale by which the roundings of so many kernels ordinarily take a value away."""
        return FAR * sqrt(self.package.manifest.variants[variant].roundings) * (FILTERED_FAR if self.filters else 1)

    def far(self, reports: Sequence[OutputReport], made: Arrays, reference: Arrays, variant: int) -> set[str]:
        """The outputs that are near, and yet farther off than the roundings of so many kernels ordinarily take them. A
        larger tolerance than the default allows all of them."""
        if self.rtol > RTOL or self.atol > ATOL or self.plain or self.halves:
            return set()
        units = self.ordinary(variant)
        floats = (r.name for r in reports if r.near and not r.rounded and reference[r.name].dtype.name in ROUNDOFF)
        return {name for name in floats if unsettled(made[name], reference[name], units=units).any()}

    def read_by_two(
        self, reports: Sequence[OutputReport], far: Collection[str], witnessed: Witnessed
    ) -> list[OutputReport]:
        """The reports; those that are `far` fail where ONNX Runtime and the third reader agree on the nodes of a
        kernel, and the package has another reading."""
        misread = next((layer for layer in witnessed.layers if layer.referee == CONTRADICTS), None)
        if misread is None:
            return list(reports)
        sentence = f"two readings differ at {misread.place()}: the package's, and ONNX Runtime's, {AGREEING}"
        return [replace(r, passed=False, misread=sentence) if r.name in far else r for r in reports]

    def moved_less(
        self,
        reports: Sequence[OutputReport],
        far: Collection[str],
        made: Arrays,
        reference: Arrays,
        moved: Sequence[Arrays],
    ) -> list[OutputReport]:
        """The reports of a package whose kernels cannot be judged; those that are `far` fail where ONNX Runtime's
        numbers for inputs that are `moved` stay nearer to its own."""

        def told(report: OutputReport) -> OutputReport:
            name = report.name
            if name not in far or not moved or moves_as_far(made[name], reference[name], [run[name] for run in moved]):
                return report
            sentence = (
                f"{name!r} is {report.distance.of_scale:.1e} of its scale off, and ONNX Runtime's own numbers stay "
                f"nearer when the inputs move by {MOVED:.1e} of themselves; a larger --rtol allows it"
            )
            return replace(report, passed=False, misread=sentence)

        return [told(report) for report in reports]

    def witness(self, variant: int, witnessed: Witnessed) -> None:
        """Takes what ONNX Runtime says of the kernels of the run whose outputs are collected next."""
        self.witnessed[variant] = witnessed
        for layer in witnessed.layers:
            before = self.layers.get((variant, layer.value))
            self.layers[variant, layer.value] = layer if before is None else before.worse(layer)

    def collect(self, reports: Sequence[OutputReport], variant: int, judge: Judge | None) -> None:
        """The reports of one sample; of those that depart, whether the model amplifies what rounding leaves."""
        for report in reports:
            if not report.passed and judge is not None:
                report = self._explained(report, variant, judge)
            before = self.outputs.get(report.name)
            self.outputs[report.name] = report if before is None else before.worse(report)

    def _explained(self, report: OutputReport, variant: int, judge: Judge) -> OutputReport:
        """The report of an output that departs: as amplified, or small, where every element of every kernel was judged
        and is right; with a doubt where some could not be."""
        if not all(kernel.passed for kernel in judge.reports.values()):
            return report
        steps = self.quantized and report.distance.rms_rel <= QUANTIZED.rms  # roundings to whole numbers may explain it
        if report.rounded and not steps:
            return report
        witnessed = self.witnessed.get(variant, Witnessed(()))
        if not witnessed.layers or not all(layer.passed for layer in witnessed.layers):
            return report
        if doubt := judge.judged_wholly(witnessed.confirmed):
            return replace(report, doubt=doubt)
        if report.distance.max_abs <= self.atol and not report.rounded:
            return replace(report, passed=True, small=True)
        return self._amplified(report, witnessed)

    def _amplified(self, report: OutputReport, witnessed: Witnessed) -> OutputReport:
        """The report with where the departure begins."""
        if self._reads is None:
            self._reads = reads_by_value(self.model)
        before = made_of(self._reads, report.name)
        begins = beginning_of(report.distance.rms_rel, report.name, before, witnessed.apart)
        same = {x.value for x in witnessed.apart if not x.beyond}
        unoptimised = not self.plain and report.name in same
        return replace(report, passed=True, amplified=True, begins=begins, unoptimised=unoptimised)


def moved_runs(engine: Engine, feed: Arrays) -> list[Arrays]:
    """What an engine makes of inputs that are MOVED; nothing where no input is a float."""
    if not any(array.dtype.kind == "f" for array in feed.values()):
        return []
    return [engine.run(moved_by(MOVED, feed, seed)) for seed in range(MOVES)]
