"""The command: what a Request says of a model, its target and its inputs becomes a Run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from modelc import __version__
from modelc.compile.choices import Choices, check_choices, digest_of, read_choices_file
from modelc.compile.config import Inputs
from modelc.compile.inputs import as_chosen, made_for
from modelc.compile.limits import Limits
from modelc.compile.pipeline import Run, default_threads
from modelc.compile.request import CompileRequest, called_by_fields, named_target
from modelc.compile.result import CompileResult
from modelc.compile.stages import STAGES, Stages
from modelc.database import database_for
from modelc.database.recorded import Recorded
from modelc.errors import blaming
from modelc.ir.candidate import Candidate
from modelc.target import load_target


def compile_request(request: CompileRequest) -> CompileResult:
    """Compiles an ONNX model to a package, as a CompileRequest says. Raises ModelcError; VerificationError where the
    package is wrong, and then there is none unless `keep_unverified`."""
    path = Path(request.model)
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
    settings = request.flags.kept(request.settings(otherwise))
    with blaming(f"model {path}"):
        flags = as_chosen(locked, request.flags, settings.inputs)
        steering = flags.applied(path, request.inputs)
    target = target if target is not None else load_target("native")
    stages = Stages(
        last=request.stop_after or STAGES[-1],
        dump_dir=None if request.dump_dir is None else Path(request.dump_dir),
        progress=request.say,
    )
    database, note = database_for(request.database if request.choices is None else False, write=False)
    with database or nullcontext(), blaming(f"model {path}"):
        run = Run(
            model=path,
            digest=digest,
            target=target,
            config=settings,
            shapes=steering.shapes,
            constants=steering.constants,
            inputs=request.inputs,
            threads=request.threads or default_threads(),
            locked=locked if locked is not None and made_for(locked, steering) else None,
            tasks=tasks,
            stages=stages,
            form=request.form(target.triple),
            limits=limits,
            recorded=Recorded(database, target, request.run_threads) if database else None,
            notes=(note,) if note else (),
        )
        return run.compile(request.place, request.verify, request.keep_unverified)


compile = called_by_fields(CompileRequest, compile_request)
