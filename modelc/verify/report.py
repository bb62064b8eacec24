"""What a verification found: plain data, with the summary that goes into the manifest."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from modelc.verify.as_used import Used
from modelc.verify.compare import FILTERED, Distance, Tolerance
from modelc.verify.kernels.report import OUT_OF_RANGE, KernelReport

EXPLAINED, SILENT = "rounding explains it", "cannot say"
MOVING = "cannot say, but ONNX Runtime's own numbers move as far when its inputs move by a hundredth of the tolerance"
HALF = "float16"
NAMED = 3  # kernels or values that a note names


@dataclass(frozen=True)
class OutputReport:
    """One output, at its worst over all samples. `rounded`: it was computed through 16-bit floats; `filtered`: it may
    have been by fewer multiplications; `amplified`: it departs from the reference though every kernel is right, for the
    model amplifies what rounding leaves. `padded` says how inputs were filled up with which it failed first,
    where they were."""

    name: str
    distance: Distance
    passed: bool
    rounded: bool = False
    filtered: bool = False
    amplified: bool = False
    padded: str = ""

    def worse(self, other: OutputReport) -> OutputReport:
        """Both samples' worst."""
        return replace(
            self,
            distance=self.distance.worse(other.distance),
            passed=self.passed and other.passed,
            amplified=self.amplified or other.amplified,
            padded=self.padded or other.padded,
        )


@dataclass(frozen=True)
class LayerReport:
    """What one kernel computed, against the ONNX value of the same name, made of the same inputs. `steps`: how many
    whole numbers are a step apart, both right, for what was rounded is at a tie. Where it departs, `referee` is what
    the reference evaluator of onnx says of the kernel (agrees, contradicts, or SILENT), or EXPLAINED, or MOVING."""

    kernel: str
    value: str
    nodes: tuple[str, ...]
    distance: Distance
    steps: int = 0
    referee: str = ""

    @property
    def passed(self) -> bool:
        return self.distance.passed or self.referee in ("agrees", EXPLAINED, MOVING)


