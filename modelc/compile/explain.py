"""Why a package's kernels are as they are: for each, what it computes in, how its result is stored, by which algorithm,
and who has decided that."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from modelc.compile.choices import parse_choices
from modelc.compile.pass_lists import scheduling, sentences
from modelc.package import read_choices, read_package

PLAIN = ("inline", "always_inline", "skip", "pad", "cache")  # rules that change no arithmetic and no order of it


class Why(NamedTuple):
    """One kernel, each thing with its reason."""

    kernel: str
    precision: str
    layout: str
    algorithm: str
    nodes: tuple[str, ...]


def explained(path: str | Path, constructed: str = "by estimate") -> list[Why]:
    """Of the kernels of a package's first variant, in order; `constructed` says who has chosen schedules that nothing
    else did. Raises PackageError."""
    package = read_package(path)
    choices = parse_choices(read_choices(package), f"{path}/choices.json")
    policy, search = choices.config.policy, choices.config.layout.search
    if (passes := scheduling(choices.config, choices.target)).passes:
        constructed = f"by the passes over Blocks, {passes.whose}"
    kept = set(choices.float32[0]) if choices.float32 else set()
    rows = []
    for step in package.manifest.variants[0].steps:
        candidate = choices.tasks.get(step.task)
        rules = [stage.rule for stage in candidate.stages if stage.rule not in PLAIN] if candidate is not None else []
        rows.append(
            Why(
                step.name,
                f"{step.dtype}: {_precision(step.dtype, policy.precision, step.name in kept or step.task in kept)}",
                f"{step.layout or 'row-major'}: {_layout(step.layout, search)}",
                f"{', '.join(dict.fromkeys(rules)) or 'direct'}: {constructed}"
                + f"; {step.instruction}" * bool(step.instruction),
                step.nodes,
            )
        )
    return rows


def passes_run(path: str | Path) -> tuple[str, ...]:
    """The lists of passes that made a package, each as a sentence that says whose it is. Raises PackageError."""
    choices = parse_choices(read_choices(read_package(path)), f"{path}/choices.json")
    return sentences(choices.config, choices.target)


def _precision(dtype: str, asked: str, kept: bool) -> str:
    if dtype == "bfloat16":
        return f"precision {asked}, and its operands are used again"
    if dtype == "float16" and asked == "f16":
        return "precision f16, and one operand is a constant"
    if kept:
        return "bfloat16 would add too large an error at the outputs"
    if dtype != "float32":
        return "the model says so"
    return "precision f32" if asked == "f32" else f"precision {asked} gains nothing here, or the target lacks it"


def _layout(layout: str, search: bool) -> str:
    if not search:
        return "layout.search is false"
    return "costs least over the graph by estimate" if layout else "as in the model, which costs least by estimate"
