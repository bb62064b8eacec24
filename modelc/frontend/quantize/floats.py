"""The float model that a Recipe is about: nodes with names, constants that are initializers, batch norms in the weights
of the convolutions before them, an operator set that has scales by channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import AttributeProto, NodeProto, helper, numpy_helper, version_converter

from modelc.errors import ModelError
from modelc.frontend.control.structure import reads
from modelc.frontend.load.read import read_model, tensor_array

STANDARD = ("", "ai.onnx")
OPSET = 13  # the first with scales by channel


class FloatModel:
    """A model that is being rewritten, with its constants by name and who reads and writes each value."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.constants = {t.name: t for t in model.graph.initializer}
        self.index()

    def index(self) -> None:
        """Sees nodes and outputs as they are now."""
        graph = self.model.graph
        self.named: dict[str, NodeProto] = {}
        self.producers = {name: node for node in graph.node for name in node.output if name}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                if name:
                    self.readers.setdefault(name, []).append(node)
        self.inner = {x for node in graph.node for x in reads(node)} - self.readers.keys()
        self.inner |= {x for node in graph.node for x in {*reads(node)} - {*node.input}}  # of bodies of control flow
        self.results = {value.name for value in graph.output}

    def node(self, name: str) -> NodeProto:
        """The node of that name."""
        if self.named.get(name) is None:
            self.named = {node.name: node for node in self.model.graph.node}
        return self.named[name]

    def put(self, nodes: Iterable[NodeProto]) -> None:
        """Has these nodes in the place of all that there are."""
        copies = [copied(node) for node in nodes]
        del self.model.graph.node[:]
        self.model.graph.node.extend(copies)

    @property
    def stored_bytes(self) -> int:
        """What the numbers of its constants take."""
        every = self.model.graph.initializer
        return sum(prod(t.dims) * int(onnx.helper.tensor_dtype_to_np_dtype(t.data_type).itemsize) for t in every)

    def array(self, name: str) -> NDArray[np.float32] | None:
        """The numbers of a constant in float32; None where it is none."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_type != onnx.TensorProto.FLOAT:
            return None
        return tensor_array(tensor, Path())

    def set(self, name: str, numbers: ArrayLike) -> str:
        """Gives a constant, a new one or one that there is, these numbers; returns its name."""
        tensor = numpy_helper.from_array(np.asarray(numbers, order="C"), name)
        if name in self.constants:
            self.constants[name].CopyFrom(tensor)
        else:
            self.model.graph.initializer.append(tensor)
            self.constants[name] = self.model.graph.initializer[-1]
        return name

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node behind all others; returns what it writes."""
        self.model.graph.node.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def give(self, name: str, dtype: int = onnx.TensorProto.FLOAT) -> None:
        """Makes a value an output."""
        self.model.graph.output.append(helper.make_tensor_value_info(name, dtype, None))

    def behind(self, nodes: Iterable[NodeProto], added: Mapping[str, Sequence[NodeProto]]) -> Iterator[NodeProto]:
        """`nodes`, and what is `added` for values, each behind what writes its value."""
        for value in self.model.graph.input:
            yield from added.get(value.name, ())
        for node in nodes:
            yield node
            for name in node.output:
                yield from added.get(name, ())

    def copy(self, outputs: bool = True) -> FloatModel:
        """One to add to; without `outputs` of the model's own it gives what is added alone."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        if not outputs:
            del model.graph.output[:]
        return FloatModel(model)

    def private(self, name: str) -> bool:
        """Whether one node alone reads a value, and nothing else does."""
        return len(self.readers.get(name, ())) == 1 and name not in self.results and name not in self.inner


def copied(node: NodeProto, **changed: str) -> NodeProto:
    """A node of its own, with another `name`, and other values for the inputs x and weights, and for the output y."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = changed.get("name", copy.name)
    for k, part in enumerate(("x", "weights")):
        if part in changed:
            copy.input[k] = changed[part]
    copy.output[0] = changed.get("y", copy.output[0])
    return copy


def float_model(path: str | Path) -> FloatModel:
    """The model in the file, as a Recipe is about it. Raises ModelError."""
    read_model(path)  # which says what is wrong with it
    try:
        model = onnx.load(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"the data of the model {path} cannot be read: {str(error)[:200]}") from None
    if (version := operator_set(model)) < OPSET:
        model = _converted(model, version, path)
    _name_nodes(model)
    _constants_as_initializers(model)
    floats = FloatModel(model)
    _fold_batch_norms(floats)
    return floats


