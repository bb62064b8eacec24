"""What a model means in float64, element by element: the truth that tests compare with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modelc.frontend.onnx import import_model
from modelc.verify.kernels.demand import Evaluator
from modelc.verify.kernels.meaning import Imported
from modelc.verify.kernels.rounding import Analysis, Rounded


def every_element(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The indices of all elements."""
    return tuple(axis.reshape(-1) for axis in np.indices(shape)) if shape else ()


def outputs_with_bounds(path: Path, feed: dict[str, np.ndarray]) -> dict[str, Rounded]:
    """Every output in float64 with its bounds, flat."""
    graph = import_model(path, {name: array.shape for name, array in feed.items()})
    evaluator = Evaluator(Imported(graph).definitions(feed, Analysis()), 1 << 40)
    with np.errstate(all="ignore"):
        return {name: evaluator.elements(name, every_element(graph.values[name].shape)) for name in graph.outputs}


def in_float64(path: Path, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every output in float64."""
    graph = import_model(path, {name: array.shape for name, array in feed.items()})
    return {
        name: output.value.reshape(graph.values[name].shape) for name, output in outputs_with_bounds(path, feed).items()
    }
