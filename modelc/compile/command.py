"""The command: what a Request says of a model, its target and its inputs becomes a Run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelc import __version__
from modelc.compile.choices import Choices, check_choices, digest_of, read_choices_file
from modelc.compile.compilation import default_threads
from modelc.compile.fixed import Inputs
from modelc.compile.inputs import applied, as_chosen, made_for
from modelc.compile.limits import Limits
from modelc.compile.open_sizes import FoundDiffer, check_one_variant
from modelc.compile.opening import decides_by_error, may_find, of_several_numbers, open_ranges, open_run
from modelc.compile.pass_lists import scheduling
from modelc.compile.pipeline import Run
from modelc.compile.request import CompileRequest, named_target
from modelc.compile.result import CompileResult
from modelc.compile.stages import STAGES, Stages
from modelc.database import database_for
from modelc.database.recorded import Recorded
from modelc.errors import ConfigError, blaming
from modelc.frontend.quantize.packing import Packing
from modelc.frontend.quantize.recipe import INT8, Recipe
from modelc.frontend.quantize.write import emit_quantized, write_quantized
from modelc.ir.candidate import Candidate
from modelc.scratch import TemporaryFolder
from modelc.target import load_target


def compile_request(request: CompileRequest) -> CompileResult:
    """Compiles an ONNX model to a package, as a CompileRequest says. Raises ModelcError; VerificationError where the
    package is wrong, and then there is none unless `keep_unverified`."""
    path = request.path
    target, otherwise = named_target(request.target), None
    request.form(target.triple if target else "")  # what makes no sense is said before any work
    limits = Limits(request.max_params, request.max_arena, request.max_library)
    locked: Choices | None = None
    tasks: Mapping[str, Candidate] = {}
    digest = digest_of(path)
    if request.choices is not None:
        chosen = read_choices_file(request.choices)
        check_choices(chosen, __version__, None, target, str(request.choices))
        target, tasks = chosen.target, chosen.tasks
        locked = chosen if chosen.model_sha256 == digest else None
        otherwise = chosen.config if locked else replace(chosen.config, inputs=Inputs())
    settings = request.settings(otherwise).fixing(request.fixed)
    with blaming(f"model {path}"):
        settings = settings.naming(path)
        wanted = replace(as_chosen(locked, request.fixed, settings.inputs), states=settings.inputs.states)
        if request.choices is None and isinstance(request.database, bool):
            wanted, ranges = open_ranges(path, wanted, settings, request.inputs, target)
        else:
            wanted, ranges = of_several_numbers(wanted)
        steering = None if ranges else applied(wanted, path, request.inputs)
    target = target if target is not None else load_target("native")
    passes = scheduling(settings, target)
    recipe = _recipe(request, locked)
    if request.precision == INT8 and isinstance(recipe, Recipe) and recipe.halves:
        settings = settings.allowing(precision="f16")
    stages = Stages(
        last=request.stop_after or STAGES[-1],
        dump_dir=None if request.dump_dir is None else Path(request.dump_dir),
        progress=request.say,
    )
    facts: dict[str, Any] = {
        "threads": request.threads or default_threads(),
        "run_threads": request.run_threads,
        "tasks": tasks,
        "stages": stages,
        "form": request.form(target.triple),
        "store": request.store,
        "limits": limits,
        "recipe": recipe,
        "float_model": None if recipe is None else path,
    }
    if steering is None:
        by_error = "precision auto, which is decided at one size (say f32 or bf16)"
        tiled = f"passes over Blocks, {passes.whose}, which tile for one size (say --dim {next(iter(ranges))}=N)"
        asked = {by_error: decides_by_error(settings, target), tiled: bool(passes.passes)}
        check_one_variant(request, wanted, ranges, asked)
    database, note = database_for(request.database if request.choices is None and steering else False, write=False)
    with ExitStack() as stack:
        stack.enter_context(database or nullcontext())
        stack.enter_context(blaming(f"model {path}"))
        model = path if recipe is None else _quantized(path, recipe, request, stack)
        asked_for = (model, digest, target, settings)
        run_facts = {"given_inputs": request.inputs, **facts}
        as_before = not request.fixed.dims and not request.fixed.shapes
        one_size = steering is None or (len(steering.shapes) == 1 and isinstance(request.database, bool))
        if (
            one_size
            and not passes.passes
            and (locked.finding if locked is not None else may_find(path, wanted, settings, target))
        ):
            fixed = wanted if steering is None else replace(wanted, dims={}, shapes=steering.shapes)
            finding = open_run(asked_for, fixed, ranges, locked, steering is None and as_before, **run_facts).finding()
            if finding.any_size.found:
                with suppress(FoundDiffer):
                    return finding.compile(request.place, request.verify, request.keep_unverified)
        if steering is None:
            open_one = open_run(asked_for, wanted, ranges, locked, as_before, **run_facts)
            if request.inputs is not None:
                open_one.compared()  # what does not fit is said before any work
            return open_one.compile(request.place, request.verify, request.keep_unverified)
        run = Run(
            model=model,
            digest=digest,
            target=target,
            config=settings,
            shapes=steering.shapes,
            constants=steering.constants,
            inputs=request.inputs,
            locked=locked if locked is not None and made_for(locked, steering) else None,
            recorded=Recorded(database, target, request.run_threads) if database else None,
            notes=(note,) if note else (),
            **facts,
        )
        return run.compile(request.place, request.verify, request.keep_unverified)


def _recipe(request: CompileRequest, locked: Choices | None) -> Recipe | Packing | None:
    """How the model is quantized: as the request says, or the choices. Raises ConfigError where what is asked for needs
    to be said, and is not."""
    if request.block is not None and request.weights is None:
        raise ConfigError("--block says how many weights have one scale: give --weights int4 too")
    recipe = request.recipe if request.recipe is not None else locked.recipe if locked is not None else None
    if recipe is not None:
        return recipe
    if request.precision == INT8:
        raise ConfigError(
            f"precision int8 was asked for, and {request.choices} says nothing of bytes in this model: compile without "
            "--choices, or give those of a package of this very model in int8"
        )
    if request.emit_onnx is not None:
        raise ConfigError(
            "--emit-onnx writes the model that was quantized, and none is: compile with --precision int8, or with "
            "--weights int4"
        )
    return None


def _quantized(path: Path, recipe: Recipe | Packing, request: CompileRequest, stack: ExitStack) -> Path:
    """The quantized model, in a file of the model's own name, for as long as `stack` is open."""
    folder = Path(stack.enter_context(TemporaryFolder("quantized")))
    request.say("quantize", f"{len(recipe.narrow)} of {len(recipe.layers)} layers")
    proto = write_quantized(path, recipe, folder / path.name)
    if request.emit_onnx is not None:
        emit_quantized(proto, Path(request.emit_onnx))
    return folder / path.name
