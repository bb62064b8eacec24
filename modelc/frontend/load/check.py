"""Whether a model is one by ONNX's own schemas, before anything else reads it: names, numbers of inputs and outputs,
attributes and their types, signatures of branches and functions, shapes of constants.

What depends on dtypes and shapes is checked when these are known, node by node (types.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto

from modelc.errors import ModelError
from modelc.frontend.building.functions import Functions, domain_of, first_version, operator_sets, schema_of
from modelc.frontend.building.limits import FUNCTION_DEPTH, MOST_NODES, check_shape
from modelc.frontend.microsoft.fused import FUSED

IGNORED = {"consumed_inputs"}  # a hint of operator sets 1 to 5 that never changed a result
LEFT_OUT = {("Resize", "roi"), ("Resize", "scales")}  # before operator set 13: restated.py gives empty ones
GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
FIELDS = {  # where the data of an attribute of each type is
    AttributeProto.UNDEFINED: "",
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOATS: "floats",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
VALUES: Mapping[tuple[str, str], Mapping[int, tuple[object, ...]]] = {  # by operator set, what ONNX lists
    ("GridSample", "mode"): {16: (b"bilinear", b"nearest", b"bicubic"), 20: (b"linear", b"nearest", b"cubic")},
    ("DepthToSpace", "mode"): {11: (b"DCR", b"CRD")},
    ("MaxPool", "storage_order"): {8: (0, 1)},
}
UNBOUNDED = 1 << 30  # inputs or outputs, from here on a schema says "any number"


@dataclass(frozen=True)
class Signature:
    """What a node of one operator looks like. `inputs` are names, in order, with whether each has to be there;
    `attributes` their types (AttributeProto's) and whether each has to be there."""

    inputs: tuple[tuple[str, bool], ...]
    least_inputs: int
    most_inputs: int
    least_outputs: int
    most_outputs: int
    attributes: Mapping[str, tuple[int, bool]]


@cache
def signature_of(op: str, domain: str, version: int) -> Signature | None:
    """None for an operator that has no schema."""
    if (fused := FUSED.get((domain, op))) is not None:
        return _declared(fused.inputs, fused.outputs, fused.attributes)
    schema = schema_of(op, domain, version)
    if schema is None or domain not in ("", "ai.onnx.ml"):
        return None
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return Signature(
        tuple((x.name, x.option == single) for x in schema.inputs),
        schema.min_input,
        schema.max_input,
        schema.min_output,
        schema.max_output,
        {name: (a.type.value, a.required) for name, a in schema.attributes.items()},
    )


def _declared(inputs: str, outputs: int, attributes: str) -> Signature:
    """The signature that a Fused writes in short."""
    words = inputs.split()
    named = tuple((word.rstrip("?"), not word.endswith("?")) for word in words if not word.endswith("*"))
    typed = (attribute.split(":") for attribute in attributes.split())
    return Signature(
        named,
        max((k for k, (_, needed) in enumerate(named, 1) if needed), default=0),
        len(named) if len(named) == len(words) else UNBOUNDED,
        1,
        outputs,
        {name: (AttributeProto.AttributeType.Value(kind.rstrip("!")), kind.endswith("!")) for name, kind in typed},
    )


def check_model(model: onnx.ModelProto, path: object) -> None:
    """Raises ModelError with the first thing that is wrong."""
    _check_text(str(path), [model.domain, *(s.domain for s in model.opset_import)])
    functions: dict[tuple[str, str], onnx.FunctionProto] = {}
    for function in model.functions:
        key = (domain_of(function), function.name)
        _check_text(str(path), key)
        if key in functions:
            raise ModelError(f"{path} has two functions {'.'.join(filter(None, key))}")
        functions[key] = function
    versions = operator_sets(model)
    _check_expansion(model.graph.node, functions, path)
    _check_graph(model.graph, str(path), versions, functions)
    for function in model.functions:
        what = f"{path}, function {function.name}"
        _check_names(what, "input", function.input)
        _check_names(what, "output", function.output)
        _check_text(what, [*function.attribute, *(s.domain for s in function.opset_import)])
        _check_nodes(function.node, f"{what}, ", {**versions, **operator_sets(function)}, functions)


def _check_graph(
    graph: onnx.GraphProto, what: str, versions: Mapping[str, int], functions: Functions, inside: str = ""
) -> None:
    constants = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    _check_text(what, [graph.name])
    _check_names(what, "input", [x.name for x in graph.input])
    _check_names(what, "output", [x.name for x in graph.output])
    _check_names(what, "initialiser", [x.name for x in constants])
    for value in (*graph.input, *graph.output):
        _check_text(f"{what}, value {value.name!r}", [d.dim_param for d in value.type.tensor_type.shape.dim])
    for tensor in constants:
        _check_tensor(tensor, f"{what}: initialiser {tensor.name!r}")
    _check_nodes(graph.node, inside, versions, functions)


def _check_tensor(tensor: onnx.TensorProto, what: str) -> None:
    """Whether it can be a tensor, also where nothing needs it."""
    _check_text(what, [x for e in tensor.external_data for x in (e.key, e.value)])
    check_shape(tensor.dims, what)
    if tensor.data_type == onnx.TensorProto.UNDEFINED or tensor.data_type not in onnx.TensorProto.DataType.values():
        raise ModelError(f"{what} has elements of type number {tensor.data_type}, which ONNX does not have")
    if not all(e.HasField("key") and e.HasField("value") for e in tensor.external_data):
        raise ModelError(f"{what} has external data with a key or a value that is missing")
    if tensor.data_location == onnx.TensorProto.EXTERNAL and tensor.HasField("raw_data"):
        raise ModelError(f"{what} has both external data and data of its own")


def _check_names(what: str, kind: str, names: Sequence[str]) -> None:
    _check_text(what, names)
    if "" in names:
        raise ModelError(f"{what} has an {kind} without a name")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"{what} has two {kind}s named {name!r}")
        seen.add(name)


