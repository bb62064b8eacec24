"""What a verification found: plain data, with the summary that goes into the manifest."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from modelc.verify.compare import FILTERED, Conditioning, Distance, Quantized, Tolerance


@dataclass(frozen=True)
class OutputReport:
    """One output, at its worst over all samples. `float64` is set where closeness to the reference did not decide, in
    quantized models `quantized`; `rounded` says that it was computed through bfloat16, `filtered` that it may have been
    by fewer multiplications. `traded` numbers were chosen otherwise before it, of scores that are nearly equal; then
    the distance is that from what follows. `padded` says how inputs were filled up with which it failed first, where
    they were."""

    name: str
    distance: Distance
    passed: bool
    float64: Conditioning | None = None
    rounded: bool = False
    filtered: bool = False
    quantized: Quantized | None = None
    traded: int = 0
    padded: str = ""

    def worse(self, other: OutputReport) -> OutputReport:
        """Both samples' worst; the verdict of the one that failed, if one did."""
        decisive = self if not self.passed or (other.float64 or other.quantized) is None else other
        worst, passed = self.distance.worse(other.distance), self.passed and other.passed
        found = replace(self, distance=worst, passed=passed, float64=decisive.float64, quantized=decisive.quantized)
        return replace(found, traded=self.traded + other.traded, padded=self.padded or other.padded)


@dataclass(frozen=True)
class LayerReport:
    """What one kernel computed, against the ONNX value of the same name, made of the same inputs. `steps`: how many
    whole numbers are a step apart, both right, for what was rounded is at a tie. `chosen` is the value itself where it
    is a choice."""

    kernel: str
    value: str
    nodes: tuple[str, ...]
    distance: Distance
    steps: int = 0
    chosen: NDArray[Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Report:
    """`failure` says why nothing could be compared, `notes` what to know beside the result; `layers` are in the order
    of execution. `bf16` is the policy for outputs that were computed through bfloat16, in place of `rtol` and `atol`.
    """

    reference: str
    rtol: float
    atol: float
    bf16: Tolerance
    seed: int
    samples: int
    outputs: tuple[OutputReport, ...]
    layers: tuple[LayerReport, ...] = ()
    failure: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.failure is None and all(output.passed for output in self.outputs)

    @property
    def first_departure(self) -> LayerReport | None:
        """The first kernel whose result is not near the ONNX value's."""
        return next((layer for layer in self.layers if not layer.distance.passed), None)

    def sentence(self) -> str:
        """What to say in one line."""
        if self.failure is not None:
            return self.failure
        if self.passed:
            near = [output for output in self.outputs if output.float64 is None and output.quantized is None]
            found = [f"worst relative RMS error {max(o.distance.rms_rel for o in near):.1e}"] if near else []
            found += [f"{o.name!r} {_against_float64(o.float64)}" for o in self.outputs if o.float64 is not None]
            found += [f"{o.name!r} {_quantized(o.quantized)}" for o in self.outputs if o.quantized is not None]
            found += [
                f"{o.name!r} with {o.traded} choice(s) among nearly equal scores" for o in self.outputs if o.traded
            ]
            found += [f"through bfloat16, for which {self.bf16.rms:.1e} is allowed"] * any(
                o.rounded for o in self.outputs
            )
            found += [f"by fewer multiplications (Winograd, Strassen), for which {FILTERED.rms:.1e} is allowed"] * any(
                o.filtered for o in self.outputs
            )
            return f"agrees with {self.reference} ({'; '.join(found)})" if found else f"agrees with {self.reference}"
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
            f"({self._allowed(bad)}){self._by_kernel(bad)}"
        )

    def _by_kernel(self, output: OutputReport) -> str:
        """What is said of the float64 result, or of the kernels where they decide."""
        first = self.first_departure
        if output.quantized is None:
            return "" if output.float64 is None else f"; it {_unexplained(output.float64)}"
        if first is not None:
            return f"; the first kernel that departs on the same inputs is {first.kernel} ({first.value!r})"
        return f"; it {_quantized(output.quantized)}"

    def _allowed(self, output: OutputReport) -> str:
        if not output.rounded:
            whole = f", or {FILTERED.rms:g}, and {FILTERED.largest:g} of the largest element, by fewer multiplications"
            return f"allowed: {self.atol:g} + {self.rtol:g} * |reference|{whole * output.filtered}"
        return (
            f"allowed through bfloat16: {self.bf16.rms:g} and {self.bf16.largest:g} of the largest element, and no "
            "difference in whole numbers; --precision auto keeps in float32 what needs it"
        )

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
            "rounded": [o.name for o in self.outputs if o.rounded],
            "filtered": [o.name for o in self.outputs if o.filtered],
            "by_kernel": [o.name for o in self.outputs if o.quantized is not None],
            "by_choice": [o.name for o in self.outputs if o.traded],
            "by_float64": [o.name for o in self.outputs if o.float64 is not None],
            "sentence": self.sentence(),
            "notes": list(self.notes),
        }
        outputs = [
            {
                "name": o.name,
                **asdict(o.distance),
                "passed": o.passed,
                "float64": o.float64 and asdict(o.float64),
                "rounded": o.rounded,
                "filtered": o.filtered,
                "quantized": o.quantized and asdict(o.quantized),
                "traded": o.traded,
                "padded": o.padded,
            }
            for o in self.outputs
        ]
        layers = [
            {"kernel": x.kernel, "value": x.value, "nodes": list(x.nodes), **asdict(x.distance), "steps": x.steps}
            for x in self.layers
        ]
        first = self.first_departure
        whole: dict[str, Any] = {"summary": summary, "outputs": outputs, "layers": layers}
        if self.layers:
            whole["first_departure"] = first and {"kernel": first.kernel, "value": first.value}
        plain: dict[str, Any] = finite(whole)
        return plain


def _against_float64(c: Conditioning) -> str:
    return f"is {c.ours_rms:.1e} from the float64 result, the reference {c.reference_rms:.1e}"


def _unexplained(c: Conditioning) -> str:
    return _against_float64(c) + ", which rounding does not explain" * (not c.explained)


def _quantized(q: Quantized) -> str:
    far = "from the float64 result" if q.truth else "from the reference"
    kernels = "kernels were not compared one by one"
    if q.values:
        kernels = f"{q.values} values of kernels are right on the same inputs, {q.steps} numbers a step apart at ties"
    return (
        f"is {q.ours_rms:.1e} {far}, the reference {q.reference_rms:.1e}, ONNX Runtime's fused mode "
        f"{q.default_rms:.1e}, which are {q.modes_rms:.1e} apart; {kernels}"
    )


def finite(data: Any) -> Any:
    """JSON-like data with infinities and NaNs made null."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
