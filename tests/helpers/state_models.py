"""A model that keeps something from run to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from control_models import INFO, F, I, node, saved

STATES = {"h": "h_next", "last": "x_seen"}


def cell(path: Path) -> Path:
    """h' = tanh(h w + row i of a table + the x before), y = 2 h'."""
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", ["h", "w"], ["hw"]),
        node("Gather", ["table", "i"], ["row"], axis=0),
        node("Add", ["hw", "row"], ["a"]),
        node("Add", ["a", "last"], ["b"]),
        node("Tanh", ["b"], ["h_next"]),
        node("Mul", ["h_next", "two"], ["y"]),
        node("Abs", ["x"], ["x_seen"]),
    ]
    weights = {"two": np.float32(2)}
    weights |= {name: rng.standard_normal((4, 4)).astype(np.float32) for name in ("w", "table")}
    inputs = [INFO(name, F, ["n", 4]) for name in ("x", "h", "last")] + [INFO("i", I, [])]
    return saved(path, nodes, inputs, ["y", "h_next", "x_seen"], weights)
