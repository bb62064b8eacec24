"""The compilation of the float model, by whose prices it is decided what of it is in bytes."""

from __future__ import annotations

from dataclasses import replace

from modelc.compile.choices import digest_of
from modelc.compile.inputs import applied
from modelc.compile.opening import at_usual_sizes
from modelc.compile.pipeline import Run, default_threads
from modelc.compile.request import CompileRequest
from modelc.quantize.price import require_bytes
from modelc.target import Target


def run_at_usual_sizes(request: CompileRequest, target: Target) -> Run:
    """The compilation of the float model at the usual sizes of what it leaves open, by which layers are priced. Raises
    ConfigError where the target does not multiply bytes."""
    config = replace(request, precision=None).settings().fixing(request.fixed)
    require_bytes(target, config.policy.tensorize)
    given = request.fixed.over(config.inputs)
    fixed, _ = at_usual_sizes(request.path, given, config, request.inputs, target)
    steering = applied(fixed, request.path, request.inputs)
    asked_for = (request.path, digest_of(request.path), target, config.allowing(precision="f32"), steering.shapes)
    threads = request.threads or default_threads()
    return Run(*asked_for, threads, constants=steering.constants, weighing=False, store=request.store)
