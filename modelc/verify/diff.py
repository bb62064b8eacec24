"""What two packages differ in: kernels by the ONNX nodes that they cover, schedules, layouts, dtypes, sizes, times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modelc.errors import ModelcError
from modelc.package import Package, Step, at_inputs, ranges_of, read_choices, read_package
from modelc.runtime.shown import range_text
from modelc.verb import Progress
from modelc.verify.bench import native_package, same_boundary
from modelc.verify.check import given_or_drawn, variant_of
from modelc.verify.engine import Engine

ROUNDS, SLICE = 5, 0.1  # of fresh processes, seconds of each
Nodes = tuple[str, ...]


def diff(first: str | Path, second: str | Path, times: bool = True, progress: Progress | None = None) -> dict[str, Any]:
    """What changed from one package to another: kernels, schedules, layouts, dtypes, sizes, times.

    Args:
        first: The package before. Kernels of the first variants are compared, by the ONNX nodes that they cover.
        second: The package after.
        times: Whether kernels are timed too, where this machine can run both packages: loading executes them.
        progress: Is told what is timed, `progress(stage, text)`; an exception from it ends the call.

    Returns:
        By the keys `same` whether it is the same package; `facts` what it is as a whole, before and after; `kernels`
        those of the same nodes with their `changes`, and `us`, microseconds before and after; `layouts` the values that
        are stored otherwise; `only` the kernels of each that the other has not; `unchanged` how many did not change.

    Raises:
        PackageError: A package is damaged.

    Example:
        >>> seen = modelc.diff("net.modelc", "net.modelc", times=False)
        >>> seen["same"], seen["layouts"]
        (True, [])
    """
    say = partial(progress or (lambda stage, text: None), "diff")
    packages = read_package(first), read_package(second)
    choices = [read_choices(package) for package in packages]
    kernels = [_by_nodes(package) for package in packages]
    said = [dict(_facts(package, chosen)) for package, chosen in zip(packages, choices, strict=True)]
    taken, why = _times(packages, say) if times else (None, "not asked for")
    changed: list[dict[str, Any]] = []
    for nodes in kernels[0].keys() & kernels[1].keys():
        pair = kernels[0][nodes], kernels[1][nodes]
        changes = list(_changes(pair, choices))
        row: dict[str, Any] = {"kernel": pair[1].name, "nodes": list(nodes), "changes": changes}
        if taken is not None:
            row |= {"us": [taken[k][pair[k].name] for k in (0, 1)]}
        changed.append(row)
    order = {step.name: number for number, step in enumerate(packages[1].manifest.variants[0].steps)}
    changed.sort(key=lambda row: order[row["kernel"]])
    return {
        "packages": [str(package.path) for package in packages],
        "same": packages[0].manifest.build_id == packages[1].manifest.build_id,
        "facts": {
            name: [facts.get(name) for facts in said]
            for name in dict.fromkeys((*said[0], *said[1]))
            if said[0].get(name) != said[1].get(name)
        },
        "layouts": _changed_layouts(choices),
        "kernels": [row for row in changed if row["changes"] or "us" in row],
        "only": [
            [_outline(step, taken[k] if taken else None) for nodes, step in kernels[k].items() if nodes not in other]
            for k, other in ((0, kernels[1]), (1, kernels[0]))
        ],
        "unchanged": sum(not row["changes"] for row in changed),
        "timed": taken is not None,
        "untimed_because": why,
    }


def _by_nodes(package: Package) -> dict[Nodes, Step]:
    """The kernels of the first variant; of several that cover the same nodes, each with its number."""
    steps: dict[Nodes, Step] = {}
    for step in package.manifest.variants[0].steps:
        nodes, number = step.nodes or (step.name,), 2
        while nodes in steps:
            nodes, number = (*(step.nodes or (step.name,)), f"({number})"), number + 1
        steps[nodes] = step
    return steps


def _facts(package: Package, choices: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a package is as a whole, by name."""
    manifest = package.manifest
    yield "target", manifest.target.name
    yield "features", " ".join(manifest.target.features)
    yield "bytes of parameters", manifest.params_bytes
    yield "bytes of the library", manifest.files[manifest.linked.form.code].bytes
    yield "bytes of the arena", max(plan.arena_bytes for plan in manifest.variants)
    yield "variants", len(manifest.variants)
    for name, numbers in ranges_of(manifest.variants[0].free).items():
        yield f"size {name}", range_text(numbers)
    yield "kernels", len({step.symbol for plan in manifest.variants for step in plan.steps})
    yield "steps", len(manifest.variants[0].steps)
    yield "model", str(choices.get("model_sha256", ""))[:16]
    for tool, version in manifest.versions.items():
        yield f"version of {tool}", version
    yield from _leaves(choices.get("config", {}), "config")
    verification = manifest.verification or {}
    yield "verification", verification.get("sentence", "none")


