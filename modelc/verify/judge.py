"""The rules by which outputs are right (README, What verified means), in the order in which they are asked.

near        every element within `rtol` and `atol`; what went through bfloat16, or by fewer multiplications, as a whole
truth       farther away, or small enough to hide: as near to the model evaluated in float64 as ONNX Runtime, or
            nearly so; and farther away only where float32 explains how far ONNX Runtime is from it
quantized   where a model rounds to whole numbers, one that is at a tie may fall on either side and travel from
            there: every kernel is judged alone, on the same inputs as ONNX Runtime's; and the whole may be as far
            from the truth as ONNX Runtime's two modes are from it, or from each other
choices     where a model chooses among nearly equal scores, as near as what follows from our choices (choices.py);
            every kernel is judged alone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ModelError, VerificationError
from modelc.frontend.surgery import choices_of, dequantizes, quantizes
from modelc.frontend.unsigned import multiplies_bytes
from modelc.verify.choices import followed
from modelc.verify.compare import (
    BF16,
    QUANTIZED,
    TIMES_REFERENCE,
    Conditioning,
    Distance,
    Quantized,
    Tolerance,
    conditioning,
    distance,
    filtered_distance,
    rounded_distance,
)
from modelc.verify.engine import Engine
from modelc.verify.report import LayerReport, OutputReport
from modelc.verify.truth import evaluated

Arrays = dict[str, NDArray[Any]]
Kernels = Callable[[Arrays], tuple[LayerReport, ...]]  # every kernel against ONNX Runtime, for the package's inputs
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
SUSPICIOUS = 0.01  # relative RMS error that float64 has to explain, even where every element is within `atol`


@dataclass
class Judge:
    """Compares outputs of a package of `model` with ONNX Runtime's. `constants` of the model's inputs steer it;
    `rounded` outputs were computed through bfloat16, `filters` says that some kernel makes fewer multiplications,
    `bounds` are those of sizes. What it finds out beside is in `notes` and `layers`."""

    model: Path
    constants: Arrays
    rtol: float
    atol: float
    bf16: Tolerance = BF16
    rounded: frozenset[str] = frozenset()
    filters: bool = False
    kernels: Kernels | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    layers: tuple[LayerReport, ...] = ()
    compared: dict[Shapes, tuple[LayerReport, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.quantized = quantizes(self.model)
        self.plain = self.quantized or dequantizes(self.model) or multiplies_bytes(self.model)

    def reference(self, stack: ExitStack) -> Engine:
        """What to compare with: ONNX Runtime; where numbers are quantized without its fusions, which change them, and
        with products of bytes that are exact on every CPU."""
        return stack.enter_context(Engine("ort-plain" if self.plain else "ort", self.model))

    def compare(self, ours: Arrays, reference: Arrays, feed: Arrays) -> list[OutputReport]:
        """One report for each output. `feed` is what the model took, constants included."""
        found = {name: self._distance(name, array, reference[name]) for name, array in ours.items()}
        far = [n for n, one in found.items() if not one.passed or (n not in self.rounded and one.rms_rel > SUSPICIOUS)]
        truth = self._evaluated(feed, wide=True) if far else {}
        apart = truth and any(not found[name].passed for name in far)
        float32 = self._evaluated(feed, wide=False) if apart else truth
        reports = []
        for name, one in found.items():
            known = name in far and name in truth and ours[name].shape == reference[name].shape == truth[name].shape
            c = conditioning(ours[name], reference[name], truth[name], float32[name]) if known else None
            passed = one.passed
            if c is not None:
                passed = (passed or c.explained) and self._near_truth(name, c, ours[name], truth[name])
            flags = (name in self.rounded, self.filters and name not in self.rounded)
            reports.append(OutputReport(name, one, passed, c, *flags))
        if not all(report.passed for report in reports):
            reports = self._chosen(reports, ours, feed)
        rest = {r.name for r in reports if r.name in far and not r.traded} - self.rounded
        if not self.quantized or not rest:
            return reports
        return self._quantized(reports, rest, ours, reference, truth, feed)

    def _distance(self, name: str, ours: NDArray[Any], reference: NDArray[Any]) -> Distance:
        if name in self.rounded:
            return rounded_distance(ours, reference, self.bf16)
        plainly = filtered_distance if self.filters else distance
        return plainly(ours, reference, self.rtol, self.atol)

    def _near_truth(self, name: str, both: Conditioning, ours: NDArray[Any], truth: NDArray[Any]) -> bool:
        """What was rounded to bfloat16 has to be as near to the truth as it should have been to the reference."""
        return rounded_distance(ours, truth, self.bf16).passed if name in self.rounded else both.passed

    def _evaluated(self, feed: Arrays, wide: bool) -> Arrays:
        """The model in float64, or in float32, by our meaning of its operators; nothing where that is not to be had."""
        try:
            return evaluated(self.model, feed, self.constants, wide, self.bounds)
        except ModelError as error:
            if wide:
                self.notes.append(f"there is no float64 result to compare with: {error}")
            return {}

    # --- choices --------------------------------------------------------------------------------------------------

    def _chosen(self, reports: list[OutputReport], ours: Arrays, feed: Arrays) -> list[OutputReport]:
        """The reports with the verdict of the last rule on outputs that are not right so far."""
        if self.kernels is None or not choices_of(self.model):
            return reports
        try:
            layers = self.kernels({name: array for name, array in feed.items() if name not in self.constants})
        except VerificationError as error:
            self.notes.append(f"its kernels cannot be compared one by one: {error}")
            return reports
        chosen = {layer.value: layer.chosen for layer in layers if layer.chosen is not None}
        if not chosen or not all(layer.distance.passed for layer in layers):
            return reports
        engine = "ort-plain" if self.plain else "ort"
        after = followed(self.model, feed, chosen, engine, self.rtol, self.atol)
        if after is None:
            return reports
        result = []
        for report in reports:
            found = self._distance(report.name, ours[report.name], after.outputs[report.name])
            if not report.passed and found.passed:
                traded = after.traded.get(report.name, sum(after.traded.values()))
                report = replace(report, distance=found, passed=True, float64=None, traded=traded)
            result.append(report)
        return result

    # --- quantized models -----------------------------------------------------------------------------------------

    def _quantized(
        self, reports: list[OutputReport], far: set[str], ours: Arrays, reference: Arrays, truth: Arrays, feed: Arrays
    ) -> list[OutputReport]:
        """The reports with the verdict of the third rule on `far` outputs."""
        with Engine("ort", self.model) as engine:
            other = engine.run(feed)
        layers = self._by_kernel({name: array for name, array in feed.items() if name not in self.constants})
        right = bool(layers) and all(layer.distance.passed for layer in layers)
        result = []
        for report in reports:
            name = report.name
            if name in far:
                apart = {"reference": reference[name], "other": other[name]}
                verdict = _verdict(ours[name], apart, truth.get(name), layers)
                report = OutputReport(
                    name, report.distance, right and verdict.passed, None, False, report.filtered, verdict
                )
            result.append(report)
        return result

    def _by_kernel(self, feed: Arrays) -> tuple[LayerReport, ...]:
        """Every kernel on the first of the inputs of these shapes that are asked about."""
        shapes = tuple((name, array.shape) for name, array in feed.items())
        if self.kernels is None or shapes in self.compared:
            return self.compared.get(shapes, ())
        try:
            self.compared[shapes] = self.kernels(feed)
        except VerificationError as error:
            self.notes.append(f"its kernels cannot be compared one by one: {error}")
            return ()
        self.layers += self.compared[shapes]
        return self.compared[shapes]


def _verdict(
    ours: NDArray[Any], modes: Mapping[str, NDArray[Any]], truth: NDArray[Any] | None, layers: tuple[LayerReport, ...]
) -> Quantized:
    """How far the whole is from the truth (where there is none, from the reference), and what of it ties explain."""
    reference, other = modes["reference"], modes["other"]
    wanted = reference if truth is None else truth
    own, one, two = (distance(x, wanted, 0, 0).rms_rel for x in (ours, reference, other))
    between = distance(other, reference, 0, 0).rms_rel
    allowed = max(QUANTIZED.rms, TIMES_REFERENCE * max(one, two, between))
    steps = sum(layer.steps for layer in layers)
    return Quantized(own, one, two, between, truth is not None, len(layers), steps, bool(own <= allowed))
