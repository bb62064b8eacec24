"""choices.json: what was chosen for one package; with the model it rebuilds the package without scheduling."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelc.config import Config, parse_config
from modelc.errors import ConfigError, ModelError
from modelc.frontend.load import check_file
from modelc.ir.candidate import Candidate
from modelc.layout.convert import LayoutChoice
from modelc.target import Target, parse_target

Shapes = Mapping[str, tuple[int, ...]]
MAX_FILE = 1 << 28


@dataclass(frozen=True)
class Choices:
    """One Candidate for each Task, by its hash, and what they were chosen for. `target` is the whole description, so
    that a rebuild does not depend on what is measured today. For each of `shapes`, `float32` names the Tasks that
    precision auto keeps in float32, and `layouts` says how values are stored."""

    version: str
    model_sha256: str
    target: Target
    shapes: tuple[Shapes, ...]
    config: Config
    tasks: Mapping[str, Candidate]
    float32: tuple[tuple[str, ...], ...]
    layouts: tuple[LayoutChoice, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "modelc": self.version,
            "model_sha256": self.model_sha256,
            "target_key": self.target.key,
            "target": self.target.to_yaml(),
            "shapes": [{name: list(shape) for name, shape in one.items()} for one in self.shapes],
            "config": self.config.to_json(),
            "tasks": {key: self.tasks[key].to_json() for key in sorted(self.tasks)},
            "float32": [list(names) for names in self.float32],
            "layouts": [choice.to_json() for choice in self.layouts],
        }


def read_choices_file(path: str | Path) -> Choices:
    """The file, or the one in a package's folder. Raises ConfigError if it is no choices.json."""
    file = Path(path) / "choices.json" if Path(path).is_dir() else Path(path)
    try:
        if file.stat().st_size > MAX_FILE:
            raise ConfigError(f"{file} has more than {MAX_FILE} bytes: it is no choices.json")
        return parse_choices(json.loads(file.read_bytes()), str(file))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read as choices: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not JSON") from None


def parse_choices(data: Any, source: str) -> Choices:
    try:
        shapes = tuple({str(k): tuple(map(int, v)) for k, v in one.items()} for one in data["shapes"])
        return Choices(
            version=str(data["modelc"]),
            model_sha256=str(data["model_sha256"]),
            target=parse_target(data["target"], f"{source}: target"),
            shapes=shapes,
            config=parse_config(data["config"], f"{source}: config"),
            tasks={str(key): Candidate.from_json(one) for key, one in data["tasks"].items()},
            float32=tuple(tuple(map(str, names)) for names in data["float32"]),
            layouts=tuple(map(LayoutChoice.from_json, data["layouts"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{source} is no choices.json of this modelc: {type(error).__name__}: {error}") from None


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


def check_choices(choices: Choices, version: str, model_sha256: str, target: Target | None, source: str) -> None:
    """Raises ConfigError if the choices were made for something else."""
    facts: Sequence[tuple[str, str, str]] = (
        ("modelc", choices.version, version),
        ("the model of sha256", choices.model_sha256, model_sha256),
        ("the target", choices.target.key, choices.target.key if target is None else target.key),
    )
    for what, theirs, ours in facts:
        if theirs != ours:
            raise ConfigError(
                f"{source} was chosen for {what} {theirs[:64]}, and this is {ours[:64]}: compile without --choices"
            )
