"""The outputs of a package as a whole, beside those of the model in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
    HALVES,
    QUANTIZED,
    Distance,
    Tolerance,
    distance,
    filtered_distance,
    largest_of,
    rounded_distance,
    scaled,
)
from modelc.verify.engine import Engine
from modelc.verify.kernels.judge import Judge
from modelc.verify.narrow import Narrow
from modelc.verify.report import LayerReport, OutputReport
from modelc.verify.witness import Witnessed


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
        if report.padded:  # its kernels ran on what was filled up, which may be what makes the difference
            return replace(report, passed=True, amplified=True, padded="") if steps else report
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
