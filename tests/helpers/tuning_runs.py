"""A network to be tuned, and what tuning leaves: records in a database, the files of a package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import small_model as small
from onnx import helper

from modelc.database import Database, Record


def network(folder: Path, widths: tuple[int, ...] = (48, 32)) -> Path:
    """A product for each width but the first."""
    rng, last = np.random.default_rng(0), len(widths) - 1
    weights = {f"w{k}": rng.standard_normal(widths[k : k + 2]).astype(np.float32) for k in range(last)}
    names = ["x", *(f"v{k}" for k in range(1, last)), "y"]
    nodes = [helper.make_node("MatMul", [names[k], f"w{k}"], [names[k + 1]]) for k in range(last)]
    return small.save(folder / "m.onnx", nodes, {"x": [20, widths[0]]}, {"y": [20, widths[-1]]}, weights)


def contents(package: Path) -> dict[str, bytes]:
    """Every file of a package."""
    found = {path.name: path.read_bytes() for path in package.iterdir()}
    assert {"choices.json", "params.bin", "manifest.json"} <= found.keys()
    assert any(name.endswith(".so") for name in found)
    return found


def stored(folder: Path) -> list[Record]:
    if not (folder / "d").exists():
        return []
    with Database(folder / "d", write=False) as database:
        return list(database.records())
