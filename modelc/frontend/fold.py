"""Folding while importing: nodes whose inputs are all known are run by ONNX's own reference implementation, at the
operator set that the model names. This is what makes chains that compute shapes vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from onnx.reference import ReferenceEvaluator

from modelc.errors import ModelError
from modelc.ir.expr import DTYPES

Array = NDArray[Any]
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
KEPT = {"DequantizeLinear", "QuantizeLinear"}  # constants are better kept quantised
LIMIT = 1 << 20  # elements read or written; larger foldings are left to passes.fold_constants
GUARD = 1 << 28  # elements of a folded output, at most


def worth_folding(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> bool:
    """Whether the node is small enough to be run now."""
    if node.op_type in KEPT or node.op_type in RANDOM:
        return False
    return sum(x.size for x in inputs if x is not None) + grown(node, inputs) <= LIMIT


def grown(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> int:
    """Elements of the output of an operator that can blow up small inputs; 0 for others."""
    numbers = [None if x is None or x.dtype.kind not in "iuf" else x.reshape(-1).tolist() for x in inputs]
    try:
        if node.op_type == "ConstantOfShape":
            return prod(numbers[0] or [])
        if node.op_type == "Expand" and inputs[0] is not None:
            return prod(np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in numbers[1] or [])))
        if node.op_type == "Tile" and inputs[0] is not None:
            return inputs[0].size * int(prod(numbers[1] or []))
        if node.op_type == "Range":
            start, limit, step = (n[0] for n in numbers if n)
            return int(max((limit - start) / step, 0))
    except (ValueError, ZeroDivisionError, TypeError, OverflowError):
        pass  # malformed: running it says how
    return 0


def run_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Array | None], what: str
) -> tuple[Array, ...] | None:
    """The node's outputs; None if the reference implementation cannot run it. Raises ModelError if it would produce
    an absurd amount of data."""
    if grown(node, inputs) > GUARD:
        raise ModelError(f"{what}: expected a constant of at most {GUARD} elements, found {grown(node, inputs)}")
    fed = {name: x for name, x in zip(node.input, inputs, strict=True) if x is not None}
    kinds = {
        n: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in fed.items()
    }
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "fold", list(kinds.values()), results)
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(graph, opsets=dict(opsets)).run(None, fed)
    except MemoryError:
        raise ModelError(f"{what}: computing this constant needs more memory than there is") from None
    except Exception:  # the reference implementation raises whatever NumPy does
        return None
    by_name = dict(zip((r.name for r in results), found, strict=True))
    arrays = tuple(np.asarray(by_name[name]) if name else np.zeros(0) for name in node.output)
    return arrays if all(a.dtype.name in DTYPES for a in arrays) else None
