"""The trained models that tests/models.yaml lists, which scripts/fetch_models.py puts into models/."""

from __future__ import annotations

from typing import Any

import yaml
from repository import ROOT


def files() -> dict[str, dict[str, Any]]:
    """The entries of tests/models.yaml by short name, those too that are no ONNX models."""
    return yaml.safe_load((ROOT / "tests/models.yaml").read_text())


def catalogue() -> dict[str, dict[str, Any]]:
    """The entries that are ONNX models."""
    return {name: entry for name, entry in files().items() if "suffix" not in entry}


def shapes_of(name: str) -> list[dict[str, tuple[int, ...]]]:
    """The shapes to compile a model with, as its entry says them; none where there is no entry, or it says none."""
    shape = catalogue().get(name, {}).get("shape")
    return [{key: tuple(extents) for key, extents in shape.items()}] if shape else []
