"""What ONNX's own inference says of a node whose inputs are known: whether their dtypes, ranks and shapes fit its
operator. Asked before anything of ours reads the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper, shape_inference

from modelc.errors import ModelError
from modelc.frontend.building.functions import domain_of, schema_of, type_of
from modelc.frontend.building.limits import check_shape
from modelc.ir.graph import Value

SMALL = 1 << 10  # elements of a constant that inference may look at: axes, shapes, pads
# ValueError is what inference says of an attribute that names no element type.
REFUSALS: tuple[type[Exception], ...] = (
    onnx.checker.ValidationError,
    shape_inference.InferenceError,
    ValueError,
)


def check_node(node: onnx.NodeProto, versions: Mapping[str, int], inputs: Sequence[Value | None], where: str) -> None:
    """Raises ModelError for inputs that the node's operator does not take, and for results that are too large."""
    domain = domain_of(node)
    schema = schema_of(node.op_type, domain, versions.get(domain, 1))
    if schema is None or domain != "":
        return
    node = _without(node, inputs, schema, where)
    _check_axis(node, inputs, where)
    given = {name: value for name, value in zip(node.input, inputs, strict=True) if value is not None}
    types = {name: type_of(value) for name, value in given.items()}
    small = {name: value.data for name, value in given.items() if value.data is not None and value.data.size <= SMALL}
    data = {name: numpy_helper.from_array(x, name) for name, x in small.items() if x.dtype.kind in "iufb"}
    sets = [helper.make_opsetid(name, version) for name, version in versions.items()]
    try:
        inferred = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=sets)
    except REFUSALS as error:
        if "ShapeInferenceError" in str(error) and len(small) == len(given):
            return  # computing the node says it: ONNX's own bodies have a Range of vectors of one number
        said = str(error).strip().splitlines()[0].split("] ", 1)[-1]
        shown = ", ".join(f"{name!r} {value.dtype}{list(value.shape)}" for name, value in given.items())
        raise ModelError(f"{where}: ONNX does not allow this: {said}; its inputs are {shown or 'none'}") from None
    for name, kind in inferred.items():
        _check_result(kind, f"{where}: its result {name!r}")


def _without(node: onnx.NodeProto, inputs: Sequence[Value | None], schema: Any, where: str) -> onnx.NodeProto:
    """The node with no name for what is absent: in a function's body that is a parameter which its caller left out.
    Raises ModelError where the operator needs it."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for k, value in enumerate(inputs):
        if value is not None:
            continue
        if k < len(schema.inputs) and schema.inputs[k].option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise ModelError(f"{where}: expected an input at position {k} ({schema.inputs[k].name}), found none")
        copy.input[k] = ""
    return copy


def _check_axis(node: onnx.NodeProto, inputs: Sequence[Value | None], where: str) -> None:
    """Raises ModelError for an axis that its first input does not have: ONNX's inference writes to that dimension."""
    if not inputs or inputs[0] is None:
        return
    rank = max(1, len(inputs[0].shape) + (node.op_type == "OneHot"))  # whose axis is one of its result
    for attribute in node.attribute:
        if attribute.name == "axis" and not -rank <= attribute.i <= rank:
            raise ModelError(f"{where}: expected an axis from {-rank} to {rank}, found {attribute.i}")


def _check_result(kind: Any, what: str) -> None:
    tensor = kind.tensor_type
    if kind.WhichOneof("value") == "tensor_type" and all(d.HasField("dim_value") for d in tensor.shape.dim):
        check_shape([d.dim_value for d in tensor.shape.dim], what)
