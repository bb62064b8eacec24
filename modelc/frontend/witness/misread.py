"""What the reference evaluator of onnx computes otherwise than the standard says: it is not asked about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
FLATTENING = {"Softmax", "LogSoftmax", "Hardmax"}  # before operator set 13: over all dimensions from `axis` on


def is_misread(node: onnx.NodeProto, version: int, inputs: Sequence[Array | None]) -> bool:
    """Whether onnx's evaluator is wrong about a node of ONNX's own domain, at this operator set, or may be: `inputs`
    are those that are known, in the node's order, None for the others."""
    attrs = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type in FLATTENING:
        return version < 13
    if node.op_type == "LpNormalization":
        return bool(attrs.get("p", 2) == 1)
    if node.op_type == "Unique":
        return not attrs.get("sorted", 1)
    return node.op_type == "LRN" or (node.op_type == "Slice" and _is_clamped_backwards(node, inputs))


def _is_clamped_backwards(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> bool:
    """Whether a Slice goes backwards from a start that is none of the dimension's, as far as that is known."""
    named = [k < len(node.input) and bool(node.input[k]) for k in range(5)]
    if not named[4]:  # without steps
        return False
    data, starts, _, axes, steps = (inputs[k] if named[k] else None for k in range(5))
    if steps is not None and (steps > 0).all():
        return False
    if data is None or starts is None or steps is None or (axes is None and named[3]):
        return True
    along = np.arange(len(starts)) if axes is None else axes
    sizes = np.asarray(data.shape)[along]
    return bool(((steps < 0) & ((starts >= sizes) | (starts < -sizes))).any())
