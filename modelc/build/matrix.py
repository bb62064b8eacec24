"""modelc.yaml: models, targets, precisions and gates, read strictly; every mistake in it is said at once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.compile.config import read_tree
from modelc.compile.limits import Limits
from modelc.compile.request import keys_of_yaml
from modelc.errors import ConfigError, ModelcError
from modelc.target.section import shown

if TYPE_CHECKING:
    import jsonschema

MOST_SAID = 40  # mistakes of one file
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
LOCAL = "local"  # the runner that is this machine
SLOWDOWNS = ("max-slowdown", "max-kernel-slowdown", "max-more-instructions")  # beside a baseline
OF_GATES = re.compile(r"(models\.[^.]+\.)?gates\.")
PARTS = ("params", "arena", "library")  # of a package that have a size
FOR_ALL = ("form", "limits")  # what a model says over the file
FORMED = (*keys_of_yaml("form").values(), *keys_of_yaml("limits").values())  # what packages are made as
FILES = ("inputs", "choices", "calibrate", "metric")  # options that are paths; behind that of a metric is a function


@dataclass(frozen=True)
class Gates:
    """What is asked of a package: sizes in bytes; `ratios` by engine, at least so many times as fast; `slowdowns` by
    gate, the share of the baseline's by which time, that of a kernel, or instructions may be more; `drop`: by how much
    a calibrated package may be worse than the float model, as a share."""

    verified: bool = True
    params: int | None = None
    library: int | None = None
    arena: int | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    drop: float | None = None

    @property
    def timed(self) -> bool:
        return bool(self.ratios) or bool(self.slowdowns)


@dataclass(frozen=True)
class ForTarget:
    """A target by its name or file, and how its cells are tuned, if they are."""

    name: str
    budget: str = ""
    runner: str = LOCAL

    @property
    def label(self) -> str:
        """What cells call it: of a file, its name without the suffix."""
        return Path(self.name).stem if self.name.endswith((".yaml", ".yml")) else self.name


@dataclass(frozen=True)
class Model:
    """One model of the file; `options` are what it says of the fields of a CompileRequest: as JSON has them, and paths
    are from where the file lies."""

    name: str
    path: Path
    sha256: str
    options: Mapping[str, Any]
    targets: tuple[ForTarget, ...]
    precisions: tuple[str, ...]
    gates: Gates


@dataclass(frozen=True)
class Matrix:
    source: Path
    output: Path
    models: tuple[Model, ...]


def schema() -> Mapping[str, Any]:
    """The published JSON schema of modelc.yaml."""
    tree: Mapping[str, Any] = json.loads(Path(__file__).with_name("modelc.schema.json").read_text())
    return tree


def read_matrix(path: Path) -> Matrix:
    """Raises ConfigError that says every mistake of the file."""
    if not path.exists():
        raise ConfigError(
            f"there is no {path}: name the file that says models and targets, or write one (docs/build.md)"
        )
    return parse_matrix(read_tree(path, "a build's description"), path)


def parse_matrix(tree: Any, source: Path) -> Matrix:
    """The Matrix of the YAML's tree. Raises ConfigError that says every mistake."""
    mistakes = list(_mistakes(tree))
    if not mistakes:
        mistakes = [*_impossible(tree), *_clashes(tree)]
    if mistakes:
        more = [f"and {len(mistakes) - MOST_SAID} more"] * (len(mistakes) > MOST_SAID)
        raise ConfigError("\n  ".join([f"{source} does not say what to build:", *mistakes[:MOST_SAID], *more]))
    folder = source.parent
    models = tuple(_model(name, entry, tree, folder) for name, entry in tree["models"].items())
    return Matrix(source, folder / tree.get("output", "build"), models)


def bytes_of(value: int | str) -> int:
    """What a size of the file comes to: 10MB, 512 KB, 1000."""
    if isinstance(value, int):
        return value
    number, unit = re.fullmatch(r"([0-9.]+) ?([A-Z]+)", value).groups()  # type: ignore[union-attr]
    return int(float(number) * UNITS[unit])


