"""What a cell is made of, as one digest: equal keys make equal packages, byte for byte."""

from __future__ import annotations

import hashlib
import json
import stat
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modelc import __version__
from modelc.build.cells import Cell
from modelc.build.kept import Kept
from modelc.build.matrix import FILES, Model
from modelc.cache.code import own_digest
from modelc.compile.choices import digest_of
from modelc.compile.config import Config, load_config
from modelc.database import code_version
from modelc.errors import ConfigError
from modelc.package.read import sha256_of
from modelc.package.toolchain import find_toolchain
from modelc.target import load_target

MAX_FILE = 1 << 36  # of data beside a model
TOOLS = ("apache-tvm", "numpy", "onnx", "onnxruntime")


class Sources:
    """What the cells of one build are made of, each file read once: targets, configurations, models and their digests.
    What was seen in a model of the same bytes by the same modelc is taken from `kept`."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.target = cache(load_target)
        self.config: Callable[[str | None], Config] = cache(lambda name: load_config(name) if name else load_config())
        self.of_config = cache(lambda name: self.config(name).to_json())
        self.of_target = cache(self._of_target)
        self.model = cache(digest_of)
        self.digest = cache(_digest)

    def beside(self, path: Path) -> list[Path]:
        """The files of external data that a model names. Raises ModelError."""
        key = hashlib.sha256(f"beside {own_digest()} {self.model(path)} {path.name}".encode()).hexdigest()
        names = self.kept.look(key)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            from modelc.frontend.load.beside import files_beside  # it imports onnx, which takes long

            names = [str(file.relative_to(path.parent)) for file in files_beside(path)]
            self.kept.saw(key, names)
        return [path.parent / name for name in names]

    def _of_target(self, name: str) -> dict[str, Any]:
        target = self.target(name)
        return {
            "compiler": compiler_of(target.triple),
            "target": [target.key, target.to_yaml()],
            "records": None if target.records is None else target.records.digest,
            "kernels": code_version(target),  # with a user's derivation rules and intrinsics
        }


@dataclass(frozen=True)
class ModelFiles:
    """The model's digest, and those of the files that it names."""

    digest: str
    others: Mapping[str, str]

    @staticmethod
    def of(model: Model, sources: Sources) -> ModelFiles:
        """Raises ModelError, ConfigError where a file is missing, or is not the one that the matrix says."""
        digest = sources.model(model.path)
        if model.sha256 and digest != model.sha256:
            raise ConfigError(f"{model.path} has the sha256 {digest}; expected {model.sha256}, as sha256 says")
        options, metric = model.options, model.options.get("metric", "")
        named = [
            *sources.beside(model.path),
            *(Path(options[name]) for name in ("inputs", "choices") if name in options),
        ]
        named += [*_samples(Path(options["calibrate"]))] if "calibrate" in options else []
        named += [Path(metric.rpartition(":")[0])] if metric else []
        named += [Path(value) for value in options.get("constants", {}).values() if isinstance(value, str)]
        return ModelFiles(digest, {str(k): sources.digest(path) for k, path in enumerate(named)})


def _samples(place: Path) -> list[Path]:
    """The file of samples, or the files in the folder of them. Raises ConfigError."""
    try:
        return sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    except OSError as error:
        raise ConfigError(f"the folder {place} cannot be read: {error.strerror}") from None


def key_of(cell: Cell, files: ModelFiles, sources: Sources) -> str:
    """The digest of a cell's model and files, target, configuration and flags, of modelc itself and of its tools. Of
    measurements, which are read while a cell is made, kept.py says whether they are the same."""
    options = cell.options
    constants = options.get("constants", {})
    said = {
        "modelc": [__version__, own_digest()],
        "tools": tools(),
        "name": cell.model.path.stem,
        "model": files.digest,
        "files": files.others,
        "options": {
            **options,
            **{name: options[name].rpartition(":")[2] if name == "metric" else "" for name in FILES if name in options},
            "constants": {name: "" if isinstance(value, str) else value for name, value in constants.items()},
            "config": sources.of_config(options.get("config")),
        },
        **sources.of_target(cell.target.name),
        "unverified": not cell.model.gates.verified,
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@cache
def tools() -> dict[str, str]:
    """The versions of what packages are made and verified with."""
    return {tool: version(tool) for tool in TOOLS}


@cache
def compiler_of(triple: str) -> str:
    """What the C compiler for a triple says of itself: another may link otherwise. Raises ToolchainError."""
    toolchain = find_toolchain(triple)
    try:
        asked: Any = subprocess.run([*toolchain.command, "--version"], capture_output=True, text=True, timeout=60)
        return str(asked.stdout).partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return " ".join(toolchain.command)


def _digest(path: Path) -> str:
    """Of a regular file of at most MAX_FILE bytes. Raises ConfigError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
            raise ConfigError(f"{path} cannot be read: expected a regular file of at most {MAX_FILE:,} bytes")
        return sha256_of(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
