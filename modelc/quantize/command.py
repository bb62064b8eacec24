"""The command: a CompileRequest and a Calibration become a Recipe, and a package. `modelc.compile` is here, for it may
be asked to calibrate."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from modelc.compile.command import compile_request
from modelc.compile.request import CompileRequest, named_target
from modelc.compile.result import CompileResult
from modelc.errors import ConfigError, blaming
from modelc.frontend.load.given import model_file
from modelc.frontend.quantize.recipe import INT8, Recipe
from modelc.passes.machine import multiplied
from modelc.quantize.calibration import MAX_DROP, Calibration
from modelc.quantize.decide import GIVEN_BACK, STAGE, Deciding
from modelc.quantize.measure import Metric
from modelc.quantize.price import limits_of_weights
from modelc.scratch import TemporaryFolder
from modelc.target import load_target
from modelc.verb import asked_by


@dataclass(frozen=True)
class CalibratedRequest(CompileRequest):
    """What modelc.compile is asked for; it says what each field is."""

    calibrate: str | Path | None = field(default=None, kw_only=True)
    metric: str | Metric | None = field(default=None, kw_only=True)
    max_drop: float | None = field(default=None, kw_only=True)

    @property
    def calibration(self) -> Calibration | None:
        """None where the model is not calibrated. Raises ConfigError."""
        if self.calibrate is not None:
            return Calibration(self.calibrate, self.metric, MAX_DROP if self.max_drop is None else self.max_drop)
        for name, given in (("metric", self.metric), ("max_drop", self.max_drop)):
            if given is not None:
                raise ConfigError(f"{name} is {given!r}, which judges a calibration: give calibrate too, its samples")
        return None


def calibrated(request: CompileRequest, calibration: Calibration) -> Recipe:
    """What of the request's model multiplies bytes on its target, and how it is rounded. Raises ModelcError."""
    target = named_target(request.target) or load_target("native")
    recipes = list[Recipe]()
    for most in limits_of_weights(target):
        with blaming(f"model {request.path}"), TemporaryFolder("calibrate") as folder, ExitStack() as stack:
            recipes.append(Deciding(request, calibration, target, most, Path(folder), stack).recipe())
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


@asked_by(CalibratedRequest)
def compile(request: CalibratedRequest) -> CompileResult:
    """Compiles an ONNX model to a package, and compares the package with ONNX Runtime.

    What a model leaves open is fixed by `shapes`, `dims` and `constants`, or by the shapes of `inputs`. The package
    takes its place when it has been found right: a call that fails or is ended leaves none.

    Args:
        model: A path, the bytes of an ONNX file, or an onnx.ModelProto.
        target: What it is compiled for: a name of modelc.targets.names(), a .yaml file, or a Target. Default: this
            machine.
        output: Where the package goes. Default: MODEL.modelc in the working folder, MODEL.TARGET.modelc where a target
            is named; MODEL is `model` where the model is no file.
        shapes: Shapes of inputs by name, `{"x": (1, 3, 224, 224)}`, or a list of such: each makes a variant, and a run
            takes the variant that fits.
        dims: Numbers for free dimensions by their names, `{"batch": 8}`; each of several numbers makes a variant.
        constants: Inputs that become constants: a number, true or false, a list, an array, the path of a .npy file.
        inputs: Arrays by name that the package is verified with; their shapes hold where neither `shapes` nor `dims`
            are given. Default: drawn.
        states: Inputs that the package keeps from run to run, from zeros on, each with the output that it is after a
            run.
        pad_dims: Names of dimensions along which inputs may be shorter than a variant's: they are filled up.
        pad_values: By input, what it is filled up with in place of zeros.
        bounds: By name the most that a value can be of which a size is made, where that depends on data.
        config: Parameters of the stages: a name, a .yaml file or a Config.
        precision: What contractions multiply: f32, bf16, f16, auto (bf16 where it pays and is near enough), or int8,
            which `calibrate` or `choices` decide in detail. Default: as `config` says.
        database: Of each kernel the schedule is taken that this database has measured to be the fastest for just this
            target and version of modelc. True: the user's own; False: none.
        progress: Is told each stage and what it is at, `progress(stage, text)`; an exception from it ends the call.
        threads: Kernels that are compiled at a time. Default: the processors that may be used.
        verify: Whether kernels are judged and the package is compared with ONNX Runtime.
        keep_unverified: Whether a package is left that verification found wrong.
        stop_after: The last stage: import, simplify, partition, schedule, codegen, package or verify.
        dump_dir: A folder for the text of the model after each stage.
        choices: The choices.json of an earlier package, or its folder. Target, shapes, constants and configuration are
            as it says where nothing else is given, and the package is the same byte for byte. Of another model's, and
            for other shapes, the schedules of the kernels that occur are taken.
        run_threads: The threads on which kernels of `database` were measured.
        prefix: What the names of the library begin with. Default: the model's name.
        emit: What the code is in: so, a, o, rust, one or several. Default: so, or what the target's system loads.
        embed_params: Whether the parameters lie in the library.
        freestanding: Whether the library needs neither a C library nor an operating system.
        libc: The C library: gnu, gnu.2.N, musl or none. Default: the oldest gnu.
        cc: The C compiler for the target. Default: $CC, or what is there.
        ar: What makes static libraries. Default: what is there.
        max_params: The most that parameters may take, "4MB", or "1.2x", times those of the model.
        max_arena: The most that the arena may take, the memory of what is computed on the way: "4MB".
        max_library: The most that the file with the code may take: "4MB".
        recipe: How a model is quantized, as an earlier calibration found.
        emit_onnx: Where the quantized model is written as ONNX.
        weights: int4 or int4-float: the weights of matrix products have 4 bits, and are multiplied by activations in
            int8 by block, or in float32.
        block: How many weights of 4 bits have one scale. Default: 32.
        calibrate: Samples by which the model is quantized, for precision int8 or auto: an .npz file whose arrays have a
            leading axis of samples, or a folder with a file for each.
        metric: A function `metric(outputs, sample)`, which scores a model's outputs: larger is better. Both arguments
            map names to arrays; the sample has the labels of the data, too. Or FILE.py:FUNCTION; the file is executed.
            Default: the share of agreeing classes, or the relative error.
        max_drop: How much worse than the float model outputs may be on samples that are held back, as a share from 0 to
            1. Default: 0.01.

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
        calibration = given.calibration
        return compile_request(given) if calibration is None else compile_calibrated(given, calibration)
