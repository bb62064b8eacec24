"""Control flow that is left to a run has bodies, which are imported as Graphs; an If whose condition depends on data
keeps both of its branches. (repeat.py has loops.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from modelc.errors import ModelError, NotKnown
from modelc.frontend.building.bodies import BRANCHES, Body
from modelc.frontend.building.build import OnnxNode
from modelc.frontend.building.merged import emit_if
from modelc.frontend.control.structure import captured, ordered
from modelc.frontend.load.importing import Importing, Scope
from modelc.ir.graph import Value


def branch_of(proto: onnx.NodeProto, which: str, name: str) -> onnx.GraphProto:
    """The then_branch or else_branch of an If."""
    graph: onnx.GraphProto | None = next((a.g for a in proto.attribute if a.name == which), None)
    if graph is None or len(graph.output) < len(proto.output):
        raise ModelError(f"node {name!r} (If): expected a {which} of {len(proto.output)} outputs")
    return graph


def both_branches(importer: Importing, proto: onnx.NodeProto, node: OnnxNode, scope: Scope) -> None:
    """Imports an If whose condition is known only at run time. Where one branch cannot be run with the shapes that the
    model is compiled for, the other is taken, and a run that decides otherwise ends with an error."""
    b, condition = importer.builder, node.inputs[0]
    places = [k for k, output in enumerate(node.outputs) if output]
    node = replace(node, outputs=tuple(node.outputs[k] for k in places))
    bodies: list[Body | None] = []
    wrong: dict[int, str] = {}
    for k, which in enumerate(BRANCHES):
        inner = scope.within(f"{node.name}/{which}/")
        graph = branch_of(proto, which, node.name)
        try:
            wanted = [graph.output[k].name for k in places]
            bodies.append(body_of(importer, graph, node, inner, {}, {}, wanted))
        except NotKnown:
            raise
        except ModelError as error:
            if wrong:
                raise
            wrong[k] = f"node {node.name!r} (If): its {which} cannot be run with these shapes: {error}"
    if wrong:
        ((k, refusal),) = wrong.items()
        (possible,) = bodies
        if possible is None:
            importer.missing |= set(node.outputs)
            return
        importer.notes.append(f"a run that takes it ends with an error: {refusal}")
        emit_if(b, node, (possible,), {"only": 1 - (k == 0), "refusal": refusal})
        return
    then, other = bodies
    if then is None or other is None:
        importer.missing |= set(node.outputs)
        return
    for output, *both in zip(node.outputs, then.results, other.results, strict=True):
        kinds = [f"{b.value(x).dtype}{list(b.shape(x))}" for x in both]
        if b.value(both[0]).dtype != b.value(both[1]).dtype or len(b.shape(both[0])) != len(b.shape(both[1])):
            raise node.fail(
                f"expected branches that give {output!r} the same dtype and as many dimensions, found "
                f"{' and '.join(kinds)}; its condition {condition!r} is known only at run time{b.advice(condition)}"
            )
    emit_if(b, node, (then, other))


def body_of(
    importer: Importing,
    graph: onnx.GraphProto,
    node: OnnxNode,
    inner: Scope,
    given: Mapping[str, Value],
    named: Mapping[str, str],
    wanted: Sequence[str],
) -> Body | None:
    """The body `graph` of `node`, as far as its outputs `wanted` need it. Of its inputs some are `given` in a run,
    others are `named` values of the Graph. None where something in it is lacking."""
    b = importer.builder
    importer.initialisers(graph, inner)
    inner.names |= {**named, **{formal: value.name for formal, value in given.items()}}
    b.values |= {value.name: value for value in given.values()}
    outside, b.nodes = b.nodes, []
    rooms, b.rooms = b.rooms, None
    made = dict(b.sizes.made)
    try:
        originals = visit_body(importer, graph, f"{node.name}/", node.source, inner, wanted)
        if originals is None:
            return None
        results = []
        for name in originals:
            if name in importer.sequences:
                raise node.fail(f"it gives the sequence {name!r}; expected tensors where it is left to a run")
            result = b.fresh(f"{name}_result")
            through = OnnxNode("Identity", "", 1, f"{inner.prefix}{name}", (), (result,), {}, node.source)
            results.append(b.emit(through, "Identity", (name,), outputs=(result,)))
        return Body(tuple(b.nodes), tuple(value.name for value in given.values()), tuple(results), tuple(originals))
    finally:
        b.nodes, b.sizes.made, b.rooms = outside, made, rooms


def visit_body(
    importer: Importing, graph: onnx.GraphProto, prefix: str, source: str, inner: Scope, wanted: Sequence[str]
) -> list[str] | None:
    """Imports a body's nodes in its scope: the Graph's names of `wanted`; None where something in it is lacking."""
    lacked = len(importer.lacking)
    produced = {x for node in graph.node for x in node.output}
    outside = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    outside |= {t.values.name for t in graph.sparse_initializer}
    outside |= {x for x in (*captured(graph), *wanted) if inner.has(x)}
    for name, node in ordered(graph.node, wanted, outside - produced, f"node {prefix[:-1]!r}"):
        importer.visit(node, prefix + name, source, inner)
    if len(importer.lacking) > lacked:
        return None
    results = [inner.find(x) for x in wanted]
    return None if any(x in importer.missing for x in results) else results
