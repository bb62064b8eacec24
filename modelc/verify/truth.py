"""What a model computes in float64, with whole numbers exact: the truth that float32 is measured by."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.onnx import import_model
from modelc.ir.expr import DTYPES
from modelc.ir.graph import actual
from modelc.ir.interpret import summed_in_turn
from modelc.ops import evaluate_graph, in_float64

Arrays = Mapping[str, NDArray[Any]]


def evaluated(
    model: str | Path,
    inputs: Arrays,
    constants: Arrays | None = None,
    wide: bool = True,
    bounds: Mapping[str, int] | None = None,
) -> dict[str, NDArray[Any]]:
    """The model's outputs for `inputs` by the operator library's meaning of every node, float32 made float64 (not
    `wide`: as it is, and added up one by one: what rounding may come to). What of the inputs is in `constants` steers
    the model; `bounds` are those of compile. Raises ModelError for what cannot be imported."""
    constants = constants or {}
    fed = {name: array for name, array in inputs.items() if name not in constants}
    graph = import_model(model, {name: array.shape for name, array in fed.items()}, constants, bounds)
    graph = in_float64(graph) if wide else graph
    with np.errstate(all="ignore"), nullcontext() if wide else summed_in_turn():
        found = evaluate_graph(graph, {name: _of(array, graph.values[name].dtype) for name, array in fed.items()})
    return actual(found)


def _of(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """An input as the graph has it: bits as the numbers that they are, float32 as float64."""
    return array.astype(np.float64) if dtype == "float64" else array.view(DTYPES[dtype])
