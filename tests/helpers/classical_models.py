"""Nodes of scikit-learn's kind (ai.onnx.ml), and packages of them that are verified on given data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import modelc
from modelc.verify.report import Report

ML, F, I = "ai.onnx.ml", TensorProto.FLOAT, TensorProto.INT64
VERSIONS = {"": 18, ML: 3}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((23, 5)).astype(np.float32)


def ml(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), domain=ML, name=outputs.split()[0], **attrs)


def verified(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path) -> Report:
    """Compiles the model and compares it with ONNX Runtime on `feeds`."""
    onnx.save(model, folder / "m.onnx")
    result = modelc.compile(folder / "m.onnx", output=folder / "m.modelc", inputs=feeds, database=False)
    assert result.report is not None and len(result.report.outputs) == len(model.graph.output)
    assert all(o.distance.passed for o in result.report.outputs), result.report.sentence()
    return result
