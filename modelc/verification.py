"""A package that is there against ONNX Runtime: its outputs, and kernel by kernel what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc import __version__
from modelc.choices import check_choices, digest_of, parse_choices
from modelc.errors import InputError, blaming
from modelc.package import Package, read_choices, read_package
from modelc.pipeline import Run
from modelc.verify import Report
from modelc.verify.check import (
    ATOL,
    RTOL,
    filled_up,
    given_or_drawn,
    other_model,
    variant_of,
    verify_outputs,
)
from modelc.verify.compare import BF16, Tolerance
from modelc.verify.report import LayerReport


def verify(
    package: str | Path,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    samples: int = 2,
    rtol: float = RTOL,
    atol: float = ATOL,
    per_layer: bool = False,
    bf16: Tolerance = BF16,
) -> Report:
    """Compares a package with ONNX Runtime on `inputs`, or on `samples` drawn ones for each variant; what is computed
    through bfloat16 has to be as near as `bf16` says, everything else as `rtol` and `atol` say. `per_layer` also builds
    the package again from its choices with every kernel's result as an output, and compares these."""
    with blaming(f"package {package}, model {model}"):
        return _verify(package, model, inputs, seed, samples, rtol, atol, per_layer, bf16)


def _verify(
    package: str | Path,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None,
    seed: int,
    samples: int,
    rtol: float,
    atol: float,
    per_layer: bool,
    bf16: Tolerance,
) -> Report:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not 0 <= value < inf:
            raise InputError(f"{name} is {value}; expected a number from 0")
    read = read_package(package)
    notes = other_model(read, model)

    def kernels(feed: Mapping[str, NDArray[Any]]) -> tuple[LayerReport, ...]:
        return _layers(read, Path(model), feed, rtol, atol, bf16)

    rebuilt = None if notes else kernels
    report = verify_outputs(Path(package), Path(model), inputs, seed, samples, rtol, atol, bf16, kernels=rebuilt)
    report = replace(report, notes=(*notes, *report.notes))
    if not per_layer:
        return report
    return replace(report, layers=kernels(filled_up(read, given_or_drawn(read, model, inputs, seed))))


def _layers(
    read: Package, model: Path, feed: Mapping[str, NDArray[Any]], rtol: float, atol: float, bf16: Tolerance
) -> tuple[LayerReport, ...]:
    """Every kernel of the variant that takes `feed`, in a package that is built again from its choices."""
    source = str(read.path / "choices.json")
    chosen = parse_choices(read_choices(read), source)
    digest = digest_of(model)
    check_choices(chosen, __version__, digest, None, source)
    number = variant_of(read, feed)
    only = slice(number, number + 1)
    one = replace(chosen, shapes=chosen.shapes[only], float32=chosen.float32[only], layouts=chosen.layouts[only])
    constants = {one.name: one.array() for one in chosen.constants}
    config = replace(chosen.config, verify=replace(chosen.config.verify, rtol=rtol, atol=atol, bf16=bf16))
    run = Run(model, digest, chosen.target, config, one.shapes, locked=one, tasks=one.tasks, constants=constants)
    programs = run.programs()
    return run.layers(programs, run.kernels(programs.rounded), dict(feed))
