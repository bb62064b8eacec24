"""Loop and Scan with a trip count that is known when compiling: their bodies are imported once for each iteration.

What an iteration carries to the next is handed over by name; what it hands out is put together by Concat. Where whether
a loop goes on is not known, or it would be too many nodes, it is left to a run (repeat.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from modelc.errors import ModelError
from modelc.frontend.attributes import attributes
from modelc.frontend.build import OnnxNode
from modelc.frontend.control import visit_body
from modelc.frontend.importing import Importing, Scope, Unsupported
from modelc.frontend.limits import MOST_UNROLLED
from modelc.frontend.repeat import repeated_loop, repeated_scan

ENDLESS = 1 << 62  # iterations of a Loop without a trip count


@dataclass(frozen=True)
class Body:
    """The body of a loop and its parts: `states` of its inputs and outputs are carried, `first` precede them."""

    node: OnnxNode
    graph: onnx.GraphProto
    outer: Scope  # of the node, with the body's initialisers
    size: int  # nodes in it, those of inner bodies too


def unroll(importer: Importing, proto: onnx.NodeProto, node: OnnxNode, scope: Scope) -> None:
    """Imports a Loop or a Scan. What can neither be unrolled nor be left to a run is listed as lacking."""
    graph = next((a.g for a in proto.attribute if a.name == "body"), None)
    if graph is None:
        raise node.fail("expected a body, found none")
    body = Body(node, graph, scope.within(f"{node.name}/"), _size(graph))
    importer.initialisers(graph, body.outer)
    attrs = attributes(proto, importer.folder, f"node {node.name!r}")
    problem = _loop(importer, body) if node.op == "Loop" else _scan(importer, body, attrs)
    if problem is not None:
        if problem:
            importer.lacking.append(Unsupported(node.name, node.op, "", problem))
        importer.missing |= set(node.outputs)


def _size(graph: onnx.GraphProto) -> int:
    return sum(1 + sum(_size(g) for a in n.attribute for g in (a.g, *a.graphs)) for n in graph.node)


def _loop(importer: Importing, body: Body) -> str | None:
    """None if it was unrolled; else why not, empty where a node in it says so."""
    b, node, graph = importer.builder, body.node, body.graph
    states = list(node.inputs[2:])
    scans = len(graph.output) - 1 - len(states)
    if len(graph.input) != 2 + len(states) or scans < 0 or len(node.outputs) > len(states) + scans:
        raise node.fail(f"expected a body that carries the {len(states)} values given, found another number")
    for k, what in ((0, "trip count"), (1, "condition")):
        if node.input(k) and b.data(node.input(k)) is None:
            return repeated_loop(importer, node, graph, body.outer, f"its {what} depends on data")
    count = int(_one(b.data(node.input(0)), node)) if node.input(0) else ENDLESS
    go = bool(_one(b.data(node.input(1)), node)) if node.input(1) else True
    handed: list[list[str]] = [[] for _ in range(scans)]
    done, before, made = 0, len(b.nodes), dict(b.sizes.made)
    while go and done < count:
        if (done + 1) * body.size > MOST_UNROLLED:
            del b.nodes[before:]
            b.sizes.made = made
            why = f"unrolled, it would be more than {MOST_UNROLLED} nodes (MOST_UNROLLED)"
            return repeated_loop(importer, node, graph, body.outer, why)
        number = b.constant(np.asarray(done, np.int64), f"{node.name}/iteration")
        condition = b.constant(np.asarray(True), f"{node.name}/condition")
        results = _iteration(importer, body, done, [number, condition, *states])
        if results is None:
            return ""
        if b.data(results[0]) is None:
            del b.nodes[before:]
            b.sizes.made = made
            return repeated_loop(importer, node, graph, body.outer, "whether it goes on depends on data")
        go = bool(_one(b.data(results[0]), node))
        states = results[1 : 1 + len(states)]
        for collected, value in zip(handed, results[1 + len(states) :], strict=True):
            collected.append(value)
        done += 1
    if not done and any(node.outputs[len(states) :]):
        return "it runs no time, so the shape of what it hands out is not known"
    _finish(importer, node, states, handed, [0] * scans)
    return None


def _scan(importer: Importing, body: Body, attrs: dict[str, Any]) -> str | None:
    b, node, graph = importer.builder, body.node, body.graph
    if node.version < 9:
        return "the Scan of operator set 8 has a batch dimension; export the model with operator set 9 or newer"
    scanned = attrs.get("num_scan_inputs", 0)
    states, inputs = list(node.inputs[: len(node.inputs) - scanned]), node.inputs[len(node.inputs) - scanned :]
    scans = len(graph.output) - len(states)
    if not 0 < scanned <= len(node.inputs) or len(graph.input) != len(node.inputs) or scans < 0:
        raise node.fail(f"expected a body of {len(node.inputs)} inputs and num_scan_inputs within them")
    if len(node.outputs) > len(graph.output):
        raise node.fail(f"expected at most the {len(graph.output)} outputs of its body, found {len(node.outputs)}")
    axes = _listed(node, attrs, "scan_input_axes", [len(b.shape(x)) for x in inputs])
    back = _listed(node, attrs, "scan_input_directions", None, scanned)
    extents = {b.shape(x)[axis] for x, axis in zip(inputs, axes, strict=True)}
    if len(extents) != 1:
        raise node.fail(f"expected inputs of the same length, found {sorted(extents)}")
    count = extents.pop()
    if count * body.size > MOST_UNROLLED:
        along = tuple(zip(inputs, axes, map(bool, back), strict=True))
        turned = _listed(node, attrs, "scan_output_directions", None, scans)

        def handed_out(ranks: Sequence[int]) -> list[tuple[int, bool]]:
            return list(zip(_listed(node, attrs, "scan_output_axes", ranks), map(bool, turned), strict=True))

        why = f"unrolled, it would be more than {MOST_UNROLLED} nodes (MOST_UNROLLED)"
        return repeated_scan(importer, node, graph, body.outer, along, handed_out, why)
    if not count:
        return "it runs no time, so the shape of what it hands out is not known"
    handed: list[list[str]] = [[] for _ in range(scans)]
    for k in range(count):
        parts = [
            _part(importer, node, x, axis, count - 1 - k if reverse else k)
            for x, axis, reverse in zip(inputs, axes, back, strict=True)
        ]
        results = _iteration(importer, body, k, [*states, *parts])
        if results is None:
            return ""
        states = results[: len(states)]
        for collected, value in zip(handed, results[len(states) :], strict=True):
            collected.append(value)
    ranks = [len(b.shape(one[0])) + 1 for one in handed]
    for one, reverse in zip(handed, _listed(node, attrs, "scan_output_directions", None, scans), strict=True):
        if reverse:
            one.reverse()
    _finish(importer, node, states, handed, _listed(node, attrs, "scan_output_axes", ranks))
    return None


def _listed(
    node: OnnxNode, attrs: dict[str, Any], name: str, ranks: Sequence[int] | None, count: int = 0
) -> tuple[int, ...]:
    """Axes, within `ranks`, or flags; zeros where the attribute is absent."""
    count = count if ranks is None else len(ranks)
    found = tuple(attrs.get(name, (0,) * count))
    if len(found) != count or any(not -r <= a < r for a, r in zip(found, ranks or (), strict=False)):
        raise node.fail(f"expected {count} numbers in {name} that fit, found {list(found)}")
    return found if ranks is None else tuple(a % r for a, r in zip(found, ranks, strict=True))


def _one(data: Any, node: OnnxNode) -> Any:
    if data.size != 1:
        raise node.fail(f"expected one number as trip count and condition, found {list(data.shape)}")
    return data.reshape(-1)[0]


def _iteration(importer: Importing, body: Body, k: int, given: Sequence[str]) -> list[str] | None:
    """Imports the body once: the names of its outputs, None where something in it is lacking."""
    graph, prefix = body.graph, f"{body.node.name}/{k}/"
    inner = body.outer.within(prefix)
    inner.names |= {formal.name: actual for formal, actual in zip(graph.input, given, strict=True)}
    return visit_body(importer, graph, prefix, body.node.source, inner, [o.name for o in graph.output])


def _part(importer: Importing, node: OnnxNode, x: str, axis: int, k: int) -> str:
    """Element `k` of a value along an axis."""
    b = importer.builder
    data, shape = b.data(x), b.shape(x)
    if data is not None:
        return b.constant(np.ascontiguousarray(data.take(k, axis)), f"{x}_{k}")
    bounds = [b.constant(np.asarray([n], np.int64), f"{x}_bound") for n in (k, k + 1, axis)]
    one = b.emit(node, "Slice", (x, *bounds), {}, (b.fresh(f"{x}_{k}"),))
    return b.reshape(node, one, (*shape[:axis], *shape[axis + 1 :]), b.fresh(f"{x}_{k}"))


def _finish(
    importer: Importing, node: OnnxNode, states: Sequence[str], handed: Sequence[Sequence[str]], axes: Sequence[int]
) -> None:
    """Gives the node's outputs their values: the last states, and what the iterations handed out, put together."""
    b, values = importer.builder, list(states)
    for k, (parts, axis) in enumerate(zip(handed, axes, strict=True), len(states)):
        if k >= len(node.outputs) or not node.outputs[k]:
            continue
        shapes = {b.shape(x) for x in parts}
        if len(shapes) != 1:
            raise ModelError(
                f"node {node.name!r} ({node.op}): what its iterations hand out has shapes {sorted(shapes)}"
            )
        shape = shapes.pop()
        known = [b.data(x) for x in parts]
        if all(x is not None for x in known):
            b.make_room(node, sum(x.nbytes for x in known if x is not None))
            values.append(b.constant(np.stack([np.asarray(x) for x in known], axis), node.outputs[k]))
            continue
        target = (*shape[:axis], 1, *shape[axis:])
        rows = [b.reshape(node, x, target, b.fresh(f"{node.outputs[k]}_part")) for x in parts]
        values.append(b.emit(node, "Concat", rows, {"axis": axis}, (b.fresh(f"{node.outputs[k]}_all"),)))
    index = 0
    for k, output in enumerate(node.outputs):
        if output:
            through = OnnxNode("Identity", "", 1, f"{node.name}/{output}", (), (output,), {}, node.source)
            importer.hand(through, output, values[index])
        index += bool(output) or k < len(states)
