"""Function bodies: those that the model brings along, and those by which ONNX itself defines its operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Value


def schema_of(op: str, domain: str, version: int) -> Any:
    """ONNX's description (OpSchema) of an operator in an operator set; None if it has none."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def has_body(op: str, domain: str, version: int) -> bool:
    schema = schema_of(op, domain, version)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def schema_body(node: onnx.NodeProto, version: int, inputs: Sequence[Value | None]) -> onnx.FunctionProto | None:
    """The body that ONNX gives for `node`, at the newest version up to `version` for which it has one."""
    schema = schema_of(node.op_type, node.domain, version)
    if schema is None:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        found = max((v for v in schema.function_opset_versions if v <= version), default=None)
        body.ParseFromString(schema.get_function_with_opset_version(found or min(schema.function_opset_versions)))
        return body
    if not schema.has_context_dependent_function:
        return None
    versions = schema.context_dependent_function_opset_versions
    found = max((v for v in versions if v <= version), default=min(versions))
    types = [_type(v).SerializeToString() for v in inputs]
    text = schema.get_context_dependent_function_with_opset_version(found, node.SerializeToString(), types)
    if not text:
        return None
    body.ParseFromString(text)
    return body


def _type(value: Value | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(DTYPES[value.dtype]), value.shape)
