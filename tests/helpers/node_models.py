"""Models of a few nodes, whose outputs are what no node reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, np.ndarray],
    versions: Mapping[str, int],
    **constants: np.ndarray,
) -> onnx.ModelProto:
    """Nodes of the operator sets `versions`, by domain, with inputs as `feeds` has them."""
    read = {x for node in nodes for x in node.input}
    outputs = [x for node in nodes for x in node.output if x not in read]
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind(x.dtype), x.shape) for n, x in feeds.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    sets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)
