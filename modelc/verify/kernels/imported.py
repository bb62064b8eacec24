"""Whether the importer took over the constants that an ONNX file states, all of them, bit for bit: initializers and
Constants that are in the imported Graphs by their own names, ensembles of trees and other tables in attributes, and the
real attributes of nodes that stay what they are. What it drops, or computes others of, is not compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.functions import domain_of
from modelc.frontend.classical.linear import ML
from modelc.frontend.load.outline import read_outline
from modelc.frontend.onnx import live_nodes
from modelc.frontend.witness.forests import departure, of_tables, stated_forest
from modelc.frontend.witness.stated import ModelProto, Named, NodeProto, stated_attributes, stated_constants
from modelc.ir.graph import Graph, Node
from modelc.verify.kernels.constants import difference
from modelc.verify.kernels.meaning import every_graph
from modelc.verify.kernels.report import Compared, TakenOver

Array = NDArray[Any]
TABLES = {  # that are taken over from attributes: how the names of constants end, and the attributes
    "coefficients": ("coefficients",),
    "intercepts": ("intercepts",),
    "labels": ("classlabels_ints", "classlabels_int64s"),
    "categories": ("cats_int64s",),
    "keys": ("keys_tensor", "keys_int64s", "keys_floats"),
    "values": ("values_tensor", "values_int64s", "values_floats"),
}


def taken_over(graphs: Sequence[Graph], model: Path) -> TakenOver:
    """Compares Graphs that were imported from the file `model` with it. Raises ModelError where it cannot be read."""
    if not graphs:
        return TakenOver()
    outline = read_outline(model)
    nodes = live_nodes(outline, model)
    compared = list(_constants(graphs, outline, nodes, model.parent))
    for graph in graphs:
        compared += _attributes(graph, nodes, model.parent)
    differ = tuple(each for each in compared if each.difference)
    return TakenOver(len(compared), sum(each.elements for each in compared), differ)


def _constants(
    graphs: Sequence[Graph], outline: ModelProto, nodes: Sequence[Named], folder: Path
) -> Iterator[Compared]:
    held: dict[str, dict[int, Array]] = {}  # by name, each array once
    for graph in (each for outermost in graphs for each in every_graph(outermost)):
        for value in graph.values.values():
            if value.data is not None:
                held.setdefault(value.name, {})[id(value.data)] = value.data
    for name, stated in stated_constants(outline.graph, nodes, folder, held.keys()):
        for data in held[name].values():
            yield Compared(f"constant {name!r}", stated.size, difference(data, stated) or "")


def _attributes(graph: Graph, nodes: Sequence[Named], folder: Path) -> Iterator[Compared]:
    producers, made_of = graph.producers(), dict[str, list[Node]]()
    for node in graph.nodes:
        for source in node.source:
            made_of.setdefault(source, []).append(node)
    names = Counter(name for name, _ in nodes)
    for name, proto in nodes:
        taken = producers.get(proto.output[0])
        if domain_of(proto) == ML and proto.output[0] and names[name] == 1:
            yield from _tables(graph, name, proto, made_of.get(name, ()), folder)
        elif taken is not None and taken.op == proto.op_type:
            yield from _real_attributes(name, proto, taken, folder)


def _real_attributes(name: str, proto: NodeProto, taken: Node, folder: Path) -> Iterator[Compared]:
    for attribute, stated in stated_attributes(proto, folder).items():
        held = np.asarray(taken.attrs.get(attribute))
        if stated.dtype == np.float32 and held.dtype == np.float64:  # as Python has real numbers
            same = np.array_equal(held, stated.astype(np.float64), equal_nan=True)
            sentence = "" if same else f"is {held.astype(np.float32)!s}, expected {stated!s}"
            yield Compared(f"attribute {attribute} of node {name!r}", stated.size, sentence)


def _tables(graph: Graph, name: str, proto: NodeProto, made: Sequence[Node], folder: Path) -> Iterator[Compared]:
    """Of a node of ONNX's classical domain, of which the Nodes `made` are."""
    attributes, read = stated_attributes(proto, folder), {x for node in made for x in node.inputs}
    for ending, stated_as in TABLES.items():
        constant = f"{proto.output[0]}_{ending}"
        held = graph.constant(constant) if constant in read else None
        stated = next((attributes[x] for x in stated_as if x in attributes), None)
        if held is not None and stated is not None and held.size == stated.size:
            sentence = difference(held.reshape(-1), stated.reshape(-1).astype(held.dtype))
            yield Compared(f"table {ending} of node {name!r}", stated.size, sentence or "")
    for trees in (node for node in made if node.op == "Trees"):
        forest = stated_forest(proto.op_type, attributes)
        tables = [np.asarray(graph.constant(x)) for x in trees.inputs[1:]]
        if forest is not None:
            taken = of_tables(trees.attrs, graph.value(trees.inputs[0]).shape[1], *tables)
            sentence = departure(taken, forest, int(trees.attrs["targets"]) > 1)
            yield Compared(f"node {name!r}", sum(table.size for table in tables), sentence or "")