def _check_text(what: str, words: Iterable[str]) -> None:
    """Protobuf hands over text that is no UTF-8 as bytes."""
    for word in words:
        if isinstance(word, bytes):
            raise ModelError(f"{what} is damaged: the name {word!r} is no UTF-8 text")


def _check_nodes(
    nodes: Iterable[onnx.NodeProto], inside: str, versions: Mapping[str, int], functions: Functions
) -> None:
    """`inside` is what the sentences begin with: the function or branch."""
    named: set[str] = set()
    for index, node in enumerate(nodes):
        _check_text(f"{inside}node {index}", (node.op_type, node.domain, node.name, *node.input, *node.output))
        where = f"{inside}node {node.name or f'{node.op_type}_{index}'!r} ({node.op_type})"
        if node.name and node.name in named:
            raise ModelError(f"{where}: another node has this name; expected names of nodes to be different")
        named.add(node.name)
        _check_attributes(node, where)
        domain = domain_of(node)
        if domain not in versions:
            raise ModelError(f"{where}: opset_import names no version of its domain {domain or 'ai.onnx'!r}")
        function = functions.get((domain, node.op_type))
        if function is not None:
            signature: Signature | None = _of_function(function)
        else:
            signature = signature_of(node.op_type, domain, versions[domain])
        if signature is not None:
            _check_node(node, signature, where)
            _check_values(node, domain, versions[domain], where)
        elif function is None and (first := first_version(node.op_type, domain)) > versions[domain]:
            introduced = f"operator set {first}, which is {versions[domain]} here"
            raise ModelError(f"{where}: there is no such operator before {introduced}")
        for attribute in node.attribute:
            if (domain, node.op_type) == ("", "If") and len(attribute.g.output) != len(node.output):
                branch_outputs = f"{len(attribute.g.output)} in {attribute.name}"
                raise ModelError(
                    f"{where}: expected branches of {len(node.output)} outputs, as it has, found {branch_outputs}"
                )
            for graph in (attribute.g,) if attribute.type == AttributeProto.GRAPH else attribute.graphs:
                _check_graph(graph, f"{where}, {attribute.name}", versions, functions, f"{where}, {attribute.name}: ")


def _of_function(function: onnx.FunctionProto) -> Signature:
    kinds = {name: (AttributeProto.UNDEFINED, False) for name in function.attribute}
    kinds |= {a.name: (a.type, False) for a in function.attribute_proto}
    inputs = tuple((name, False) for name in function.input)
    return Signature(inputs, 0, len(inputs), 0, len(function.output), kinds)


