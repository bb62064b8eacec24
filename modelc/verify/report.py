"""What a verification found: plain data, with the summary that goes into the manifest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from modelc.runtime.shown import page, table
from modelc.verify.as_used import Used
from modelc.verify.beginning import Beginning
from modelc.verify.compare import FILTERED, Distance, Tolerance
from modelc.verify.kernels.report import OUT_OF_RANGE, KernelReport, TakenOver

AGREES, CONTRADICTS, SILENT = "agrees", "contradicts", "cannot say"
EXPLAINED, TIES = "rounding explains it", "a rounding at a tie explains it"
MOVING = "ONNX Runtime's own numbers move as far when its inputs move by a hundredth of the tolerance"
ORDINARY = "in the whole model it is as near as roundings ordinarily take it"
HALF = "float16"
AGREEING = "with which the reference evaluator of onnx agrees"
NAMED = 3  # kernels or values that a note names


@dataclass(frozen=True)
class OutputReport:
    """One output, at its worst over all samples. `rounded`: it was computed through 16-bit floats; `filtered`: it may
    have been by fewer multiplications. `amplified`: it departs from the reference though every kernel is right, for the
    model amplifies what rounding leaves, from where it `begins`, or ONNX Runtime's optimisations alone make the
    difference (`unoptimised`). `small`: it is within the tolerance for being small, but not in proportion to its
    `largest` element, and every kernel is right. Where it departs, `doubt` says which kernel cannot be told right.
    `misread` says why it is another model's though it is near."""

    name: str
    distance: Distance
    passed: bool
    rounded: bool = False
    filtered: bool = False
    amplified: bool = False
    small: bool = False
    largest: float = 0.0
    begins: Beginning | None = None
    unoptimised: bool = False
    doubt: str = ""
    misread: str = ""

    @property
    def near(self) -> bool:
        """Whether it passed by how far it is from the reference."""
        return self.passed and not self.amplified and not self.small

    def worse(self, other: OutputReport) -> OutputReport:
        """Both samples' worst."""
        farther = max((self, other), key=lambda report: report.distance.rms_rel)
        return replace(
            self,
            distance=self.distance.worse(other.distance),
            passed=self.passed and other.passed,
            amplified=self.amplified or other.amplified,
            small=self.small or other.small,
            largest=max(self.largest, other.largest),
            begins=farther.begins or self.begins or other.begins,
            unoptimised=farther.unoptimised,
            doubt=self.doubt or other.doubt,
            misread=self.misread or other.misread,
        )

    def to_json(self) -> dict[str, Any]:
        flags = ("passed", "rounded", "filtered", "amplified", "small", "largest", "unoptimised")
        sentences = ("doubt", "misread")
        told = {name: getattr(self, name) for name in (*flags, *sentences)}
        return {"name": self.name, **asdict(self.distance), **told, "begins": self.begins and asdict(self.begins)}


@dataclass(frozen=True)
class LayerReport:
    """What one kernel computed, against the ONNX value of the same name, made of the same inputs. `steps`: how many
    whole numbers are a step apart, both right, for what was rounded is at a tie. `distance` is by the tolerance as
    given. Where some element is not the same to roundoff, `referee` says why ours is right all the same (EXPLAINED,
    TIES, MOVING, ORDINARY), or what the reference evaluator of onnx says of the kernel (AGREES, CONTRADICTS, or
    SILENT)."""

    kernel: str
    value: str
    nodes: tuple[str, ...]
    distance: Distance
    steps: int = 0
    referee: str = ""

    @property
    def passed(self) -> bool:
        return self.referee not in (CONTRADICTS, SILENT)

    @property
    def settled(self) -> bool:
        """Whether all elements are ONNX Runtime's to roundoff, none at a tie."""
        return not self.referee and not self.steps

    def place(self) -> str:
        """Where two readings of the model differ, and by how much."""
        where = f"{self.value!r} (kernel {self.kernel}, nodes {', '.join(self.nodes[:NAMED])})"
        return f"{where} by {self.distance.rms_rel:.1e}"

    @property
    def read_otherwise(self) -> bool:
        """Whether ONNX Runtime reads the nodes otherwise than we and the reference evaluator of onnx do."""
        return self.referee == AGREES and not self.distance.passed

    def worse(self, other: LayerReport) -> LayerReport:
        """Both samples' worst."""
        failed = next((x for x in (self, other) if not x.passed), None)
        referee = (failed or (self if self.referee else other)).referee
        distance = self.distance.worse(other.distance)
        return replace(self, distance=distance, steps=max(self.steps, other.steps), referee=referee)

    def to_json(self) -> dict[str, Any]:
        named = {"kernel": self.kernel, "value": self.value, "nodes": list(self.nodes)}
        return {**named, **asdict(self.distance), "steps": self.steps, "referee": self.referee}


