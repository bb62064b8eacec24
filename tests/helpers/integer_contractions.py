"""Quantized models as the passes rewrite them for units that multiply bytes, and whether they compute the same
numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from meaning_in_float64 import in_float64

from modelc.frontend.onnx import import_model
from modelc.ir.graph import Graph
from modelc.ops import evaluate_graph
from modelc.passes import run_passes
from modelc.passes.machine import Machine, Multiplied

VNNI, SDOT = (Multiplied("uint8", 4),), (Multiplied("int8", 4),)
WIDE = (Multiplied("uint8", 4, within=(-64, 64)), Multiplied("int16", 2))


def integers(path: Path, units: tuple[Multiplied, ...] = VNNI) -> Graph:
    return run_passes(import_model(path), machine=Machine(units))


def drawn(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    graph, rng = import_model(path), np.random.default_rng(seed)

    def one(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        if dtype == "float32":
            return rng.uniform(-4, 4, shape).astype(np.float32)
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)

    return {name: one(graph.values[name].dtype, graph.values[name].shape) for name in graph.inputs}


def same_numbers(path: Path, graph: Graph) -> None:
    """What the rewritten graph computes is what the model does in float64, whole numbers and all."""
    feed = drawn(path)
    truth, found = in_float64(path, feed), evaluate_graph(graph, feed)
    for name, wanted in truth.items():
        assert np.ptp(wanted.astype(np.float64)) > 0
        np.testing.assert_allclose(found[name].astype(np.float64), wanted, rtol=1e-5, atol=1e-6)