def share_of(value: float | str) -> float:
    """What a share of the file comes to: 0.03, 3%."""
    return float(value) if not isinstance(value, str) else float(value.rstrip("% ")) / 100


# --- mistakes -------------------------------------------------------------------------------------------------------


@cache
def _validator() -> jsonschema.Draft202012Validator:
    import jsonschema

    return jsonschema.Draft202012Validator(schema())


def _mistakes(tree: Any) -> Iterator[str]:
    """What does not fit the schema, each as a sentence, in the order of the file's keys."""
    errors = sorted(_validator().iter_errors(tree), key=lambda error: [str(part) for part in error.absolute_path])
    for error in errors:
        place = ".".join(map(str, error.absolute_path)) or "the file"
        words, instance = error.schema, error.instance
        if error.validator == "additionalProperties" and isinstance(words.get("additionalProperties"), bool):
            known = list(words["properties"])
            for key in instance:
                if key not in known:
                    yield f"{place} has an unknown key {shown(key)}; expected {', '.join(known)}{_nearest(key, known)}"
        elif error.validator == "required":
            lacking = [key for key in words["required"] if key not in instance]
            if lacking and error.message.startswith(repr(lacking[0])):
                keys = ", ".join(map(repr, lacking))
                yield f"{place} lacks the key{'s' * (len(lacking) > 1)} {keys}{_help(lacking)}"
        elif error.validator in ("enum", "const"):
            allowed = words.get("enum", [words.get("const")])
            yield f"{place} is {shown(instance)}; expected {', '.join(map(str, allowed))}{_nearest(instance, allowed)}"
        elif "propertyNames" in list(error.absolute_schema_path):
            yield f"{place}: {shown(instance)} is no name; expected letters, digits, - and _, at most 64"
        else:
            yield f"{place} is {shown(instance)}; expected {_expected(error)}"


def _expected(error: Any) -> str:
    said = str(error.schema.get("description", "")).rstrip(".")
    wanted = error.validator_value
    if error.validator == "type":
        kinds = {"object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number"}
        names = [wanted] if isinstance(wanted, str) else wanted
        return " or ".join(kinds.get(name, f"a {name}") for name in names) + f" ({said})" * bool(said)
    if error.validator in ("minimum", "exclusiveMinimum"):
        return f"a number {'above' if error.validator.startswith('excl') else 'from'} {wanted}"
    if error.validator in ("minItems", "minProperties"):
        return "at least one entry"
    if error.validator == "uniqueItems":
        return "each entry once"
    return said or f"what fits {wanted}"


def _help(lacking: list[str]) -> str:
    hints = {"schema": "schema: 1", "targets": "targets: [x86-64-v3]", "models": "models: {NAME: {path: MODEL.onnx}}"}
    said = [hints[key] for key in lacking if key in hints]
    return f": write {', '.join(said)}" if said else ""


def _nearest(word: Any, known: list[Any]) -> str:
    texts = list(map(str, known))
    close = get_close_matches(str(word).replace("_", "-").lower(), texts, 1)
    return f". Did you mean {close[0]}?" if close else ""


