"""The distinct Tasks of models, as `compile` schedules them: after its passes, its layouts and its precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ansor_ops
import onnx
import paths  # noqa: F401
from bench_int8 import write_model
from trained_models import catalogue

from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.target import Target

PRODUCT = "bytes"  # bytes-512: MatMulInteger of 512 x 512 x 512


@dataclass(frozen=True)
class Found:
    """A Task, its name (MODEL:TASK, with @bf16 where that is the precision), what `compile` schedules it with, and the
    bytes of all constants of its model."""

    name: str
    task: Task
    policy: Policy
    constant_bytes: int

    def among(self, target: Target, constants: str) -> Target:
        """`target` as estimates are asked, with constants that are "cold" as in the model, or "warm"."""
        return replace(target, cold_bytes=self.constant_bytes if constants == "cold" else 0)


def model_file(name: str, models: Path, folder: Path) -> Path:
    """NAME.onnx in `models`; a case of Ansor's operators (GMM-3-b1) or a product of bytes is written to `folder`."""
    if (models / f"{name}.onnx").exists():
        return models / f"{name}.onnx"
    path = folder / f"{name}.onnx"
    kind, _, size = name.partition("-")
    cases = {case.name: case for case in ansor_ops.cases()}
    if kind == PRODUCT and size.isdigit():
        write_model(path, (int(size),) * 3)
    elif name in cases:
        onnx.save(cases[name].build()[0], path)
    else:
        raise SystemExit(
            f"{models} has no {name}.onnx, and {name} is neither {PRODUCT}-N nor one of {', '.join(cases)}"
        )
    return path


def tasks_of(model: Path, precision: str, target: Target) -> list[Found]:
    """The distinct Tasks of one model."""
    config = load_config()
    config = replace(config, policy=replace(config.policy, precision=precision))
    shapes = catalogue().get(model.stem, {}).get("shape", {})
    (program,) = Run(model, "", target, config, (shapes,)).programs().rounded
    tasks = {bound.task.hash: bound.task for bound in program.tasks}
    constants = sum(b.task.buffer(c).bytes for b in program.tasks for c in b.task.constants)
    at = "" if precision == "f32" else f"@{precision}"
    return [Found(f"{model.stem}:{t.name}{at}", t.canonical(), config.policy, constants) for t in tasks.values()]


def named(name: str, models: Path, folder: Path, target: Target) -> Found:
    """The Task MODEL:TASK[@bf16]."""
    model, _, rest = name.partition(":")
    tasks = tasks_of(model_file(model, models, folder), rest.partition("@")[2] or "f32", target)
    found = [one for one in tasks if one.name == name]
    if not found:
        raise SystemExit(f"there is no task {name}; {model} has {', '.join(one.name for one in tasks)}")
    return found[0]


def distinct(models: Sequence[Path], precisions: Sequence[str], target: Target) -> Iterator[Found]:
    """The Tasks of all models, equal ones once."""
    seen: set[str] = set()
    for model in models:
        for precision in precisions:
            for found in tasks_of(model, precision, target):
                if found.task.hash not in seen:
                    seen.add(found.task.hash)
                    yield found
