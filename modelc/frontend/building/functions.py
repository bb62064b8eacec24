"""Domains, operator sets and schemas; function bodies: the model's own, and those by which ONNX defines operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx
from onnx import helper

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Value

Functions = Mapping[tuple[str, str], onnx.FunctionProto]


def domain_of(node: onnx.NodeProto | onnx.FunctionProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def operator_sets(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Domain -> version. The domain of ONNX itself is the empty string."""
    sets = {("" if s.domain == "ai.onnx" else s.domain): s.version for s in proto.opset_import}
    if isinstance(proto, onnx.ModelProto) and proto.ir_version < 3:
        sets.setdefault("", 1)
    return sets


def schema_of(op: str, domain: str, version: int) -> Any:
    """ONNX's description (OpSchema) of an operator in an operator set; None if it has none."""
    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def first_version(op: str, domain: str) -> int:
    """The first operator set that has an operator; 0 if ONNX does not know it."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return min((s.since_version for s in schemas if (s.name, s.domain) == (op, domain)), default=0)


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
        newest = max((v for v in schema.function_opset_versions if v <= version), default=None)
        body.ParseFromString(schema.get_function_with_opset_version(newest or min(schema.function_opset_versions)))
        return body
    if not schema.has_context_dependent_function:
        return None
    versions = schema.context_dependent_function_opset_versions
    newest = max((v for v in versions if v <= version), default=min(versions))
    types = [type_of(v).SerializeToString() for v in inputs]
    text = schema.get_context_dependent_function_with_opset_version(newest, node.SerializeToString(), types)
    if not text:
        return None
    body.ParseFromString(text)
    return body


def type_of(value: Value | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(DTYPES[value.dtype]), value.shape)
