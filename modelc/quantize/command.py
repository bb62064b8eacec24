"""The command: a CompileRequest with samples becomes a Recipe, and a package. `modelc.compile` is here, for it may
be asked to calibrate."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from modelc.compile.command import compile_request
from modelc.compile.compilation import default_threads
from modelc.compile.request import CompileRequest, named_target
from modelc.compile.result import CompileResult
from modelc.compile.trade_off import Row
from modelc.errors import ConfigError, blaming
from modelc.frontend.load.given import model_file
from modelc.frontend.quantize.packing import Packing
from modelc.frontend.quantize.recipe import INT8, Recipe
from modelc.passes.machine import multiplied
from modelc.quantize.by_metric import check_metric
from modelc.quantize.decide import GIVEN_BACK, Deciding
from modelc.quantize.dynamic import dynamic_recipe
from modelc.quantize.float_run import QUANTIZE
from modelc.quantize.packed import packed
from modelc.quantize.price import limits_of_weights
from modelc.quantize.subject import STAGE, Subject
from modelc.quantize.trade_off import rows_of, worth
from modelc.scratch import TemporaryFolder
from modelc.target import load_target
from modelc.verb import asked_by


def calibrated(request: CompileRequest) -> Recipe:
    """What of the request's model multiplies bytes on its target, and how it is rounded. Raises ModelcError."""
    recipes = list[Recipe]()
    with blaming(f"model {request.path}"), closing(_deciding(request)) as each:
        for deciding in each:
            recipes.append(deciding.recipe())
            if not any(layer.why.startswith(GIVEN_BACK) for layer in recipes[-1].layers):
                break
    return min(recipes, key=lambda recipe: float(recipe.summary["int8_seconds"]))


def traded_off(request: CompileRequest) -> tuple[Row, ...]:
    """What fewer layers in bytes take more of, and lose less. Raises ModelcError."""
    with blaming(f"model {request.path}"), closing(_deciding(request)) as each:
        return worth([row for deciding in each for row in rows_of(deciding)])


def _deciding(request: CompileRequest) -> Generator[Deciding]:
    """What decides, by the largest weight, while it is asked for; the fastest first."""
    target = named_target(request.target) or load_target("native")
    with TemporaryFolder("calibrate") as folder:
        subject = Subject(request, target, Path(folder))
        for most in limits_of_weights(target):
            with ExitStack() as stack:
                yield Deciding(subject, most, stack)


def compile_quantized(request: CompileRequest) -> CompileResult:
    """A package of the request's model in few bits, by samples or without. Raises ModelcError."""
    check_metric(request.metric)
    decide, stage = _way(request)
    target = named_target(request.target) or load_target("native")
    if decide is calibrated and request.precision == "auto" and not any(unit.pays for unit in multiplied(target)):
        result = compile_request(request)
        return replace(
            result, notes=(*result.notes, "not calibrated: the target has no instruction that multiplies bytes")
        )
    begun = time.perf_counter()
    if decide is calibrated and request.trade_off:
        rows = traded_off(request)
        seconds = {stage: time.perf_counter() - begun}
        return CompileResult(None, target.name, seconds, request.threads or default_threads(), trade_off=rows)
    recipe = decide(request)
    took = time.perf_counter() - begun
    result = compile_request(replace(request, recipe=recipe))
    return replace(result, seconds={stage: took, **result.seconds})


def _way(request: CompileRequest) -> tuple[Callable[[CompileRequest], Recipe | Packing], str]:
    """What decides which of the request's model is in few bits, and the stage that this is called. Raises
    ConfigError."""
    if request.weights is not None:
        return packed, QUANTIZE
    if request.calibrate is None:
        return dynamic_recipe, QUANTIZE
    if request.choices is not None:
        raise ConfigError("--choices says what multiplies bytes: give either choices or --calibrate")
    if request.precision not in (INT8, "auto"):
        raise ConfigError(f"--calibrate is for --precision int8 or auto, and this is {request.precision or 'f32'}")
    return calibrated, STAGE


@asked_by(CompileRequest)
def compile(request: CompileRequest) -> CompileResult:
    """Compiles an ONNX model to a package, and compares the package with ONNX Runtime.

    What a model leaves open is fixed by `shapes`, `dims` and `constants`, or by the shapes of `inputs`. The package
    takes its place when it has been found right: a call that fails or is ended leaves none.

    Returns:
        A CompileResult: the package's path, sizes in bytes, seconds by stage, the Report of the verification.

    Raises:
        ModelError: The file is no ONNX model, has an operator that cannot be compiled, or a dimension that is open.
        InputError: `shapes`, `dims`, `constants` or `inputs` do not fit the model.
        TargetError: There is no such target, or it is described wrongly.
        ConfigError: Arguments contradict each other, or a configuration is wrong.
        PackageError: The package cannot be written there.
        ToolchainError: There is no C compiler or emulator for the target.
        VerificationError: The package computes something else than the model.

    Example:
        >>> result = modelc.compile("net.onnx", output="net.modelc", shapes={"x": (1, 3, 20, 24)})
        >>> result.path.name, result.report.passed
        ('net.modelc', True)
    """
    with model_file(request.model, request.name) as path:
        given = replace(request, model=path)
        return compile_quantized(given) if given.quantizes else compile_request(given)
