"""Loop and Scan with a trip count that is known when compiling: short ones, and those that cannot be left to a run
(repeat.py), are imported once for each iteration.

What an iteration carries to the next is handed over by name; what it hands out is put together by Concat. A few
iterations tell how many nodes a loop becomes: what is computed when compiling is none. Where sizes say how often a
loop runs, it is left to a run, however short it is (building/trips.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from modelc.errors import ModelError
from modelc.frontend.building.build import OnnxNode
from modelc.frontend.building.limits import FEW_UNROLLED, MOST_UNROLLED
from modelc.frontend.control.branches import visit_body
from modelc.frontend.control.repeat import repeated_loop, repeated_scan
from modelc.frontend.control.structure import reads
from modelc.frontend.load.attributes import attributes
from modelc.frontend.load.importing import Importing, Scope, Unsupported
from modelc.frontend.load.read import element_type
from modelc.ir.expr import DTYPES

ENDLESS = 1 << 62  # iterations of a Loop without a trip count
TRIED = 2  # iterations that tell what the others become
MOST_FORESEEN = 1 << 13  # iterations whose conditions are computed beforehand
BY_SIZES = "sizes say how often it runs"


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
    trips, starts = (b.data(node.input(k)) for k in (0, 1))
    count = ENDLESS if trips is None else int(_only_number(trips, node))
    go = True if starts is None else bool(_only_number(starts, node))
    unknown = [k for k, constant in enumerate((trips, starts)) if node.input(k) and constant is None]
    if b.trips is not None and not unknown:
        most = _foreseen(importer, body, count, states, 0) if count > 0 and go else 0
        by_sizes = partial(_repeated, importer, body, BY_SIZES, most or 0)
        if most is not None and b.stays_loop(node, most) and _left_by_sizes(importer, node, by_sizes):
            return None
    if count <= 0 or not go:
        return _passed_through(importer, body)
    if unknown:
        what = ("trip count", "condition")[unknown[0]]
        return repeated_loop(importer, node, graph, body.outer, f"its {what} depends on data")
    handed: list[list[str]] = [[] for _ in range(scans)]
    done, before, made = 0, len(b.nodes), dict(b.sizes.made)
    while go and done < count:
        if done == TRIED and len(b.nodes) > before:
            most = _foreseen(importer, body, count, states, done)
            if most is not None and (len(b.nodes) - before) // done * most > FEW_UNROLLED:
                why = f"unrolled, it would be more than {FEW_UNROLLED} nodes (FEW_UNROLLED)"
                if _left_to_a_run(importer, before, made, partial(_repeated, importer, body, why, most)):
                    return None
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
        go = bool(_only_number(b.data(results[0]), node))
        states = results[1 : 1 + len(states)]
        for collected, value in zip(handed, results[1 + len(states) :], strict=True):
            collected.append(value)
        done += 1
    _finish(importer, node, states, handed, [0] * scans)
    return None


def _passed_through(importer: Importing, body: Body) -> str | None:
    """A Loop that runs no time: what it carries is what it was given, and what it would hand out is empty. Of that the
    body declares the type; dimensions that it leaves open are 0, as ONNX Runtime has them."""
    b, node, states = importer.builder, body.node, body.node.inputs[2:]
    values = list(states)
    for declared, output in zip(body.graph.output[1 + len(states) :], node.outputs[len(states) :], strict=False):
        if not output:
            continue
        if not declared.type.tensor_type.elem_type:
            return f"it runs no time, and its body does not declare the type of {declared.name!r}, which it hands out"
        dtype = element_type(declared.type.tensor_type.elem_type, f"value {declared.name!r}")
        shape = tuple(max(d.dim_value, 0) for d in declared.type.tensor_type.shape.dim)
        values.append(b.constant(np.zeros((0, *shape), DTYPES[dtype]), output))
    _hand_over(importer, node, len(states), values)
    return None


def _repeated(importer: Importing, body: Body, why: str, most: int) -> str | None:
    return repeated_loop(importer, body.node, body.graph, body.outer, why, most)


def _left_by_sizes(importer: Importing, node: OnnxNode, repeat: Callable[[], str | None]) -> bool:
    """Imports by `repeat` a loop that sizes say the trip count of; says whether it could, and remembers why not."""
    b = importer.builder
    assert b.trips is not None
    why = list[str]()

    def told() -> str | None:
        try:
            problem = repeat()
        except ModelError as error:
            why.append(str(error))
            raise
        why.extend([] if problem is None else [problem])
        return problem

    done = _left_to_a_run(importer, len(b.nodes), dict(b.sizes.made), told)
    if not done:
        b.trips.refused[node.name] = why[0]
    return done


def _left_to_a_run(
    importer: Importing, before: int, made: dict[tuple[object, ...], tuple[str, ...]], repeat: Callable[[], str | None]
) -> bool:
    """Imports the loop by `repeat` in place of the nodes from `before` on, if that can be; says whether."""
    b = importer.builder
    nodes, sizes_made, names = b.nodes[before:], b.sizes.made, set(b.node_names)
    lacking, missing = list(importer.lacking), set(importer.missing)
    del b.nodes[before:]
    b.sizes.made = dict(made)
    try:
        if repeat() is None:
            return True
    except ModelError:
        pass  # unrolled it may be possible: positions and shapes are known then
    b.nodes[before:], b.sizes.made, b.node_names = nodes, sizes_made, names
    importer.lacking[:], importer.missing = lacking, missing
    return False


def _foreseen(importer: Importing, body: Body, count: int, states: Sequence[str], done: int) -> int | None:
    """How many iterations there are in all, `done` of which have been made: what the condition needs is computed alone.
    None where that is not known, or they are too many."""
    b, graph = importer.builder, body.graph
    formals, results = [i.name for i in graph.input], [o.name for o in graph.output]
    wanted, needed = [results[0]], list[int]()
    while True:
        reached = _reaches(graph, wanted)
        needed = [k for k in range(len(states)) if formals[2 + k] in reached]
        if len(needed) + 1 == len(wanted):
            break
        wanted = [results[0], *(results[1 + k] for k in needed)]
    if not needed and formals[0] not in reached:
        return count if count < ENDLESS else None  # it goes on as it began
    now, before, made = [states[k] for k in needed], len(b.nodes), b.sizes.made
    go, computed = True, None not in [b.data(x) for x in now]
    while go and computed and done < min(count, MOST_FORESEEN + 1):
        inner = body.outer.within(f"{body.node.name}/{done}/condition/")
        number = b.constant(np.asarray(done, np.int64), f"{body.node.name}/iteration")
        inner.names |= {formals[0]: number, formals[1]: b.constant(np.asarray(True), f"{body.node.name}/condition")}
        inner.names |= {formals[2 + k]: x for k, x in zip(needed, now, strict=True)}
        next_values = visit_body(importer, graph, inner.prefix, body.node.source, inner, wanted)
        computed = next_values is not None and None not in [b.data(x) for x in next_values]
        if computed and next_values is not None:
            go, now, done = bool(_only_number(b.data(next_values[0]), body.node)), next_values[1:], done + 1
    del b.nodes[before:]
    b.sizes.made = made
    return done if computed and done <= MOST_FORESEEN else None


def _reaches(graph: onnx.GraphProto, wanted: Sequence[str]) -> set[str]:
    """The names that the values `wanted` are computed from, themselves among them."""
    producers = {x: node for node in graph.node for x in node.output if x}
    names, waiting = set(wanted), list(wanted)
    while waiting:
        node = producers.get(waiting.pop())
        new = [x for x in reads(node) if x not in names] if node is not None else []
        names.update(new)
        waiting += new
    return names


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
    along = tuple(zip(inputs, axes, map(bool, back), strict=True))
    turned = _listed(node, attrs, "scan_output_directions", None, scans)

    def handed_out(ranks: Sequence[int]) -> list[tuple[int, bool]]:
        return list(zip(_listed(node, attrs, "scan_output_axes", ranks), map(bool, turned), strict=True))

    def repeated(most: int, name: str) -> str | None:
        why = f"unrolled, it would be more than {most} nodes ({name})"
        return repeated_scan(importer, node, graph, body.outer, along, handed_out, why)

    if b.stays_loop(node, count):
        by_sizes = partial(repeated_scan, importer, node, graph, body.outer, along, handed_out, BY_SIZES)
        if _left_by_sizes(importer, node, by_sizes):
            return None
    if count * body.size > MOST_UNROLLED:
        return repeated(MOST_UNROLLED, "MOST_UNROLLED")
    if not count:
        return "it runs no time, so the shape of what it hands out is not known"
    handed: list[list[str]] = [[] for _ in range(scans)]
    before, made = len(b.nodes), dict(b.sizes.made)
    for k in range(count):
        many = k == TRIED and (len(b.nodes) - before) // k * count > FEW_UNROLLED
        if many and _left_to_a_run(importer, before, made, partial(repeated, FEW_UNROLLED, "FEW_UNROLLED")):
            return None
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
    ranks = [len(b.shape(collected[0])) + 1 for collected in handed]
    for collected, reverse in zip(handed, _listed(node, attrs, "scan_output_directions", None, scans), strict=True):
        if reverse:
            collected.reverse()
    _finish(importer, node, states, handed, _listed(node, attrs, "scan_output_axes", ranks))
    return None


def _listed(
    node: OnnxNode, attrs: dict[str, Any], name: str, ranks: Sequence[int] | None, count: int = 0
) -> tuple[int, ...]:
    """Axes, within `ranks`, or flags; zeros where the attribute is absent."""
    count = count if ranks is None else len(ranks)
    numbers = tuple(attrs.get(name, (0,) * count))
    if len(numbers) != count or any(not -r <= a < r for a, r in zip(numbers, ranks or (), strict=False)):
        raise node.fail(f"expected {count} numbers in {name} that fit, found {list(numbers)}")
    return numbers if ranks is None else tuple(a % r for a, r in zip(numbers, ranks, strict=True))


def _only_number(data: Any, node: OnnxNode) -> Any:
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
        return b.constant(np.asarray(data.take(k, axis), order="C"), f"{x}_{k}")
    bounds = [b.constant(np.asarray([n], np.int64), f"{x}_bound") for n in (k, k + 1, axis)]
    row = b.emit(node, "Slice", (x, *bounds), {}, (b.fresh(f"{x}_{k}"),))
    return b.reshape(node, row, (*shape[:axis], *shape[axis + 1 :]), b.fresh(f"{x}_{k}"))


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
        arrays = [b.data(x) for x in parts]
        if all(x is not None for x in arrays):
            b.make_room(node, sum(x.nbytes for x in arrays if x is not None))
            values.append(b.constant(np.stack([np.asarray(x) for x in arrays], axis), node.outputs[k]))
            continue
        target = (*shape[:axis], 1, *shape[axis:])
        rows = [b.reshape(node, x, target, b.fresh(f"{node.outputs[k]}_part")) for x in parts]
        values.append(b.emit(node, "Concat", rows, {"axis": axis}, (b.fresh(f"{node.outputs[k]}_all"),)))
    _hand_over(importer, node, len(states), values)


def _hand_over(importer: Importing, node: OnnxNode, states: int, values: Sequence[str]) -> None:
    """Lets the node's outputs be `values`: those of all states, and of what else has a name."""
    index = 0
    for k, output in enumerate(node.outputs):
        if output:
            through = OnnxNode("Identity", "", 1, f"{node.name}/{output}", (), (output,), {}, node.source)
            importer.hand(through, output, values[index])
        index += bool(output) or k < states
