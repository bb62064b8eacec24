"""Folding while importing: nodes whose inputs are all known are run by ONNX's own reference implementation, at the
operator set that the model names. This is what makes chains that compute shapes vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from modelc.errors import ModelError
from modelc.ir.expr import DTYPES

Array = NDArray[Any]
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FINDING = {"NonZero", "Compress", "NonMaxSuppression", "Unique"}  # what they find of constants has a size that is known
KEPT = {"DequantizeLinear", "QuantizeLinear"}  # constants are better kept quantised
POOLS = {"AveragePool", "LpPool", "MaxPool"}  # the reference implementation misplaces windows of ceil_mode
LIMIT = 1 << 22  # bytes read and written; larger foldings are left to passes.fold_constants


def worth_folding(node: onnx.NodeProto, inputs: Sequence[Array | None], made: int | None) -> bool:
    """Whether the node, which makes `made` bytes, is small enough to be run now although it could be compiled."""
    if node.op_type in KEPT | RANDOM | POOLS or made is None:
        return False
    if node.op_type == "Range" and not all(np.isfinite(x).all() for x in inputs if x is not None):
        return False  # NumPy counts steps of infinite size otherwise than ONNX
    return sum(x.nbytes for x in inputs if x is not None) + made <= LIMIT


def run_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], inputs: Sequence[Array | None], what: str
) -> tuple[Array, ...] | None:
    """The node's outputs; None if the reference implementation cannot run it. Raises ModelError where memory ends."""
    from onnx.reference import ReferenceEvaluator  # most models have nothing to fold, and it takes long to import

    fed = {name: x for name, x in zip(node.input, inputs, strict=True) if x is not None}
    kinds = {
        n: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in fed.items()
    }
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "fold", list(kinds.values()), results)
    try:
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(graph, opsets=dict(opsets)).run(None, fed)
    except MemoryError:
        raise ModelError(f"{what}: computing this constant needs more memory than there is") from None
    except Exception:  # the reference implementation raises whatever NumPy does
        return None
    by_name = dict(zip((r.name for r in results), computed, strict=True))
    arrays = tuple(np.asarray(by_name[name]) if name else np.zeros(0) for name in node.output)
    return arrays if all(a.dtype.name in DTYPES for a in arrays) else None