def _impossible(value: Any, place: str = "") -> Iterator[str]:
    """Null characters, which no path has, and gates that no package, or each, would pass."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _impossible(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, str) and "\0" in value:
        yield f"{place} has a null character, which no name and no path has"
    elif isinstance(value, float) and not isfinite(value) and OF_GATES.match(place):
        yield f"{place} is {value}; expected a finite number"


def _clashes(tree: Mapping[str, Any]) -> Iterator[str]:
    """What fits the schema, and cannot be built: cells of one name, forms that are none, what contradicts."""
    entries = [("targets", tree["targets"])]
    entries += [(f"models.{name}.targets", model.get("targets", ())) for name, model in tree["models"].items()]
    for place, targets in entries:
        labels = [_target(target).label for target in targets]
        for label in sorted({label for label in labels if labels.count(label) > 1}):
            yield f"{place} has {label} twice: packages would have one name"
    for name, model in tree["models"].items():
        options = _options(model, tree)
        form = options.keys() & {*FORMED, "weights", "block"}
        try:
            Limits(*(options.get(f"max_{part}", "") for part in PARTS))
        except ModelcError as error:
            yield f"models.{name}: {error}"
        if form and any(_target(target).budget for target in model.get("targets", tree["targets"])):
            yield f"models.{name}: tuned packages have no form, limits or weights: leave out these, or the budget"
        narrow = "int8" in model.get("precisions", tree.get("precisions", ()))
        if {"calibrate", "choices"} <= model.keys():
            yield f"models.{name} has calibrate and choices, which say the same: write one of them"
        if "weights" in model and ({"calibrate", "choices"} & model.keys() or narrow):
            yield f"models.{name} has weights of 4 bits, and samples, choices or layers in int8: write one of them"
        if "block" in model and "weights" not in model:
            yield f"models.{name} has a block and no weights: write weights: int4"
        if "metric" in model and "calibrate" not in model:
            yield f"models.{name} has a metric and no samples: write calibrate: DATA.npz"
        if narrow and any(_target(target).budget for target in model.get("targets", tree["targets"])):
            yield f"models.{name} has the precision int8 for a target with a budget: tune takes no int8"


# --- what fits ------------------------------------------------------------------------------------------------------


def _model(name: str, entry: Mapping[str, Any], tree: Mapping[str, Any], folder: Path) -> Model:
    return Model(
        name=name,
        path=folder / entry["path"],
        sha256=entry.get("sha256", ""),
        options={key: _from(folder, key, value) for key, value in _options(entry, tree).items()},
        targets=tuple(_located(_target(target), folder) for target in entry.get("targets", tree["targets"])),
        precisions=tuple(entry.get("precisions", tree.get("precisions", ("f32",)))),
        gates=_gates({**tree.get("gates", {}), **entry.get("gates", {})}),
    )


def _options(entry: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """What the file and a model of it say of the fields of a CompileRequest."""
    own = {"config": tree["config"], **entry} if "config" in tree else entry
    parts = [("model", own), *((part, {**tree.get(part, {}), **entry.get(part, {})}) for part in FOR_ALL)]
    said = {field: part[key] for kind, part in parts for key, field in keys_of_yaml(kind).items() if key in part}
    limits = {field: str(said[field]).replace(" ", "") for field in said if field.startswith("max_")}
    return {field: value for field, value in (said | limits).items() if value not in ({}, [])}


def _from(folder: Path, field: str, value: Any) -> Any:
    """What an option says, where it is a path from a folder on."""
    if field in FILES or (field == "config" and value.endswith((".yaml", ".yml"))):
        return str(folder / value)
    if field == "constants":
        return {name: str(folder / one) if isinstance(one, str) else one for name, one in value.items()}
    return value


def _target(entry: str | Mapping[str, Any]) -> ForTarget:
    if isinstance(entry, str):
        return ForTarget(entry)
    return ForTarget(entry["name"], str(entry.get("budget", "")), entry.get("runner", LOCAL))


def _located(target: ForTarget, folder: Path) -> ForTarget:
    is_file = target.name.endswith((".yaml", ".yml"))
    return ForTarget(str(folder / target.name), target.budget, target.runner) if is_file else target


def _gates(entry: Mapping[str, Any]) -> Gates:
    sizes = {part: bytes_of(entry[f"max-{part}"]) for part in PARTS if f"max-{part}" in entry}
    slowdowns = {gate: share_of(entry[gate]) for gate in SLOWDOWNS if gate in entry}
    drop = share_of(entry["max-drop"]) if "max-drop" in entry else None
    ratios = entry.get("min-ratio", {})
    return Gates(entry.get("verified", True), **sizes, ratios=ratios, slowdowns=slowdowns, drop=drop)
