"""What is asked of a package, and what it is: verified, sizes, speed beside an engine and beside a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.build.kept import MANIFEST
from modelc.build.matrix import Gates, Model
from modelc.build.summary import RATIO
from modelc.errors import ModelcError, ToolchainError
from modelc.package import Package, lacking, machine_of, read_choices
from modelc.package.read import sha256_of
from modelc.package.toolchain import native_machine

Arrays = Mapping[str, NDArray[Any]]
SECONDS = 2.0  # that each engine is timed for
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
INSTRUCTIONS = "max-more-instructions"


@dataclass(frozen=True)
class GateResult:
    """`value` beside `limit`, in bytes or as a ratio; `said` is the sentence."""

    gate: str
    outcome: str
    said: str
    limit: float | None = None
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sizes_of(package: Package) -> dict[str, int]:
    """Bytes of a package's parameters and library, and of its largest arena."""
    manifest = package.manifest
    arena = max(plan.arena_bytes for plan in manifest.variants)
    return {
        "params": manifest.params_bytes,
        "library": manifest.files[manifest.linked.form.code].bytes,
        "arena": arena,
    }


def judged(gates: Gates, package: Package) -> Iterator[GateResult]:
    """What needs no timing."""
    if gates.verified:
        report = package.manifest.verification
        passed = bool(report and report.get("passed"))
        said = str(report.get("sentence", "")) if report else "nothing was compared with ONNX Runtime"
        yield GateResult("verified", PASSED if passed else FAILED, said)
    for part, size in sizes_of(package).items():
        limit = getattr(gates, part)
        if limit is not None:
            over = f", {size - limit:,} too many" if size > limit else ""
            outcome = FAILED if size > limit else PASSED
            yield GateResult(f"max-{part}", outcome, f"{size:,} bytes of {limit:,}{over}", limit, size)
    if gates.drop is not None and (result := _drop(gates.drop, package)) is not None:
        yield result


def _drop(limit: float, package: Package) -> GateResult | None:
    """How much worse a package is than the float model that it was quantized from; None where it was not."""
    quantized = read_choices(package).get("quantized")
    if quantized is None:
        return None
    summary = quantized["summary"]
    if "drop" not in summary:
        return _skipped("max-drop", "without samples the drop is not measured")
    drop = float(summary["drop"])
    outcome = PASSED if drop <= limit else FAILED
    return GateResult("max-drop", outcome, f"{drop:.3%} worse, at most {limit:.3%} allowed", limit, drop)


def timed(
    model: Model, package: Package, baseline: Path | None, inputs: Arrays | None, say: Callable[[str], None]
) -> Iterator[GateResult]:
    """What has to be timed, skipped where this machine cannot run the package, and what is counted under an emulator
    too. `baseline` is the package of before."""
    gates, why = model.gates, _cannot_time(package)
    for engine, least in gates.ratios.items():
        yield _beside(engine, least, model, package, inputs, say) if not why else _skipped(f"{RATIO}{engine}", why)
    for gate, floor in gates.slowdowns.items():
        if why and gate != INSTRUCTIONS:
            yield _skipped(gate, why)
        elif baseline is None:
            yield GateResult(gate, SKIPPED, "the baseline has no such cell: give --baseline BUILD.json")
        else:
            yield _slowdown(gate, floor, package, baseline, inputs, say)


def _skipped(gate: str, why: str) -> GateResult:
    return GateResult(gate, SKIPPED, why)


def _slowdown(
    gate: str, floor: float, package: Package, baseline: Path, inputs: Arrays | None, say: Callable[[str], None]
) -> GateResult:
    from modelc.verify.rounds import Pair
    from modelc.verify.slower import slower, slower_kernels

    try:
        if sha256_of(package.path / MANIFEST) == sha256_of(baseline / MANIFEST):
            return GateResult(gate, PASSED, "the very package of the baseline", floor, 0.0)
        if gate == INSTRUCTIONS:
            said, share = _more_instructions(package, baseline, inputs)
            failed = share > floor
        else:
            judging = slower if gate == "max-slowdown" else slower_kernels
            verdict = judging(Pair.of(package.path, baseline, inputs), floor, 1, SECONDS, say)
            said, share, failed = verdict.sentence(), verdict.share, verdict.slower
    except ToolchainError as error:
        return GateResult(gate, SKIPPED, str(error), floor)
    except (ModelcError, OSError) as error:
        return GateResult(gate, FAILED, str(error))
    return GateResult(gate, FAILED if failed else PASSED, f"{said}, beside {baseline}", floor, share)


def _more_instructions(package: Package, baseline: Path, inputs: Arrays | None) -> tuple[str, float]:
    """By what share a run takes more instructions than the baseline's, and the sentence. Raises ToolchainError where
    nothing counts them here."""
    from modelc.verify.check import given_or_drawn
    from modelc.verify.counts import instructions

    feed = given_or_drawn(package, None, inputs)
    now, before = (instructions(path, feed) for path in (package.path, baseline))
    share = now / before - 1
    return (
        f"{now:,} instructions in a run, {before:,} before: {abs(share):.2%} {'more' if share > 0 else 'fewer'}",
        share,
    )


def _beside(
    engine: str, least: float, model: Model, package: Package, inputs: Arrays | None, say: Callable[[str], None]
) -> GateResult:
    from modelc.verify.bench import bench

    gate = f"{RATIO}{engine}"
    try:
        report = bench(package.path, [engine], model.path, 1, SECONDS, lambda stage, text: say(text), inputs=inputs)
    except ModelcError as error:
        return GateResult(gate, FAILED, str(error))
    ratio = report["ratio"][engine]
    missing = f", {least - ratio:.3f} too little" if ratio < least else ""
    said = f"{ratio:.3f} times as fast as {engine}, at least {least:g} asked for{missing}"
    return GateResult(gate, PASSED if ratio >= least else FAILED, said, least, ratio)


def _cannot_time(package: Package) -> str:
    target = package.manifest.target
    if machine_of(target.triple) != native_machine():
        return f"packages for {target.triple} cannot be timed on this machine: time them on one of that architecture"
    missing = lacking(target.features)
    return f"this machine lacks {', '.join(missing[:4])}" if missing else ""