@dataclass(frozen=True)
class Report:
    """`failure` says why nothing could be compared, `notes` what to know beside the result. `kernels` were judged by
    themselves, `layers` compared with ONNX Runtime's pieces of the model; both are in the order of execution. `bf16`
    and `f16` are the policies for outputs that were computed through these floats, in place of `rtol` and `atol`;
    `narrow` says through which they were (bfloat16, float16, or none). `used`: the runs that follow where all else is
    right (as_used.py)."""

    reference: str
    rtol: float
    atol: float
    bf16: Tolerance
    f16: Tolerance
    narrow: str
    seed: int
    samples: int
    outputs: tuple[OutputReport, ...]
    kernels: tuple[KernelReport, ...] = ()
    layers: tuple[LayerReport, ...] = ()
    failure: str | None = None
    notes: tuple[str, ...] = ()
    used: Used | None = None

    @property
    def passed(self) -> bool:
        right = all(output.passed for output in self.outputs) and all(kernel.passed for kernel in self.kernels)
        return self.failure is None and right and not (self.used and self.used.failure)

    @property
    def policy(self) -> Tolerance:
        """For outputs that were computed through 16-bit floats."""
        return self.f16 if self.narrow == HALF else self.bf16

    @property
    def first_departure(self) -> LayerReport | None:
        """The first kernel whose result is not near the ONNX value's."""
        return next((layer for layer in self.layers if not layer.passed), None)

    @property
    def first_wrong(self) -> KernelReport | None:
        """The first kernel that does not compute what it means."""
        return next((kernel for kernel in self.kernels if not kernel.passed), None)

    @property
    def unjudged(self) -> tuple[str, ...]:
        """The kernels of which some value could not be judged."""
        return tuple(kernel.kernel for kernel in self.kernels if kernel.unjudged)

    def sentence(self) -> str:
        """What to say in one line."""
        if self.failure is not None:
            return self.failure
        if self.used and self.used.failure:
            return self.used.failure
        if (wrong := self.first_wrong) is not None:
            (value, fault), *_ = wrong.faults.items()
            more = sum(not kernel.passed for kernel in self.kernels) - 1
            where = f"kernel {wrong.kernel} ({', '.join(wrong.nodes[:NAMED])}){f' and {more} more' * (more > 0)}"
            return f"is wrong in {where}: value {value!r} {fault}"
        return self._agreement() if self.passed else self._departure()

    def _agreement(self) -> str:
        near = [output.distance.rms_rel for output in self.outputs if not output.amplified]
        parts = [f"worst relative RMS error {max(near):.1e}"] if near else []
        parts += [self._amplification(output) for output in self.outputs if output.amplified]
        if any(output.rounded for output in self.outputs):
            parts.append(f"through {self.narrow}, for which {self.policy.rms:.1e} is allowed")
        if any(output.filtered for output in self.outputs):
            parts.append(f"by fewer multiplications (Winograd, Strassen), for which {FILTERED.rms:.1e} is allowed")
        if judged := [kernel for kernel in self.kernels if kernel.samples]:
            worst = max(kernel.worst for kernel in judged)
            samples = sum(kernel.samples for kernel in judged)
            parts.append(
                f"{len(judged)} kernels right on {samples:,} samples, at most {worst:.2f} of the rounding bound off"
            )
        if self.used:
            parts.append(self.used.sentence())
        return f"agrees with {self.reference}" + (f" ({'; '.join(parts)})" if parts else "")

    def _amplification(self, output: OutputReport) -> str:
        departs = f"{output.name!r} departs by {output.distance.rms_rel:.1e}"
        return f"{departs}, and every kernel is right: {self._factor(output)}"

    def _factor(self, output: OutputReport) -> str:
        factor = self.factor(output)
        if factor == math.inf:
            return "the model amplifies a rounding at a tie"
        return f"the model amplifies differences of {self._largest_difference:.1e} by {factor:.1g}"

    @property
    def _largest_difference(self) -> float:
        """Of kernels that are near ONNX Runtime's pieces, in relative RMS."""
        return max((layer.distance.rms_rel for layer in self.layers if layer.distance.passed), default=0.0)

    def factor(self, output: OutputReport) -> float:
        """By how much the model amplifies the differences of kernels to that of an output; infinite where kernels do
        not differ."""
        return output.distance.rms_rel / self._largest_difference if self._largest_difference else math.inf

    def _departure(self) -> str:
        names = [o.name for o in self.outputs if not o.passed]
        bad = next(o for o in self.outputs if not o.passed)
        if bad.padded:
            return (
                f"departs from {self.reference}, for padding changes output {bad.name!r}: with {bad.padded} it has a "
                f"relative RMS error of {bad.distance.rms_rel:.1e} and a largest error of {bad.distance.max_abs:.1e} "
                f"({self._allowed(bad)}), and none with inputs of a variant's own size; the model would have to mask "
                "what is filled up: compile a variant for each length, without --pad-dim"
            )
        return (
            f"departs from {self.reference} in {len(names)} of {len(self.outputs)} outputs: {bad.name!r} has "
            f"a relative RMS error of {bad.distance.rms_rel:.1e} and a largest error of {bad.distance.max_abs:.1e} "
            f"({self._allowed(bad)}){self._by_kernel()}"
        )

    def _by_kernel(self) -> str:
        """What is said of the kernels."""
        first = self.first_departure
        if first is None:
            return ""
        third = f"; the reference evaluator of onnx {first.referee}" if first.referee else ""
        return f"; the first kernel that departs on the same inputs is {first.kernel} ({first.value!r}{third})"

    def _allowed(self, output: OutputReport) -> str:
        if not output.rounded:
            whole = f", or {FILTERED.rms:g}, and {FILTERED.largest:g} of the largest element, by fewer multiplications"
            return f"allowed: {self.atol:g} + {self.rtol:g} * |reference|{whole * output.filtered}"
        allowed = (
            f"allowed through {self.narrow}: {self.policy.rms:g} and {self.policy.largest:g} of the largest element, "
            "and no difference in whole numbers"
        )
        if self.narrow != HALF:
            return f"{allowed}; --precision auto keeps in float32 what needs it"
        beyond = "" if math.isfinite(output.distance.max_abs) else f"; {OUT_OF_RANGE}"
        return f"{allowed}{beyond}"

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity and no NaN: they become null."""
        worst = max((output.distance.rms_rel for output in self.outputs), default=0.0)
        summary = {
            "passed": self.passed,
            "reference": self.reference,
            "rtol": self.rtol,
            "atol": self.atol,
            "seed": self.seed,
            "samples": self.samples,
            "worst_rms_rel": worst,
            "bf16": asdict(self.bf16),
            "f16": asdict(self.f16),
            "rounded": [o.name for o in self.outputs if o.rounded],
            "filtered": [o.name for o in self.outputs if o.filtered],
            "amplified": [o.name for o in self.outputs if o.amplified],
            "kernels": {
                "judged": sum(kernel.samples > 0 for kernel in self.kernels),
                "samples": sum(kernel.samples for kernel in self.kernels),
                "worst": max((kernel.worst for kernel in self.kernels), default=0.0),
            },
            "used": self.used and asdict(self.used),
            "unjudged": list(self.unjudged),
            "sentence": self.sentence(),
            "notes": list(self.notes),
        }
        outputs = [
            {
                "name": o.name,
                **asdict(o.distance),
                "passed": o.passed,
                "rounded": o.rounded,
                "filtered": o.filtered,
                "amplified": o.amplified,
                "padded": o.padded,
            }
            for o in self.outputs
        ]
        layers = [
            {
                "kernel": x.kernel,
                "value": x.value,
                "nodes": list(x.nodes),
                **asdict(x.distance),
                "steps": x.steps,
                "referee": x.referee,
            }
            for x in self.layers
        ]
        first = self.first_departure
        kernels = [kernel.to_json() for kernel in self.kernels]
        whole: dict[str, Any] = {"summary": summary, "outputs": outputs, "kernels": kernels, "layers": layers}
        if self.layers:
            whole["first_departure"] = first and {"kernel": first.kernel, "value": first.value}
        plain: dict[str, Any] = finite(whole)
        return plain


def finite(data: Any) -> Any:
    """JSON-like data with infinities and NaNs made null."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
