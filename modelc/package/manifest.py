"""manifest.json: what it says, and its JSON form. Untrusted when read: checked against manifest.schema.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from modelc.errors import PackageError
from modelc.package.spec import ArenaTensor, Argument, PackageTarget, Plan, Step, TensorInfo

SCHEMA_VERSION = 1
NAME = "manifest.json"
MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class FileInfo:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """`build_id` pairs the manifest with libmodel.so; `files` lists every file but manifest.json itself; `verification`
    is the summary of verification.json, None when nothing was compared."""

    schema_version: int
    build_id: str
    name: str
    target: PackageTarget
    flush_denormals: bool
    choices_sha256: str
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    files: Mapping[str, FileInfo]
    params: tuple[tuple[int, int], ...]  # offset and bytes of every array in params.bin
    variants: tuple[Plan, ...]
    verification: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        """The text of manifest.json. Raises PackageError if it does not conform to the schema: a bug of modelc."""
        data = json.loads(json.dumps(asdict(self)))
        _validate(data, NAME)
        return json.dumps(data, indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the package in `folder`. Raises PackageError if there is none, or it is damaged or newer."""
    path = folder / NAME
    try:
        if path.stat().st_size > MOST_BYTES:
            raise PackageError(f"{path} has more than {MOST_BYTES} bytes: it is not a package's manifest")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise PackageError(f"{folder} is not a package: cannot read {NAME}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise PackageError(f"{path} is damaged: it is not JSON") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise PackageError(
            f"{path} is of schema {version}, and this modelc knows up to {SCHEMA_VERSION}: update modelc"
        )
    _validate(data, str(path))
    return _from_data(data)


def schema() -> Mapping[str, Any]:
    """The published JSON schema."""
    data: Mapping[str, Any] = json.loads(Path(__file__).with_name("manifest.schema.json").read_text())
    return data


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def _validate(data: Any, where: str) -> None:
    errors: Iterator[jsonschema.ValidationError] = _validator().iter_errors(data)
    error = next(errors, None)
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path) or "the whole"
        raise PackageError(f"{where} is damaged: at {place}: {error.message[:200]}")


def _from_data(data: Mapping[str, Any]) -> Manifest:
    target = data["target"]
    return Manifest(
        **{key: data[key] for key in ("schema_version", "build_id", "name", "flush_denormals", "choices_sha256")},
        target=PackageTarget(target["name"], target["triple"], tuple(target["features"])),
        versions=data["versions"],
        notes=tuple(data["notes"]),
        files={name: FileInfo(**entry) for name, entry in data["files"].items()},
        params=tuple((offset, size) for offset, size in data["params"]),
        variants=tuple(_plan(plan) for plan in data["variants"]),
        verification=data["verification"],
    )


def _plan(data: Mapping[str, Any]) -> Plan:
    return Plan(
        inputs=tuple(_tensor(t) for t in data["inputs"]),
        outputs=tuple(_tensor(t) for t in data["outputs"]),
        steps=tuple(_step(step) for step in data["steps"]),
        arena_bytes=data["arena_bytes"],
        memory=tuple(ArenaTensor(**t) for t in data["memory"]),
        rounded=tuple(data["rounded"]),
    )


def _tensor(data: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(data["name"], data["dtype"], tuple(data["shape"]))


def _step(data: Mapping[str, Any]) -> Step:
    arguments = tuple(Argument(**argument) for argument in data["arguments"])
    return Step(**{**data, "arguments": arguments, "nodes": tuple(data["nodes"])})
