"""The files of a package that bear the model's prefix."""

from __future__ import annotations

import json
from pathlib import Path


def prefix_of(package: Path) -> str:
    return str(json.loads((package / "manifest.json").read_text())["linked"]["prefix"])


def library_of(package: Path) -> Path:
    """The shared library of a package."""
    return package / f"lib{prefix_of(package)}.so"
