"""The compilation of the float model, by whose prices it is decided what of it is in bytes, and on whose inputs errors
are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelc.compile.choices import digest_of
from modelc.compile.compilation import default_threads
from modelc.compile.inputs import applied
from modelc.compile.opening import at_usual_sizes
from modelc.compile.pipeline import Run
from modelc.compile.request import CompileRequest
from modelc.frontend.steering.uses import read_uses
from modelc.package import TensorInfo
from modelc.quantize.drop import real_outputs, relative_error, rounded
from modelc.quantize.running import runs
from modelc.quantize.samples import Arrays
from modelc.target import Target
from modelc.verify.draw import draw_inputs, roles_of

QUANTIZE = "quantize"  # the stage that decides without samples
DRAWN = 4  # inputs, on which errors are measured


def run_at_usual_sizes(request: CompileRequest, target: Target) -> Run:
    """The compilation of the float model at the usual sizes of what it leaves open."""
    config = replace(request, precision=None).settings().fixing(request.fixed)
    given = request.fixed.over(config.inputs)
    fixed, _ = at_usual_sizes(request.path, given, config, request.inputs, target)
    steering = applied(fixed, request.path, request.inputs)
    asked_for = (request.path, digest_of(request.path), target, config.allowing(precision="f32"), steering.shapes)
    threads = request.threads or default_threads()
    return Run(*asked_for, threads, constants=steering.constants, weighing=False, store=request.store)


def drawn_inputs(run: Run) -> list[Arrays]:
    """Samples at the first set of shapes, from the generator of verification; fixed inputs have their own values."""
    graph = run.imported.originals[0]
    tensors = [TensorInfo(v.name, v.dtype, v.shape) for v in map(graph.value, graph.fed)]
    roles = roles_of(read_uses(run.model), ())
    seed = run.config.verify.seed
    return [{**draw_inputs(tensors, roles, seed, sample), **run.constants} for sample in range(DRAWN)]


def error_on_drawn(plain: Path, narrow: Path, samples: Sequence[Arrays], threads: int) -> dict[str, Any]:
    """What outputs of the model in a file are off those of the float model in `plain`, on inputs that were drawn, for
    the summary of a recipe."""
    wanted, made = (list(runs(model, samples, threads)) for model in (plain, narrow))
    summary: dict[str, Any] = {"said": "there are no samples"}
    if names := real_outputs(wanted):
        summary["error_on_drawn"] = error = rounded(relative_error(made, wanted, names))
        of = f"{', '.join(map(repr, names[:2]))}{' and others' * (len(names) > 2)}"
        summary["said"] += f"; on {len(wanted)} inputs drawn at random the relative error of {of} is {error:.2%}"
    return summary
