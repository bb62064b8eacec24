"""What every Graph has to satisfy, checked after import and after every pass."""

from __future__ import annotations

from collections.abc import Callable

from modelc.errors import InvalidIR
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value

Infer = Callable[[Node, tuple[Value | None, ...]], tuple[tuple[str, tuple[int, ...]], ...]]


def verify_graph(graph: Graph, where: str, infer: Infer | None = None) -> None:
    """Raises InvalidIR, which names `where` (a pass) and the place, unless

    - every value has a known dtype, a static shape, and data that fits them if it is a constant;
    - every value is fed, constant, or produced by exactly one node, before it is read;
    - outputs exist and are no constants; node names are unique;
    - dtypes and shapes are those that `infer` (the operator library, which ir/ may not import) gives.
    """
    for name, value in graph.values.items():
        _check_value(name, value, where)
    fed = set(graph.inputs)
    available = fed | {name for name, value in graph.values.items() if value.data is not None}
    for name in graph.inputs:
        if name not in graph.values:
            raise InvalidIR(f"{where}: input {name!r} has no value")
        if graph.values[name].data is not None:
            raise InvalidIR(f"{where}: input {name!r} is a constant")
    producer: dict[str, Node] = {}
    for node in graph.nodes:
        for out in node.outputs:
            if out in available:
                raise InvalidIR(f"{where}: node {node.name!r} writes {out!r}, which is an input or a constant")
            if out in producer:
                raise InvalidIR(f"{where}: {out!r} is produced by both {producer[out].name!r} and {node.name!r}")
            if out:
                producer[out] = node
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise InvalidIR(f"{where}: two nodes are named {node.name!r}")
        names.add(node.name)
        _check_node(graph, node, available, producer, where, infer)
        available |= {out for out in node.outputs if out}
    for name in graph.outputs:
        if name not in available:
            raise InvalidIR(f"{where}: output {name!r} is not produced")
        if graph.values[name].data is not None:
            raise InvalidIR(f"{where}: output {name!r} is a constant; a node Identity has to copy it")
    if loose := [name for name in graph.values if name not in available]:
        raise InvalidIR(f"{where}: value {loose[0]!r} is neither fed, constant, nor produced")


def _check_value(name: str, value: Value, where: str) -> None:
    if value.name != name:
        raise InvalidIR(f"{where}: value {name!r} is filed under another name than its own, {value.name!r}")
    if value.dtype not in DTYPES:
        raise InvalidIR(f"{where}: value {name!r} has unknown dtype {value.dtype!r}")
    if any(not isinstance(d, int) or d < 0 for d in value.shape):
        raise InvalidIR(f"{where}: value {name!r} has no static shape: {value.shape}")
    if value.data is not None and (value.data.dtype != DTYPES[value.dtype] or value.data.shape != value.shape):
        held = f"{value.data.dtype.name}{list(value.data.shape)}"
        raise InvalidIR(f"{where}: constant {name!r} is {value.dtype}{list(value.shape)} but holds {held}")


def _check_node(
    graph: Graph, node: Node, available: set[str], producer: dict[str, Node], where: str, infer: Infer | None
) -> None:
    at = f"{where}: node {node.name!r} ({node.op})"
    if not node.outputs or not any(node.outputs):
        raise InvalidIR(f"{at} has no output")
    for name in node.inputs:
        if not name or name in available:
            continue
        if name in producer:
            raise InvalidIR(f"{at} reads {name!r} before node {producer[name].name!r} produces it")
        raise InvalidIR(f"{at} reads {name!r}, which is neither fed, constant, nor produced")
    for name in node.outputs:
        if name and name not in graph.values:
            raise InvalidIR(f"{at} writes {name!r}, which has no dtype and shape")
    for body in node.bodies:
        verify_graph(body, f"{at}: body {body.name!r}", infer)
    if infer is None:
        return
    try:
        types = infer(node, tuple(graph.values[x] if x else None for x in node.inputs))
    except Exception as error:
        raise InvalidIR(f"{at} cannot be inferred: {error}") from error
    if len(types) < len(node.outputs):
        raise InvalidIR(f"{at} has {len(node.outputs)} outputs; its operator gives {len(types)}")
    for name, (dtype, shape) in zip(node.outputs, types, strict=False):
        if name and (graph.values[name].dtype, graph.values[name].shape) != (dtype, tuple(shape)):
            declared = f"{graph.values[name].dtype}{list(graph.values[name].shape)}"
            raise InvalidIR(f"{at}: {name!r} is declared {declared}, its operator gives {dtype}{list(shape)}")
