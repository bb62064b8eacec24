"""A package that is there: its kernels by what they mean, its outputs against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc import __version__
from modelc.compile.any_size import AnySize, any_size
from modelc.compile.choices import check_choices, digest_of, parse_choices
from modelc.compile.open_sizes import OpenRun
from modelc.compile.pipeline import Run
from modelc.compile.stages import Stages
from modelc.errors import ConfigError, InputError, InvalidIR, ModelcError, TargetError, blaming
from modelc.frontend.load.given import ModelSource, model_file
from modelc.frontend.quantize.write import write_quantized
from modelc.ir.sizes import Sizes
from modelc.package import Package, read_choices, read_package, run_of
from modelc.scratch import TemporaryFolder
from modelc.verb import Progress
from modelc.verify.check import other_model
from modelc.verify.compare import ATOL, BF16, F16, RTOL, Tolerance
from modelc.verify.found import finding
from modelc.verify.kernels.blueprint import Blueprint
from modelc.verify.kernels.samples import EFFORTS
from modelc.verify.report import Report
from modelc.verify.verdict import SAMPLES, verify_outputs


def verify(
    package: str | Path,
    model: ModelSource,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    samples: int = SAMPLES,
    rtol: float = RTOL,
    atol: float = ATOL,
    per_layer: bool = False,
    bf16: Tolerance = BF16,
    f16: Tolerance = F16,
    check: str = "default",
    progress: Progress | None = None,
) -> Report:
    """Judges every kernel of a package by itself, and compares the whole with ONNX Runtime.

    Args:
        package: A package for this machine, or one that it emulates. Its library is executed, in another process.
        model: The model that it was made of, as of modelc.compile, or another with the same inputs and outputs.
        inputs: Arrays by name. Default: drawn.
        seed: Of the drawn inputs.
        samples: How many inputs are drawn for each variant.
        rtol: An output may be off by atol + rtol * |ONNX Runtime's|.
        atol: Likewise.
        per_layer: Whether every kernel is also compared with ONNX Runtime's piece of the model.
        bf16: How near outputs have to be that are computed through bfloat16.
        f16: Likewise in float16.
        check: How many numbers of each kernel are judged: quick, default or thorough.
        progress: Is told each stage and what it is at, `progress(stage, text)`; an exception from it ends the call.

    Returns:
        A Report: `passed`, `sentence()`, each output and each kernel.

    Raises:
        InputError: An argument, or `inputs`, do not fit.
        PackageError: The package is damaged.
        ModelError: The model cannot be read.
        ToolchainError: There is no emulator for the package.
        VerificationError: The package does not run to its end.

    Example:
        >>> report = modelc.verify("net.modelc", "net.onnx", check="quick")
        >>> report.passed, len(report.outputs)
        (True, 1)
    """
    with (
        model_file(model, Path(package).stem) as path,
        blaming(f"package {package}, model {path}"),
        ExitStack() as stack,
    ):
        for name, value in (("rtol", rtol), ("atol", atol)):
            if not 0 <= value < inf:
                raise InputError(f"{name} is {value}; expected a number from 0")
        if check not in EFFORTS:
            raise InputError(f"check is {check!r}; expected one of {', '.join(EFFORTS)}")
        told = progress or (lambda stage, text: None)
        read = read_package(package)
        differences = other_model(read, path)
        notes = list(differences)
        if not differences and (quantized := _as_quantized(read, path, stack)) is not None:
            path, notes = quantized, ["the model is quantized as for the package, and compared so"]
        blueprints: tuple[Blueprint, ...] = ()
        runs, feeds = finding(read.path, path, inputs, seed, samples, _runs_of(read, inputs), False)
        try:
            blueprints = blueprints_of(read, path, told, runs) if read_choices(read) else ()
        except TargetError as error:  # a user's intrinsics lie elsewhere
            notes.append(f"its kernels cannot be judged by themselves: {error}")
        except (ModelcError, InvalidIR) as error:
            if not differences:
                raise
            notes.append(f"its kernels cannot be judged by that file, whose Tasks are others: {error}")
        if not read_choices(read):
            notes.append("its kernels cannot be judged by themselves, for choices.json does not say how they were made")
        limits = (rtol, atol, bf16, f16)
        report = verify_outputs(
            Path(package),
            path,
            inputs,
            seed,
            samples,
            *limits,
            blueprints=blueprints,
            check=check,
            per_layer=per_layer,
            say=partial(told, "verify"),
            runs=runs,
            feeds=feeds,
        )
        return replace(report, notes=(*notes, *report.notes))


def _runs_of(read: Package, inputs: Mapping[str, NDArray[Any]] | None) -> tuple[Sizes, ...]:
    """The sizes at which a package for any is compared: those of the inputs, or several. Raises InputError."""
    plan = read.manifest.variants[0]
    if not plan.free:
        return ()
    sizes = AnySize.of_package(plan.free)
    if inputs is None:
        return sizes.compared()
    return (run_of(replace(plan, free=tuple(sizes.given.values())), inputs, read.path),)


def _as_quantized(read: Package, model: Path, stack: ExitStack) -> Path | None:
    """The model as the package was made of it, for as long as `stack` is open; None where it was not quantized."""
    tree = read_choices(read)
    said = not {"quantized", "packed"}.isdisjoint(tree)
    recipe = parse_choices(tree, str(read.path / "choices.json")).recipe if said else None
    if recipe is None:
        return None
    path = Path(stack.enter_context(TemporaryFolder("quantized"))) / model.name
    write_quantized(model, recipe, path)
    return path


def blueprints_of(
    read: Package, model: Path, progress: Progress = lambda stage, text: None, runs: Sequence[Sizes] = ()
) -> tuple[Blueprint, ...]:
    """How each variant of a package was made, or one for any size is in each of the `runs`, from its choices and its
    model, or another with the same Tasks. Raises ConfigError where the choices do not name all of them."""
    source = str(read.path / "choices.json")
    chosen = parse_choices(read_choices(read), source)
    check_choices(chosen, __version__, None, None, source)
    constants = {one.name: one.array() for one in chosen.constants}
    facts: dict[str, Any] = {
        "model": model,
        "digest": digest_of(model),
        "target": chosen.target,
        "config": chosen.config,
        "shapes": chosen.shapes,
        "locked": chosen,
        "tasks": chosen.tasks,
        "constants": constants,
        "stages": Stages(progress=progress),
    }
    if free := read.manifest.variants[0].free:
        open_sizes = any_size(model, chosen.free, constants, chosen.config.inputs.states)
        facts["shapes"] = chosen.shapes_of_inputs
        opened = OpenRun(**facts, alike=True, free=open_sizes.free, any_size=open_sizes)
        opened = opened.finding() if any(size.is_found for size in free) else opened
        if opened.any_size.free != tuple(replace(size, growth=0) for size in free) or len(opened.shapes) != len(
            chosen.shapes
        ):
            raise ConfigError(f"{source} was chosen for other sizes than the package has: its kernels cannot be judged")
        return replace(opened, free=free).blueprints_at(runs)
    run = Run(**facts)
    programs = run.programs()
    tasks = {bound.task.hash: bound.task for program in programs.rounded for bound in program.kernels}
    if missing := [task.name for key, task in tasks.items() if key not in chosen.tasks]:
        counts = f"{len(missing)} of {len(tasks)} Tasks"
        raise ConfigError(f"{source} has no schedule of {counts} of {model}, the first of which is {missing[0]}")
    return run.blueprints(programs)
