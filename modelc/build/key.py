"""What a cell is made of, as one digest: equal keys make equal packages, byte for byte."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from modelc import __version__
from modelc.build.cells import Cell
from modelc.build.matrix import Model
from modelc.compile.choices import digest_of
from modelc.compile.config import load_config
from modelc.errors import ConfigError
from modelc.frontend.load.beside import files_beside
from modelc.package.read import sha256_of
from modelc.package.toolchain import find_toolchain
from modelc.target import Target, load_target
from modelc.target.section import targets_folder

HERE = Path(__file__).resolve().parents[1]
SUFFIXES = (".py", ".c", ".h", ".yaml", ".json", ".map")
TOOLS = ("apache-tvm", "numpy", "onnx", "onnxruntime")


@dataclass(frozen=True)
class ModelFiles:
    """The model's digest, and those of the files that it names."""

    digest: str
    others: Mapping[str, str]

    @staticmethod
    def of(model: Model) -> ModelFiles:
        """Raises ModelError, ConfigError where a file is missing, or is not the one that the matrix says."""
        digest = digest_of(model.path)
        if model.sha256 and digest != model.sha256:
            raise ConfigError(f"{model.path} has the sha256 {digest}; expected {model.sha256}, as sha256 says")
        named = [*files_beside(model.path), *filter(None, (model.inputs, model.choices))]
        named += _calibrating(model)
        named += [Path(value) for value in model.fixed.get("constants", {}).values() if isinstance(value, str)]
        return ModelFiles(digest, {str(k): _digest(path) for k, path in enumerate(named)})


def _calibrating(model: Model) -> list[Path]:
    """The files of a model's samples, and that of its metric. Raises ConfigError."""
    if model.calibrate is None:
        return []
    files = [Path(model.metric.rpartition(":")[0])] if model.metric is not None else []
    if not model.calibrate.is_dir():
        return [model.calibrate, *files]
    try:
        return [*sorted(file for file in model.calibrate.iterdir() if file.is_file()), *files]
    except OSError as error:
        raise ConfigError(f"the folder {model.calibrate} cannot be read: {error.strerror}") from None


def key_of(cell: Cell, files: ModelFiles, target: Target) -> str:
    """The digest of a cell's model and files, target, configuration and flags, of modelc itself and of its tools. Of
    measurements, which are read while a cell is made, kept.py says whether they are the same."""
    model = cell.model
    config = load_config(model.config) if model.config else load_config()
    said = {
        "modelc": [__version__, own_digest()],
        "tools": {tool: version(tool) for tool in TOOLS},
        "compiler": compiler_of(target.triple),
        "name": model.path.stem,
        "model": files.digest,
        "files": files.others,
        "fixed": {key: value for key, value in model.fixed.items() if key != "constants"},
        "constants": {k: v for k, v in model.fixed.get("constants", {}).items() if not isinstance(v, str)},
        "from files": [key for key, value in model.fixed.get("constants", {}).items() if isinstance(value, str)],
        "given": [model.inputs is not None, model.choices is not None],
        "calibrated": cell.calibration,
        "config": config.to_json(),
        "precision": cell.precision,
        "form": dict(model.form),
        "target": [target.key, target.to_yaml()],
        "intrinsics": {str(k): _digest(Path(file)) for k, file in enumerate(_intrinsic_files(target))},
        "unverified": not model.gates.verified,
        "tuned": [cell.target.budget, cell.target.runner] if cell.tuned else [],
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@cache
def target_of(name: str) -> Target:
    """The target of that name or file. Raises TargetError."""
    return load_target(name)


@cache
def own_digest() -> str:
    """Of the sources of modelc, and of what is shipped with them."""
    folders = (HERE, targets_folder(), targets_folder().parent / "configs")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES]
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@cache
def compiler_of(triple: str) -> str:
    """What the C compiler for a triple says of itself: another may link otherwise. Raises ToolchainError."""
    toolchain = find_toolchain(triple)
    try:
        asked: Any = subprocess.run([*toolchain.command, "--version"], capture_output=True, text=True, timeout=60)
        return str(asked.stdout).partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return " ".join(toolchain.command)


def _intrinsic_files(target: Target) -> list[str]:
    return sorted({str(intrinsic.file) for intrinsic in target.available_intrinsics if intrinsic.file is not None})


def _digest(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
