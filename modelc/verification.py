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
from modelc.ir.program import Program
from modelc.package import Package, read_choices, read_package, write_package
from modelc.partition.precision import rounded_values
from modelc.pipeline import Run
from modelc.scratch import TemporaryFolder
from modelc.verify import Probe, Report, compare_layers
from modelc.verify.check import (
    ATOL,
    RTOL,
    drawn,
    fixed_inputs,
    other_model,
    variant_of,
    verify_outputs,
    without_constants,
)
from modelc.verify.compare import BF16, Tolerance


def verify(
    package: str | Path,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    samples: int = 1,
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
    report = verify_outputs(Path(package), Path(model), inputs, seed, samples, rtol, atol, bf16)
    read = read_package(package)
    report = replace(report, notes=other_model(read, model))
    if not per_layer:
        return report
    source = str(read.path / "choices.json")
    chosen = parse_choices(read_choices(read), source)
    digest = digest_of(Path(model))
    check_choices(chosen, __version__, digest, None, source)
    feed = next(drawn(read, model, seed)) if inputs is None else dict(without_constants(fixed_inputs(read), inputs))
    number = variant_of(read, feed)
    only = slice(number, number + 1)
    one = replace(chosen, shapes=chosen.shapes[only], float32=chosen.float32[only], layouts=chosen.layouts[only])
    constants = {one.name: one.array() for one in chosen.constants}
    given = (Path(model), digest, chosen.target, chosen.config, one.shapes)
    run = Run(*given, locked=one, tasks=one.tasks, constants=constants)
    with TemporaryFolder("layers") as folder:
        _, programs = run.programs()
        spec = run.spec(programs, run.kernels(programs), one.float32, expose=True)
        exposed = write_package(spec, Path(folder) / "exposed.modelc")
        layers = compare_layers(exposed.path, _probes(programs[0], exposed), model, feed, rtol, atol, bf16)
    return replace(report, layers=layers)


def _probes(program: Program, exposed: Package) -> tuple[Probe, ...]:
    """What the tasks write, in order of execution."""
    there = {tensor.name for tensor in exposed.manifest.variants[0].outputs}
    found, rounded = [], rounded_values(program)
    for bound in program.tasks:
        for value in (program.values[name] for name in bound.outputs):
            if value.root in there:
                place = (value.dtype, value.shape, value.layout, value.strides, value.root, value.offset)
                found.append(Probe(bound.task.name, bound.task.nodes, value.name, *place, value.name in rounded))
    return tuple(found)
