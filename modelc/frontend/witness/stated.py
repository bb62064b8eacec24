"""The constants that an ONNX file states, one at a time and as `onnx` reads them: what an importer took for them is
compared with these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, numpy_helper

from modelc.frontend.building.functions import domain_of
from modelc.frontend.control.structure import node_names, reads
from modelc.frontend.load.read import element_type, sparse_array, with_data
from modelc.ir.expr import DTYPES

Array = NDArray[Any]
Named = tuple[str, onnx.NodeProto]
Reader = Callable[[Path], Array]  # of a constant's data, in that folder where it is external
NUMBERS = {  # in attributes of nodes, by type: the field, and the dtype that ONNX gives them
    AttributeProto.FLOAT: ("f", np.float32),
    AttributeProto.FLOATS: ("floats", np.float32),
    AttributeProto.INT: ("i", np.int64),
    AttributeProto.INTS: ("ints", np.int64),
}


def stated_constants(
    graph: onnx.GraphProto, nodes: Sequence[Named], folder: Path, wanted: Container[str]
) -> Iterator[tuple[str, Array]]:
    """Initializers, Constants among the live `nodes`, and those of branches and bodies, by the names that an imported
    Graph has them by, as far as these are `wanted`. Left out are names in bodies that could mean something else."""
    sources = {
        node.output[0]: node.input[0] for _, node in nodes if (node.op_type, domain_of(node)) == ("Identity", "")
    }
    copies: dict[str, list[str]] = {}
    for copy, original in sources.items():
        while original in sources:
            original = sources[original]
        copies.setdefault(original, []).append(copy)
    outer = list(_of_graph(graph, [node for _, node in nodes]))
    taken = Counter(name for name, _ in outer) + Counter(x for _, node in nodes for x in node.output)
    inner = list(_of_bodies(nodes, ""))
    taken += Counter(name for name, _ in inner)
    outer += [(name, read) for name, read in inner if read is not None and taken[name] == 1]
    for name, read in outer:
        if names := [x for x in (name, *copies.get(name, ())) if x in wanted]:
            array = read(folder)
            yield from ((x, array) for x in names)


def stated_attributes(node: onnx.NodeProto, folder: Path) -> dict[str, Array]:
    """The attributes that are numbers, tensors or lists of strings, by name."""
    arrays = {attribute.name: _of_attribute(attribute, folder) for attribute in node.attribute}
    return {name: array for name, array in arrays.items() if array is not None}


def _of_attribute(attribute: onnx.AttributeProto, folder: Path) -> Array | None:
    if attribute.type == AttributeProto.TENSOR:
        return _array(attribute.t, folder)
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return sparse_array(attribute.sparse_tensor, folder)
    if attribute.type == AttributeProto.STRINGS:
        return np.array([text.decode("utf-8", "replace") for text in attribute.strings])
    if attribute.type not in NUMBERS:
        return None
    where, dtype = NUMBERS[attribute.type]
    return np.asarray(getattr(attribute, where), dtype)


def _array(tensor: onnx.TensorProto, folder: Path) -> Array:
    dtype = DTYPES[element_type(tensor.data_type, f"tensor {tensor.name!r}")]
    array: Array = numpy_helper.to_array(with_data(tensor, folder))
    return array.astype(dtype, copy=False)  # onnx before 1.19 reads bfloat16 as float32


def _of_graph(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, Reader]]:
    yield from ((tensor.name, partial(_array, tensor)) for tensor in graph.initializer)
    yield from ((sparse.values.name, partial(sparse_array, sparse)) for sparse in graph.sparse_initializer)
    for node in nodes:
        if (node.op_type, domain_of(node)) == ("Constant", ""):
            yield node.output[0], partial(_of_constant, node)


def _of_constant(node: onnx.NodeProto, folder: Path) -> Array:
    """The one attribute of a Constant."""
    (array,) = stated_attributes(node, folder).values()
    return array


def _of_bodies(nodes: Iterable[Named], prefix: str) -> Iterator[tuple[str, Reader | None]]:
    """What branches and bodies define, constants with their readers, by the names that the importer makes of it: after
    the node, and in what is left to a run also after the attribute."""
    for name, node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                used = {x for each in graph.node for x in reads(each)} | {output.name for output in graph.output}
                defined: dict[str, Reader | None] = {x: None for each in graph.node for x in each.output if x in used}
                defined |= {x: read for x, read in _of_graph(graph, graph.node) if x in used}
                for scope in (f"{prefix}{name}/", f"{prefix}{name}/{attribute.name}/"):
                    yield from ((scope + x, read) for x, read in defined.items())
                yield from _of_bodies(zip(node_names(graph.node), graph.node, strict=True), f"{prefix}{name}/")