def _leaves(tree: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, f"{place}.{key}")
    else:
        yield place, tree


def _changes(pair: tuple[Step, Step], choices: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What is otherwise with two kernels of the same nodes: each thing before and after."""
    for name in ("dtype", "instruction", "layout", "serial", "flops", "bytes"):
        before, after = (getattr(step, name) for step in pair)
        if before != after:
            yield {"what": name, "before": before, "after": after}
    hashes = [step.task for step in pair]
    if hashes[0] != hashes[1]:
        yield {"what": "task", "before": hashes[0], "after": hashes[1]}
    candidates = [chosen.get("tasks", {}).get(key) for chosen, key in zip(choices, hashes, strict=True)]
    if None in candidates or candidates[0] == candidates[1]:
        return
    before, after = (dict(_leaves(candidate, "schedule")) for candidate in candidates)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield {"what": name, "before": before.get(name), "after": after.get(name)}


def _changed_layouts(choices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Values that are stored otherwise."""
    values: list[dict[str, str]] = [(chosen.get("layouts") or [{}])[0].get("values", {}) for chosen in choices]
    names = [name for name in dict.fromkeys((*values[0], *values[1])) if values[0].get(name) != values[1].get(name)]
    row_major = "row-major"
    return [
        {"value": name, "before": values[0].get(name, row_major), "after": values[1].get(name, row_major)}
        for name in names
    ]


def _outline(step: Step, us: Mapping[str, float] | None) -> dict[str, Any]:
    timed = {"us": us[step.name]} if us is not None else {}
    return {"kernel": step.name, "nodes": list(step.nodes), "dtype": step.dtype} | timed


def _times(packages: tuple[Package, Package], say: Callable[[str], None]) -> tuple[list[dict[str, float]] | None, str]:
    """Microseconds of each kernel of both, by turns in fresh processes; or why not."""
    try:
        for package in packages:
            native_package(package.path)
        feed = given_or_drawn(packages[0], None, None)
        packages = at_inputs(packages[0], feed), at_inputs(packages[1], feed)
        numbers = [variant_of(package, feed) for package in packages]
        same_boundary(packages[0], numbers[0], packages[1])
    except ModelcError as error:
        return None, str(error)
    taken: list[list[list[float]]] = [[], []]
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine("modelc", package.path)) for package in packages]
        for engine in engines:
            engine.run(feed)
        for turn in range(ROUNDS):
            say(f"timing kernels, round {turn + 1} of {ROUNDS}")
            for k in (0, 1) if turn % 2 else (1, 0):
                if turn:
                    engines[k].restart()
                taken[k].append(engines[k].steps(SLICE, packages[k].in_library(numbers[k])))
    us = []
    for package, number, rounds in zip(packages, numbers, taken, strict=True):
        medians = 1e3 * np.median(np.array(rounds), axis=0)
        steps = package.manifest.variants[number].steps
        us.append({step.name: float(time) for step, time in zip(steps, medians, strict=True)})
    return us, ""
