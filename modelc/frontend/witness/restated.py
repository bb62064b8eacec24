"""A model in operators and types that a package has, and that ONNX Runtime takes: random choices in terms of draws,
maps as tables, products in float32 that may be computed with less, empty tensors for what Resize leaves out."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from modelc.frontend.classical.linear import ML
from modelc.frontend.control.structure import every_node
from modelc.frontend.microsoft.blocks import rounds_to_bytes
from modelc.frontend.operators.random import spelled_out

FLOAT32 = 1  # the accuracy_level of MatMulNBits that asks for float32
NO_REGION = (11, 12)  # operator sets in which Resize has to have a roi and scales
EMPTY = "modelc:empty"


def restated(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model and what is different in it for its user; the model itself where there is nothing to restate."""
    tables, notes = _without_maps(model)
    exact, of_products = _in_float32(tables)
    complete, of_sizes = _with_empty_inputs(exact)
    return spelled_out(complete), (*notes, *of_products, *of_sizes)


def is_restated(path: str | Path) -> bool:
    """Whether ONNX Runtime has to run another model than the one in the file, to be compared with a package."""
    model = onnx.load(path, load_external_data=False)
    return restated(model)[0] is not model


def _without_maps(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A ZipMap makes a list of maps from classes to numbers of a table with a column for each class; where that is an
    output and nothing else reads it, the table is the output."""
    read = {x for node in model.graph.node for x in node.input}
    wanted = {o.name for o in model.graph.output} - read
    maps = [n for n in model.graph.node if (n.op_type, n.domain) == ("ZipMap", ML) and {*n.output} <= wanted]
    if not maps:
        return model, ()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    names = {n.output[0] for n in maps}
    for node in result.graph.node:
        if node.output and node.output[0] in names:
            node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
    for output in result.graph.output:
        if output.name in names:
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, None))
    if all(s.domain not in ("", "ai.onnx") for s in result.opset_import):
        result.opset_import.append(helper.make_opsetid("", 13))
    return result, tuple(
        f"output {name!r} is a table with a column for each class, in the order of the classes, not a list of maps"
        for name in sorted(names)
    )


def _in_float32(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """MatMulNBits allows activations to be rounded to what its accuracy_level names; a package rounds them to bytes,
    where that is asked for and weights have four bits, and to nothing else."""
    count = sum(_rounds_activations(node) for node in model.graph.node)
    if not count:
        return model, ()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        if _rounds_activations(node):
            kept = [a for a in node.attribute if a.name != "accuracy_level"]
            del node.attribute[:]
            node.attribute.extend(kept)
    return result, (
        f"{count} product(s) with weights of few bits take activations in float32, more than their accuracy_level asks "
        "for; they are compared with ONNX Runtime's in float32",
    )


def _rounds_activations(node: onnx.NodeProto) -> bool:
    """And a package does not."""
    if (node.op_type, node.domain) != ("MatMulNBits", "com.microsoft"):
        return False
    numbers = {a.name: a.i for a in node.attribute}
    level = numbers.get("accuracy_level", 0)
    names = ("bits", "K", "block_size")
    return level > FLOAT32 and not rounds_to_bytes(level, *(numbers.get(name, 0) for name in names))


def _with_empty_inputs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Resize may leave out its roi and its scales from operator set 13 on; before, where they are of no use, they are
    empty tensors, without which ONNX Runtime does not take the model."""
    version = next((s.version for s in model.opset_import if s.domain in ("", "ai.onnx")), 0)
    count = sum(_leaves_out(node) for _, node in every_node(model.graph)) if version in NO_REGION else 0
    if not count:
        return model, ()
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for _, node in every_node(result.graph):
        if _leaves_out(node):
            node.input[:] = [x or EMPTY for x in node.input]
    result.graph.initializer.append(helper.make_tensor(EMPTY, TensorProto.FLOAT, [0], []))
    return result, (
        f"{count} Resize node(s) leave out roi or scales, which ONNX Runtime does not take before operator set 13; "
        "they are compared with its own where these are empty",
    )


def _leaves_out(node: onnx.NodeProto) -> bool:
    crops = any(a.s == b"tf_crop_and_resize" for a in node.attribute)
    return node.op_type == "Resize" and node.domain in ("", "ai.onnx") and not crops and "" in node.input
