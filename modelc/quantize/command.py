"""The command: a CompileRequest and a Calibration become a Recipe, and a package."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from modelc.compile.command import compile_request
from modelc.compile.request import CompileRequest, named_target
from modelc.compile.result import CompileResult
from modelc.errors import ConfigError, blaming
from modelc.frontend.quantize.recipe import INT8, Recipe
from modelc.passes.machine import multiplied
from modelc.quantize.calibration import STAGE, Calibrating, Calibration
from modelc.quantize.decide import GIVEN_BACK, Deciding
from modelc.quantize.price import limits_of_weights
from modelc.scratch import TemporaryFolder
from modelc.target import load_target


def calibrated(request: CompileRequest, calibration: Calibration) -> Recipe:
    """What of the request's model multiplies bytes on its target, and how it is rounded. Raises ModelcError."""
    target = named_target(request.target) or load_target("native")
    recipes = list[Recipe]()
    for most in limits_of_weights(target):
        with blaming(f"model {request.model}"), TemporaryFolder("calibrate") as folder, ExitStack() as stack:
            calibrating = Calibrating(request, calibration, target, most, Path(folder), stack)
            recipes.append(Deciding(calibrating).recipe())
        if not any(layer.why.startswith(GIVEN_BACK) for layer in recipes[-1].layers):
            break
    return min(recipes, key=lambda recipe: float(recipe.summary["int8_seconds"]))


def compile_calibrated(request: CompileRequest, calibration: Calibration) -> CompileResult:
    """A package of the request's model as `calibrated` says. Raises ModelcError."""
    if request.weights is not None:
        raise ConfigError("--weights says what weights are stored as: give either --weights or --calibrate")
    if request.choices is not None:
        raise ConfigError("--choices says what multiplies bytes: give either choices or --calibrate")
    if request.precision not in (INT8, "auto"):
        raise ConfigError(f"--calibrate is for --precision int8 or auto, and this is {request.precision or 'f32'}")
    units = multiplied(named_target(request.target) or load_target("native"))
    if request.precision == "auto" and not any(unit.pays for unit in units):
        result = compile_request(request)
        return replace(
            result, notes=(*result.notes, "not calibrated: the target has no instruction that multiplies bytes")
        )
    begun = time.perf_counter()
    recipe = calibrated(request, calibration)
    took = time.perf_counter() - begun
    result = compile_request(replace(request, recipe=recipe))
    return replace(result, seconds={STAGE: took, **result.seconds})
