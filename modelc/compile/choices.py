"""choices.json: what was chosen for one package; with the model it rebuilds the package without scheduling."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from modelc.compile.config import Config, parse_config
from modelc.compile.opened import Open
from modelc.errors import MISFIT, ConfigError, InvalidIR, ModelError
from modelc.frontend.load.read import check_file
from modelc.frontend.quantize.packing import Packing
from modelc.frontend.quantize.recipe import Recipe
from modelc.ir.candidate import Candidate
from modelc.ir.program import Program
from modelc.layout.convert import LayoutChoice
from modelc.package.manifest import built
from modelc.package.spec import FixedInput
from modelc.target import Target, parse_target

if TYPE_CHECKING:
    import jsonschema

Shapes = Mapping[str, tuple[int, ...]]
MAX_FILE = 1 << 28
T = TypeVar("T")


@dataclass(frozen=True)
class Choices:
    """One Candidate for each Task, by its hash, and what they were chosen for. `target` is the whole description, so
    that a rebuild does not depend on what is measured today. For each of `shapes`, `float32` names the Tasks that
    precision auto keeps in float32, and `layouts` says how values are stored. `occurrences` says how often each Task
    runs, all shapes together: what time spent on it would be worth. `constants` are inputs that were fixed."""

    version: str
    model_sha256: str
    target: Target
    shapes: tuple[Shapes, ...]
    constants: tuple[FixedInput, ...]
    config: Config
    tasks: Mapping[str, Candidate]
    occurrences: Mapping[str, int]
    float32: tuple[tuple[str, ...], ...]
    layouts: tuple[LayoutChoice, ...]
    recipe: Recipe | Packing | None = None  # where the model was quantized for the package
    real: Mapping[str, str] = field(default_factory=dict)  # quantized contractions that are float32 by price, and why
    free: Mapping[str, Open] = field(default_factory=dict)  # dimensions that are any; shapes are of samples then

    @property
    def shapes_of_inputs(self) -> tuple[Shapes, ...]:
        """The shapes, each once: in several samples different numbers may be found at the same."""
        return tuple({str(shapes): shapes for shapes in self.shapes}.values())

    @property
    def finding(self) -> bool:
        """Whether what a run finds has sizes."""
        return len(self.shapes) > len(self.shapes_of_inputs)

    def to_json(self) -> dict[str, Any]:
        return {
            "modelc": self.version,
            "model_sha256": self.model_sha256,
            "target_key": self.target.key,
            "target": self.target.to_yaml(),
            "shapes": [{name: list(shape) for name, shape in one.items()} for one in self.shapes],
            "constants": [_constant_json(one) for one in self.constants],
            "config": self.config.to_json(),
            "tasks": {key: self.tasks[key].to_json() for key in sorted(self.tasks)},
            "occurrences": {key: self.occurrences[key] for key in sorted(self.occurrences)},
            "float32": [list(names) for names in self.float32],
            "layouts": [choice.to_json() for choice in self.layouts],
            **({"free": {name: range_of(n) for name, n in self.free.items()}} if self.free else {}),
            **({"real": {name: self.real[name] for name in sorted(self.real)}} if self.real else {}),
            **({"quantized": self.recipe.to_json()} if isinstance(self.recipe, Recipe) else {}),
            **({"packed": self.recipe.to_json()} if isinstance(self.recipe, Packing) else {}),
        }


def occurrences(programs: Sequence[Program]) -> Counter[str]:
    """How often each Task runs, by its hash, in all programs together."""
    return Counter(bound.task.hash for program in programs for bound in program.kernels)


def read_choices_file(path: str | Path) -> Choices:
    """The file, or the one in a package's folder. Raises ConfigError if it is no choices.json."""
    file = Path(path) / "choices.json" if Path(path).is_dir() else Path(path)
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(f"{file} cannot be read as choices: it is no file")
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise ConfigError(f"{file} has more than {MAX_FILE} bytes: it is no choices.json")
        data = json.loads(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read as choices: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not JSON") from None
    return parse_choices(data, str(file))


def parse_choices(data: Any, source: str) -> Choices:
    """Choices from what choices.json holds. Raises ConfigError that names the field, and the Task and Block."""
    _check_structure(data, source)
    shapes = tuple({name: tuple(map(int, shape)) for name, shape in one.items()} for one in data["shapes"])
    return Choices(
        version=data["modelc"],
        model_sha256=data["model_sha256"],
        target=parse_target(data["target"], f"{source}: target"),
        shapes=shapes,
        constants=tuple(_constant(one, f"{source}: constants.{k}") for k, one in enumerate(data["constants"])),
        config=parse_config(data["config"], f"{source}: config"),
        tasks={key: _read(Candidate.from_json, one, f"{source}: tasks.{key}") for key, one in data["tasks"].items()},
        occurrences={key: int(count) for key, count in data["occurrences"].items()},
        float32=tuple(map(tuple, data["float32"])),
        layouts=tuple(
            _read(LayoutChoice.from_json, one, f"{source}: layouts.{k}") for k, one in enumerate(data["layouts"])
        ),
        recipe=_recipe(data, source),
        real=data.get("real", {}),
        free={name: _free(one, f"{source}: free.{name}") for name, one in data.get("free", {}).items()},
    )


def _recipe(data: Any, source: str) -> Recipe | Packing | None:
    if "packed" in data:
        return Packing.from_json(data["packed"])
    return _read(Recipe.from_json, data["quantized"], f"{source}: quantized") if "quantized" in data else None


def _constant_json(one: FixedInput) -> dict[str, Any]:
    tensor = {"name": one.name, "dtype": one.tensor.dtype, "shape": one.tensor.shape}
    return {"tensor": tensor, "data": one.data}


def range_of(sizes: Open) -> dict[str, Any]:
    """The sizes of a dimension as JSON."""
    told = {"least": sizes[0], "most": sizes[-1], "step": sizes.numbers.step}
    return {**told, "matter": list(sizes.matter)} if sizes.matter else told


def _free(data: Mapping[str, Any], place: str) -> Open:
    numbers = range(int(data["least"]), int(data["most"]) + 1, int(data["step"]))
    sizes = Open(numbers, tuple(map(int, data.get("matter", ()))))
    if not numbers or range_of(sizes) != data or any(n not in numbers for n in sizes.matter):
        raise ConfigError(
            f"{place} is {dict(data)}: expected the least, and the most by steps from there, and among these the sizes "
            "that matter"
        )
    return sizes


def _constant(data: Any, place: str) -> FixedInput:
    found: FixedInput = built(FixedInput, data)
    _read(lambda one: one.array(), found, place)
    return found


@cache
def _validator() -> jsonschema.Draft202012Validator:
    import jsonschema  # it takes long, and most compilations read no choices

    return jsonschema.Draft202012Validator(json.loads(Path(__file__).with_name("choices.schema.json").read_text()))


def _check_structure(data: Any, source: str) -> None:
    from jsonschema.exceptions import best_match

    error = best_match(_validator().iter_errors(data))
    if error is not None:
        place = ".".join(map(str, error.absolute_path))
        found = error.message if len(error.message) < 200 else f"{error.message[:100]} ... {error.message[-100:]}"
        raise ConfigError(f"{source}{f': {place}' * bool(place)} does not fit choices.schema.json: {found}")
    for name in ("float32", "layouts"):
        if len(data[name]) != len(data["shapes"]):
            raise ConfigError(
                f"{source}: {name} has {len(data[name])} entries; expected one for each of the {len(data['shapes'])} "
                "shapes"
            )


def _read(reader: Callable[[Any], T], data: Any, place: str) -> T:
    try:
        return reader(data)
    except ValueError as error:
        raise ConfigError(f"{place}: {str(error)[:400]}") from None


@contextmanager
def blaming_choices(
    place: str, given: bool, who: str = "the choices say", instead: str = "without --choices"
) -> Iterator[None]:
    """Where choices were given for `place`, what does not fit there is their fault: what fits the schemas need not fit
    the model."""
    try:
        yield
    except (InvalidIR, *MISFIT) as error:
        if not given:
            raise
        words = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"what {who} of {place} does not fit it ({type(error).__name__}{f': {words}' * bool(words)}); "
            f"compile {instead}"
        ) from error


def digest_of(model: Path) -> str:
    """The sha256 of a model's file, by which choices know it."""
    check_file(model)
    digest = hashlib.sha256()
    try:
        with model.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise ModelError(f"the model {model} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def check_choices(choices: Choices, version: str, model_sha256: str | None, target: Target | None, source: str) -> None:
    """Raises ConfigError if the choices were made for something else. Without `model_sha256`, any model's will do."""
    facts: Sequence[tuple[str, str, str]] = (
        ("modelc", choices.version, version),
        ("the model of sha256", choices.model_sha256, model_sha256 or choices.model_sha256),
        ("the target", choices.target.key, choices.target.key if target is None else target.key),
    )
    for what, theirs, ours in facts:
        if theirs != ours:
            raise ConfigError(
                f"{source} was chosen for {what} {theirs[:64]}, and this is {ours[:64]}: compile without --choices"
            )
