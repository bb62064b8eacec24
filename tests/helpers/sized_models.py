"""Nodes whose outputs' sizes depend on data, with data of which there is some, none and all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

Feeds = dict[str, np.ndarray]
N = helper.make_node


class Case(NamedTuple):
    """Nodes over inputs, and constants; and data to run them on."""

    nodes: Sequence[onnx.NodeProto]
    outputs: Sequence[str]
    constants: dict[str, Any]
    feeds: Sequence[Feeds]


def saved(case: Case, path: Path) -> Path:
    feed = case.feeds[0]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feed.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in case.outputs]
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in case.constants.items()]
    graph = helper.make_graph(list(case.nodes), "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def agree(found: Feeds, wanted: Sequence[np.ndarray], names: Sequence[str]) -> None:
    assert list(found) == list(names)
    for name, array in zip(names, wanted, strict=True):
        assert (found[name].dtype.kind, found[name].shape) == (array.dtype.kind, array.shape), name
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


RNG = np.random.default_rng(0)
ROWS = [
    {"x": RNG.standard_normal((12, 4)).astype(np.float32), "s": (RNG.random(12) + shift).astype(np.float32)}
    for shift in (0, 0.3, -0.2, 1, -1)
]
SOME = ROWS[:3]  # in which there are a few rows
SELECT = [  # r: the rows of x whose s is above a half
    N("Greater", ["s", "half"], ["m"]),
    N("NonZero", ["m"], ["nz"]),
    N("Transpose", ["nz"], ["nzt"], perm=[1, 0]),
    N("GatherND", ["x", "nzt"], ["r"]),
]


def scene(images: int, share: float) -> Feeds:
    """Boxes that overlap, and scores among which are equal ones."""
    boxes = np.cumsum(RNG.random((images, 30, 4)), 1).astype(np.float32)
    return {"boxes": boxes, "scores": (np.round(RNG.random((images, 3, 30)), 1) * share).astype(np.float32)}