@dataclass(frozen=True)
class Report:
    """`failure` says why nothing could be compared, `notes` what to know beside the result. `kernels` were judged by
    themselves, `layers` compared with ONNX Runtime's pieces of the model; both are in the order of execution. `bf16`
    and `f16` are the policies for outputs that were computed through these floats, in place of `rtol` and `atol`;
    `narrow` says through which they were (bfloat16, float16, or none). `distinct`: how many kernels those that were
    judged are, where one that stands in several places counts once. `used`: the runs that follow where all else is
    right (as_used.py). `imported`: what was compared of those that the importer took over from the file.
    `sizes`: those at which a package for any size was run. `opening` says how long it took to open; what a package
    keeps of a report has no times."""

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
    distinct: int = 0
    imported: TakenOver = field(default_factory=TakenOver)
    sizes: tuple[Mapping[str, int], ...] = ()
    opening: str = ""

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

    def __repr__(self) -> str:
        return f"Report({'passed' if self.passed else 'FAILED'}: {self.sentence()})"

    def _repr_html_(self) -> str:
        """The outputs, and the kernels with a bar for how much of what rounding may do each is off by."""
        outputs = [(o.name, f"{o.distance.max_abs:.1e}", "passed" if o.passed else "FAILED") for o in self.outputs]
        kernels = [
            (k.kernel, ", ".join(k.nodes), f"{k.samples:,}", f"{k.worst:.2f}", "" if k.passed else "WRONG")
            for k in self.kernels
        ]
        names = ("kernel", "nodes", "samples", "of what is allowed", "")
        shares = [kernel.worst for kernel in self.kernels]
        return page(repr(self), table(("output", "largest difference", ""), outputs), table(names, kernels, shares))

    def _agreement(self) -> str:
        parts = [self._tolerance_used()] if any(output.near for output in self.outputs) else []
        parts += [self._smallness()] if any(output.small for output in self.outputs) else []
        parts += [self._amplification(output) for output in self.outputs if output.amplified]
        if any(output.amplified for output in self.outputs):
            parts += [self._otherwise(layer) for layer in self.layers if layer.read_otherwise]
        if any(output.rounded for output in self.outputs):
            parts.append(f"through {self.narrow}, for which {self.policy.rms:.1e} is allowed")
        if any(output.filtered for output in self.outputs):
            parts.append(f"by fewer multiplications (Winograd, Strassen), for which {FILTERED.rms:.1e} is allowed")
        if self.sizes:
            at = ", ".join(" ".join(f"{name}={n}" for name, n in run.items()) for run in self.sizes)
            parts.append(f"at {at}")
        if judged := [kernel for kernel in self.kernels if kernel.samples]:
            places = f" in {len(judged)} places" * (len(judged) > self.distinct)
            kernels = f"{self.distinct} kernel{'s' * (self.distinct > 1)}"
            parts.append(f"{kernels} right{places} on {sum(k.samples for k in judged):,} samples")
        if self.used:
            parts.append(self.used.sentence())
        return f"agrees with {self.reference}" + (f": {'; '.join(parts)}" if parts else "")

    def _tolerance_used(self) -> str:
        near = [output.distance for output in self.outputs if output.near]
        share, of_scale = max(d.share for d in near), max(d.of_scale for d in near)
        if not of_scale:
            return "no difference"
        of_allowed = f"at most {100 * share:.2g} % of what is allowed"
        return f"{of_allowed} (largest difference {of_scale:.1e} of the output's scale)"

    def _smallness(self) -> str:
        small = [output for output in self.outputs if output.small]
        largest, apart = max(o.largest for o in small), max(o.distance.max_abs for o in small)
        named = f"{small[0].name!r} is" if len(small) == 1 else f"{len(small)} outputs are"
        return f"{named} at most {largest:.1e} and within {apart:.1e}, and every kernel is right"

    def _amplification(self, output: OutputReport) -> str:
        grows = output.begins.sentence() if output.begins else "it grows within the kernel that writes it"
        if output.unoptimised:
            grows = "ONNX Runtime without its optimisations gives the same"
        return f"{output.name!r} departs by {output.distance.rms_rel:.1e}, and every kernel is right: {grows}"

    def _otherwise(self, layer: LayerReport) -> str:
        return f"two readings of the model differ at {layer.place()}: ONNX Runtime's, and ours, {AGREEING}"

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
        if bad.misread:
            return f"is near {self.reference}, and another model's all the same: {bad.misread}"
        return (
            f"departs from {self.reference} in {len(names)} of {len(self.outputs)} outputs: {bad.name!r} has "
            f"a relative RMS error of {bad.distance.rms_rel:.1e} and a largest error of {bad.distance.max_abs:.1e} "
            f"({self._allowed(bad)}){self._by_kernel()}{self._doubt(bad)}"
        )

    def _doubt(self, bad: OutputReport) -> str:
        if not bad.doubt:
            return ""
        return (
            f"; whether the model amplifies rounding cannot be told, for {bad.doubt}: give data with --inputs F.npz, "
            "or look at more with --check thorough"
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
            absolute = self.atol * min(1.0, output.largest)
            return f"allowed: {absolute:.2g} + {self.rtol:g} * |reference|{whole * output.filtered}"
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
            **({"sizes": [dict(run) for run in self.sizes]} if self.sizes else {}),
            "worst_rms_rel": worst,
            "bf16": asdict(self.bf16),
            "f16": asdict(self.f16),
            "rounded": [o.name for o in self.outputs if o.rounded],
            "filtered": [o.name for o in self.outputs if o.filtered],
            "amplified": [o.name for o in self.outputs if o.amplified],
            "small": [o.name for o in self.outputs if o.small],
            "share": max((o.distance.share for o in self.outputs if o.near), default=0.0),
            "kernels": {
                "distinct": self.distinct,
                "judged": sum(kernel.samples > 0 for kernel in self.kernels),
                "samples": sum(kernel.samples for kernel in self.kernels),
                "worst": max((kernel.worst for kernel in self.kernels), default=0.0),
            },
            "imported": {"compared": self.imported.compared, "elements": self.imported.elements},
            "used": self.used and self.used.to_json(),
            "unjudged": list(self.unjudged),
            "sentence": self.sentence(),
            "notes": list(self.notes),
        }
        outputs = [output.to_json() for output in self.outputs]
        layers = [layer.to_json() for layer in self.layers]
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