def _check_node(node: onnx.NodeProto, signature: Signature, where: str) -> None:
    _check_count("input", node.input, signature.least_inputs, signature.most_inputs, where)
    _check_count("output", node.output, signature.least_outputs, signature.most_outputs, where)
    for k, (name, needed) in enumerate(signature.inputs):
        if needed and k < len(node.input) and not node.input[k] and (node.op_type, name) not in LEFT_OUT:
            raise ModelError(f"{where}: expected an input at position {k} ({name}), found none")
    given = {a.name: a for a in node.attribute}
    for name, a in given.items():
        if name in IGNORED or name.startswith("__"):
            continue
        if name not in signature.attributes:
            expected = ", ".join(signature.attributes) or "none"
            raise ModelError(f"{where}: expected one of its operator's attributes ({expected}), found {name!r}")
        kind, _ = signature.attributes[name]
        if kind != AttributeProto.UNDEFINED and a.type != kind:
            raise ModelError(f"{where}: expected attribute {name} of type {_kind(kind)}, found {_kind(a.type)}")
    if node.op_type == "Split" and "num_outputs" in given and given["num_outputs"].i != len(node.output):
        count = given["num_outputs"].i  # inference allocates as many
        raise ModelError(f"{where}: expected num_outputs {len(node.output)}, as many as it has, found {count}")
    for name, (_, needed) in signature.attributes.items():
        if needed and name not in given:
            raise ModelError(f"{where}: expected an attribute {name}, found none")


def _check_values(node: onnx.NodeProto, domain: str, version: int, where: str) -> None:
    for a in node.attribute if not domain else ():
        lists = VALUES.get((node.op_type, a.name), {})
        allowed = next((lists[since] for since in sorted(lists, reverse=True) if since <= version), None)
        value = a.s if a.type == AttributeProto.STRING else a.i
        if allowed is not None and not a.ref_attr_name and value not in allowed:
            shown = ", ".join(x.decode() if isinstance(x, bytes) else str(x) for x in allowed)
            raise ModelError(f"{where}: expected attribute {a.name} among {shown}, found {value!r}")


def _check_count(kind: str, names: Sequence[str], least: int, most: int, where: str) -> None:
    if least <= len(names) <= most:
        return
    span = f"at least {least}" if most >= UNBOUNDED else f"{least} to {most}" if most > least else f"{most}"
    raise ModelError(f"{where}: expected {span} {kind}{'' if span == '1' else 's'}, found {len(names)}")


def _check_attributes(node: onnx.NodeProto, where: str) -> None:
    seen: set[str] = set()
    for a in node.attribute:
        _check_text(where, (a.name, a.ref_attr_name))
        if a.name in seen:
            raise ModelError(f"{where}: attribute {a.name!r} is given twice")
        seen.add(a.name)
        if stray := {f.name for f, _ in a.ListFields()} - {
            "name",
            "type",
            "doc_string",
            "ref_attr_name",
            FIELDS[a.type],
        }:
            raise ModelError(f"{where}: attribute {a.name!r} of type {_kind(a.type)} has data in {min(stray)!r} too")
        if a.type == AttributeProto.TENSOR and not a.ref_attr_name:
            _check_tensor(a.t, f"{where}: attribute {a.name}")


def _kind(number: int) -> str:
    kinds: Any = AttributeProto.AttributeType
    return str(kinds.Name(number)) if number in kinds.values() else f"number {number}"


def _check_expansion(nodes: Iterable[onnx.NodeProto], functions: Functions, path: object) -> None:
    """Raises ModelError where inlining the functions would make more than MOST_NODES nodes, or would not end."""
    sizes: dict[tuple[str, str], int] = {}  # nodes of a function with all that it calls

    def size(node: onnx.NodeProto, depth: int) -> int:
        inner = sum(size(x, depth) for a in node.attribute for g in (a.g, *a.graphs) for x in g.node)
        key = (domain_of(node), node.op_type)
        if key not in functions:
            return 1 + inner
        if key not in sizes:
            if depth >= FUNCTION_DEPTH:
                raise ModelError(
                    f"{path}: at function {node.op_type!r} the model's functions call each other more than "
                    f"{FUNCTION_DEPTH} (FUNCTION_DEPTH) deep, or in a circle"
                )
            sizes[key] = sum(size(x, depth + 1) for x in functions[key].node)
        return sizes[key] + inner

    if sum(size(node, 0) for node in nodes) > MOST_NODES:
        raise ModelError(
            f"{path} has more than {MOST_NODES} nodes (MOST_NODES) once its functions are inlined; expected a model "
            "that is smaller, or whose functions call each other less often"
        )
