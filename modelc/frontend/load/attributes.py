"""ONNX attributes as plain Python values: ints, floats, strings, tuples of them, NumPy arrays; dtypes by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from modelc.errors import ModelError
from modelc.frontend.load.check import IGNORED
from modelc.frontend.load.read import element_type, sparse_array, tensor_array

DTYPE_ATTRS = {"to", "dtype", "output_dtype"}  # numbers of TensorProto.DataType


def attributes(node: onnx.NodeProto, folder: Path, what: str) -> dict[str, Any]:
    """The node's attributes; graphs (control flow) are left out. References to a function's attributes have to be
    resolved before. Raises ModelError."""
    return {
        a.name: attribute_value(a, folder, what)
        for a in node.attribute
        if a.name not in IGNORED and a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    }


def attribute_value(a: onnx.AttributeProto, folder: Path, what: str) -> Any:
    where = f"{what}, attribute {a.name}"
    if a.type == AttributeProto.INT:
        return element_type(a.i, where) if a.name in DTYPE_ATTRS and a.i else int(a.i)
    if a.type == AttributeProto.FLOAT:
        return float(a.f)
    if a.type == AttributeProto.STRING:
        text = a.s.decode("utf-8", "replace")
        return text.lower().replace("double", "float64") if a.name == "to" else text  # Cast of operator set 1
    if a.type == AttributeProto.TENSOR:
        return tensor_array(a.t, folder, where)
    if a.type == AttributeProto.SPARSE_TENSOR:
        return sparse_array(a.sparse_tensor, folder)
    if a.type == AttributeProto.INTS:
        return tuple(int(i) for i in a.ints)
    if a.type == AttributeProto.FLOATS:
        return tuple(float(f) for f in a.floats)
    if a.type == AttributeProto.STRINGS:
        return tuple(s.decode("utf-8", "replace") for s in a.strings)
    kind = AttributeProto.AttributeType.Name(a.type) if a.type in AttributeProto.AttributeType.values() else a.type
    raise ModelError(f"{where}: modelc does not take attributes of type {kind}")


def resolved(node: onnx.NodeProto, given: Mapping[str, AttributeProto]) -> onnx.NodeProto:
    """A node of a function's body, with references to the function's attributes replaced by what the call gives; an
    attribute that the call leaves out and that has no default is left out here too."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            copy.attribute.append(a)
        elif a.ref_attr_name in given:
            new = copy.attribute.add()
            new.CopyFrom(given[a.ref_attr_name])
            new.name = a.name
    return copy
