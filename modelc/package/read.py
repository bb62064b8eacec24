"""Reading a package as data, and checking its files. Nothing here executes what is in it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelc.errors import PackageError
from modelc.package import manifest
from modelc.package.manifest import FileInfo, Manifest


@dataclass(frozen=True)
class Package:
    path: Path
    manifest: Manifest


def read_package(path: str | Path, check: bool = False) -> Package:
    """The package in folder `path`. Sizes are compared always, checksums with `check` (that reads all of params.bin).
    Raises PackageError that names the damaged file."""
    folder = Path(path)
    package = Package(folder, manifest.read_manifest(folder))
    for name, expected in package.manifest.files.items():
        _check_file(folder, name, expected, check)
    return package


def read_choices(package: Package) -> dict[str, Any]:
    """What choices.json holds, with the checksum compared."""
    _check_file(package.path, "choices.json", package.manifest.files["choices.json"], True)
    return _read_json(package.path / "choices.json")


def read_verification(package: Package) -> dict[str, Any] | None:
    """The whole report of the verification, None if there was none."""
    expected = package.manifest.files.get("verification.json")
    if expected is None:
        return None
    _check_file(package.path, "verification.json", expected, True)
    return _read_json(package.path / "verification.json")


def _check_file(folder: Path, name: str, expected: FileInfo, checksum: bool) -> None:
    path = folder / name
    try:
        if path.resolve(strict=True).parent != folder.resolve():
            raise PackageError(f"{path} leads out of the package: it is not read")
        found = path.stat().st_size
        if found != expected.bytes:
            raise PackageError(
                f"{path} is damaged: it has {found} bytes instead of {expected.bytes}; copy the package again"
            )
        if checksum and sha256_of(path) != expected.sha256:
            raise PackageError(f"{path} is damaged: its checksum is not the manifest's; copy the package again")
    except OSError as error:
        raise PackageError(f"cannot read {path}: {error.strerror}") from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        computed = hashlib.sha256()
        while chunk := file.read(1 << 20):
            computed.update(chunk)
        return computed.hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise PackageError(f"{path} is damaged: it is not a JSON object")
    return data


def file_info(path: Path) -> FileInfo:
    return FileInfo(path.stat().st_size, sha256_of(path))