def operator_set(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that a model has."""
    return next((opset.version for opset in model.opset_import if opset.domain in STANDARD), OPSET)


def _converted(model: onnx.ModelProto, version: int, path: str | Path) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(model, OPSET)
    except (RuntimeError, ValueError, IndexError) as error:  # what the converter raises for operators it does not know
        raise ModelError(
            f"the model {path} is of operator set {version}, which has no scales by channel, and cannot be converted "
            f"to {OPSET} ({' '.join(str(error).split())[:200]}): export it with operator set {OPSET} or later"
        ) from None


def _name_nodes(model: onnx.ModelProto) -> None:
    """Gives each node of the graph a name that no other has."""
    counts = Counter(node.name for node in model.graph.node)
    for node in model.graph.node:
        if not node.name or counts[node.name] > 1:
            output = next((name for name in node.output if name), "")
            node.name = f"{node.op_type}:{output}"


def _constants_as_initializers(model: onnx.ModelProto) -> None:
    graph = model.graph
    nodes = list[NodeProto]()
    for node in graph.node:
        values = [a.t for a in node.attribute if a.name == "value" and a.type == AttributeProto.TENSOR]
        if node.op_type != "Constant" or node.domain not in STANDARD or len(values) != 1:
            nodes.append(node)
            continue
        tensor = onnx.TensorProto()
        tensor.CopyFrom(values[0])
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    results = {value.name for value in graph.output}
    written = {t.name for t in graph.initializer}
    for name in sorted(results & written):  # a graph gives what a node writes
        alias = f"{name}/constant"
        tensor = next(t for t in graph.initializer if t.name == name)
        tensor.name = alias
        for node in nodes:
            for k, read in enumerate(node.input):
                node.input[k] = alias if read == name else read
        nodes.append(helper.make_node("Identity", [alias], [name], f"Identity:{name}"))
    del graph.node[:]
    graph.node.extend(nodes)


def _fold_batch_norms(floats: FloatModel) -> None:
    """Conv and BatchNormalization of its output become one Conv."""
    graph, dropped = floats.model.graph, set[str]()
    for norm in list(graph.node):
        conv = floats.producers.get(norm.input[0]) if norm.input else None
        if norm.op_type != "BatchNormalization" or conv is None or conv.op_type != "Conv":
            continue
        if not floats.private(norm.input[0]) or len([o for o in norm.output if o]) > 1:
            continue
        weights = floats.array(conv.input[1])
        bias = floats.array(conv.input[2]) if len(conv.input) > 2 and conv.input[2] else None
        parts = [floats.array(name) for name in norm.input[1:5]]
        if weights is None or any(part is None for part in parts) or (len(conv.input) > 2 and bias is None):
            continue
        gamma, beta, mean, variance = (np.asarray(part, np.float64) for part in parts)
        epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), 1e-5)
        factor = gamma / np.sqrt(variance + epsilon)
        before = np.zeros(len(factor)) if bias is None else bias.astype(np.float64)
        folded = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
        floats.set(f"{norm.output[0]}/weights", folded.astype(np.float32))
        floats.set(f"{norm.output[0]}/bias", ((before - mean) * factor + beta).astype(np.float32))
        conv.input[1] = f"{norm.output[0]}/weights"
        del conv.input[2:]
        conv.input.append(f"{norm.output[0]}/bias")
        conv.output[0] = norm.output[0]
        dropped.add(norm.name)
    kept = [node for node in graph.node if node.name not in dropped]
    del graph.node[:]
    graph.node.extend(kept)
    drop_unread(floats)


def drop_unread(floats: FloatModel) -> None:
    """Leaves constants out that nothing reads."""
    floats.index()
    graph = floats.model.graph
    read = floats.readers.keys() | floats.inner | floats.results
    kept = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    given = [v for v in graph.input if v.name in read or v.name not in floats.constants]
    del graph.input[:]
    graph.input.extend(given)
    floats.constants = {t.name: t for t in graph.initializer}


def drop_unread_nodes(floats: FloatModel) -> None:
    """Leaves out what transposed or dequantized weights that nothing reads any more."""
    while True:
        floats.index()
        read = floats.readers.keys() | floats.inner | floats.results
        every = floats.model.graph.node
        dropped = {
            node.name
            for node in every
            if node.op_type in ("DequantizeLinear", "Transpose") and read.isdisjoint(node.output)
        }
        if not dropped:
            return
        floats.put(node for node in every if node.name not in dropped)
