"""All models inspected before anything is compiled: whatever is missing is said at once, as flags to add."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelc.build.cells import Cell
from modelc.build.key import ModelFiles, Sources, key_of
from modelc.build.matrix import FORMED, LOCAL, Model
from modelc.cache.code import own_digest
from modelc.compile.request import CompileRequest, Request
from modelc.errors import ConfigError, ModelcError
from modelc.package import emulator, lacking, machine_of
from modelc.package.toolchain import native_machine
from modelc.partition.narrow_products import require
from modelc.quantize.price import require_bytes
from modelc.target import Target

LOOKED_AT = ("shapes", "dims", "constants", "states", "bounds")  # options that decide whether a model is complete
MOST_NODES = 3  # that are named of a model which cannot be compiled


def looked_at(
    cells: Sequence[Cell], source: Path, sources: Sources, say: Callable[[str], None], allow_code: bool
) -> dict[str, str]:
    """The key of each cell, by its name. Raises ConfigError that says of every model and target what is missing, and
    what would be executed unless that is allowed."""
    models = {cell.model.name: cell.model for cell in cells}
    missing: list[str] = []
    files: dict[str, ModelFiles] = {}
    for number, model in enumerate(models.values()):
        say(f"looking at {model.name} ({number + 1} of {len(models)})")
        try:
            files[model.name] = ModelFiles.of(model, sources)
            missing += [f"models.{model.name}: {said}" for said in _missing(model, files[model.name], sources)]
        except ModelcError as error:
            missing.append(f"models.{model.name}: {error}")
    keys: dict[str, str] = {}
    for cell in cells:
        try:
            target = sources.target(cell.target.name)
            missing += [] if allow_code else _executed(cell)
            missing += _no_form(cell, target)
            require(target, cell.precision)
            if cell.precision == "int8" and "choices" not in cell.options:
                require_bytes(target)
            if cell.model.gates.verified and (why := unverifiable(target)):
                missing.append(f"{cell.target.name}: {why}; leave it out here, or say gates: {{verified: false}}")
            if cell.tuned:
                _check_tuning(cell, target)
            if cell.model.name in files:
                keys[cell.name] = key_of(cell, files[cell.model.name], sources)
        except ModelcError as error:
            missing.append(f"{cell.target.name}: {error}")
    if missing:
        raise ConfigError("\n  ".join([f"{source} cannot be built yet:", *dict.fromkeys(missing)]))
    return keys


def _executed(cell: Cell) -> list[str]:
    """What the file has executed for a cell: a metric, which is Python; and a runner, which is a command, or a machine
    that the user's keys log in to, or a cluster that answers in pickled Python."""
    said = []
    if "metric" in cell.options:
        said.append(f"models.{cell.model.name}: the metric {cell.options['metric'][:200]} is executed")
    if cell.tuned and cell.target.runner != LOCAL:
        said.append(f"{cell.target.name}: kernels are run through the runner {cell.target.runner[:200]!r}")
    return [f"{sentence}: give --allow-code if you trust who wrote the file" for sentence in said]


def _no_form(cell: Cell, target: Target) -> list[str]:
    """Why a target's packages cannot have the form that a model asks for, if so."""
    try:
        form = {name: value for name, value in cell.model.options.items() if name in FORMED}
        CompileRequest(cell.model.path, **form).form(target.triple)
    except ModelcError as error:
        return [f"models.{cell.model.name}, for {cell.target.name}: {error}"]
    return []


def _check_tuning(cell: Cell, target: Target) -> None:
    """Raises ModelcError where a cell has a budget or a runner that are none, or is not tuned there."""
    from modelc.measure.where import Where
    from modelc.tune.command import check_tunable  # it imports what measures, and few cells are tuned
    from modelc.tune.search.tune import Budget

    Budget.parse(cell.target.budget)
    check_tunable(target, Where.parse(cell.target.runner))


def unverifiable(target: Target) -> str:
    """Why packages for a target cannot be run here, if so. Raises ToolchainError where an emulator is missing."""
    features = lacking(target.features) if machine_of(target.triple) == native_machine() else []
    if not features or emulator(target.triple, target.features):
        return ""
    return f"packages for it cannot be verified, for this machine lacks {', '.join(features[:4])}"


def _missing(model: Model, files: ModelFiles, sources: Sources) -> list[str]:
    """What a model lacks, each as a sentence."""
    options = model.options
    if "choices" in options or "inputs" in options:  # which say shapes too
        return []
    of_model = Request(**{name: options[name] for name in LOOKED_AT if name in options}).fixed
    fixed = of_model.over(sources.config(options.get("config")).inputs)
    looked_at_with = {name: getattr(fixed, name) for name in LOOKED_AT}
    said = json.dumps([own_digest(), files.digest, files.others, looked_at_with], sort_keys=True, default=str)
    key = hashlib.sha256(said.encode()).hexdigest()
    seen = sources.kept.look(key)
    if isinstance(seen, list) and all(isinstance(sentence, str) for sentence in seen):
        return list(seen)
    from modelc.compile.describe import inspect  # it imports onnx, which takes long

    sentences = _sentences(inspect(model.path, **looked_at_with))
    sources.kept.saw(key, sentences)
    return sentences


def _sentences(seen: Mapping[str, Any]) -> list[str]:
    sentences = []
    if seen["free"]:
        flags = " ".join(seen["free"])
        sentences.append(f"dimensions are free: add {flags}, here {_as_yaml(seen['free'])}")
        for steered in seen["steering"]:
            node, op, what = steered["places"][0]
            sentences.append(
                f"{steered['name']} steers {what} of {op} {node!r}: if it never changes, add "
                f"--constant {steered['name']}=VALUE, here constants: {{{steered['name']}: VALUE}}"
            )
    lacking = seen["unsupported"]
    for row in lacking[:MOST_NODES]:
        sentences.append(f"cannot compile {row['op']} (node {row['node']!r}): {row['reason']}")
    if len(lacking) > MOST_NODES:
        sentences.append(f"and {len(lacking) - MOST_NODES} more nodes, which modelc inspect lists")
    return sentences


def _as_yaml(flags: Sequence[str]) -> str:
    """The flags as they stand in modelc.yaml."""
    dims = [flag.removeprefix("--dim ").partition("=") for flag in flags if flag.startswith("--dim ")]
    shapes = [flag.removeprefix("--shape ").rpartition("=") for flag in flags if flag.startswith("--shape ")]
    said = []
    if dims:
        said.append(f"dims: {{{', '.join(f'{name}: {size}' for name, _, size in dims)}}}")
    if shapes:
        said.append(f"shapes: [{{{', '.join(f'{name}: [{shape}]' for name, _, shape in shapes)}}}]")
    return " and ".join(said)
