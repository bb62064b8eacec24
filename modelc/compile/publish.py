"""The end of a compilation: a package is written and compared with ONNX Runtime, and takes its place when it has been
found right."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.compile.config import Verification
from modelc.compile.limits import Limits
from modelc.compile.stages import Stages
from modelc.errors import ToolchainError, VerificationError, blaming
from modelc.ir.sizes import Sizes
from modelc.package import Package, PackageSpec, write_package
from modelc.verify.compare import FILTERED
from modelc.verify.engine import EngineError
from modelc.verify.found import finding
from modelc.verify.kernels.blueprint import Blueprint
from modelc.verify.report import OutputReport, Report
from modelc.verify.verdict import verify_outputs

PLAIN = 1e-6  # relative RMS difference of kernels of two engines that multiply alike in float32


class WrongByFiltering(VerificationError):
    """An output that is computed by fewer multiplications (Winograd's or Strassen's rule), in `tasks`, is wrong."""

    def __init__(self, sentence: str, tasks: Collection[str]):
        super().__init__(sentence)
        self.tasks = tasks


@dataclass(frozen=True)
class Comparison:
    """What a package is compared with: `model`, which ONNX Runtime runs on `inputs`, or on drawn ones; its kernels with
    the `blueprints` of its variants, or of runs. `quantized`: numbers are rounded to whole ones on the way."""

    model: Path
    inputs: Mapping[str, NDArray[Any]] | None
    limits: Verification
    blueprints: Callable[[Sequence[Sizes]], Sequence[Blueprint]]
    quantized: bool = False
    runs: Sequence[Sizes] = ()  # sizes at which a package for any is compared

    def __str__(self) -> str:
        inputs = f"{self.samples * max(len(self.runs), 1)} sample(s)" if self.inputs is None else "the given inputs"
        return f"{inputs} against ONNX Runtime"

    @property
    def samples(self) -> int:
        """Inputs that are drawn for each variant; for each of several sizes one."""
        return 1 if len(self.runs) > 1 else self.limits.samples

    def report(self, folder: Path, say: Callable[[str], None]) -> Report:
        """How far the package in `folder` is off; `say` is told how many kernels of how many have run."""
        v = self.limits
        runs, feeds = finding(folder, self.model, self.inputs, v.seed, self.samples, self.runs, True)
        policy = (v.seed, self.samples, v.rtol, v.atol, v.bf16, v.f16)
        judged = (self.blueprints(runs), v.check)
        return verify_outputs(
            folder, self.model, self.inputs, *policy, True, *judged, brief=True, say=say, runs=runs, feeds=feeds
        )


def publish(
    spec: PackageSpec,
    output: Path,
    comparison: Comparison | None,
    stages: Stages,
    keep_unverified: bool = False,
    filtered: Collection[str] = (),
    limits: Limits | None = None,
) -> tuple[Package, Report | None]:
    """package, verify: the package takes its place at `output` when it has been found right, or at once where there is
    no comparison. Raises VerificationError where it is wrong, unless `keep_unverified`; and WrongByFiltering where
    tasks are `filtered`, which says that there is another way, and an output that they compute by fewer multiplications
    is wrong. Raises ConfigError where the file with the code is larger than `limits` allow."""
    report: Report | None = None
    written = False

    def check(folder: Path) -> Mapping[str, Any] | None:
        nonlocal report, written
        if limits is not None:
            limits.check_library(folder, spec.form.file_of(spec.form.emit[0]))
        if comparison is None:
            return None
        written = True
        stages.took("package", time.perf_counter() - start)
        with stages.stage("verify", str(comparison)), offering_no_verify():
            report = comparison.report(folder, partial(stages.progress, "verify"))
        is_wrong = partial(_is_by_filtering, report, comparison.quantized)
        if filtered and any(o.filtered and is_wrong(o) for o in report.outputs):
            raise WrongByFiltering(report.sentence(), filtered)
        if not report.passed and not keep_unverified:
            raise VerificationError(f"{output} was not written, for it is wrong: it {report.sentence()}")
        return report.to_json()

    stages.progress("package", str(output))
    start = time.perf_counter()
    with blaming("stage package"):
        package = write_package(spec, output, check)
    if not written:
        stages.took("package", time.perf_counter() - start)
    return package, report


def _is_by_filtering(report: Report, quantized: bool, output: OutputReport) -> bool:
    """Whether an output that is computed by fewer multiplications would be nearer without: not where the model
    amplifies what every engine rounds. In one that is `quantized` each rounds numbers next to a tie otherwise, whatever
    it multiplies."""
    amplified = output.amplified and not quantized
    return not output.passed or (amplified and report.factor(output) * PLAIN <= FILTERED.rms)


@contextmanager
def offering_no_verify() -> Iterator[None]:
    """What is lacked only to verify is named with the way to do without."""
    try:
        yield
    except (ToolchainError, EngineError) as error:
        raise type(error)(f"{error}; to have the package unverified, compile with --no-verify") from None
