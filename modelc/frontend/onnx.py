"""ONNX -> Graph: `import_model` specialises a model to static shapes.

Nodes are taken in topological order with everything before them known: dtypes, static shapes, and the data of all that
depends on constants and shapes alone. Such nodes are computed on the spot; the others are normalised (operators/),
or replaced by the body that the model or ONNX gives for them, and inferred by the operator library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from modelc.errors import ModelError, blaming
from modelc.frontend.building.bodies import BRANCHES
from modelc.frontend.building.bounded import bound_advice, check_bounds, count_sizes
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.fold import KEPT, RANDOM, folded
from modelc.frontend.building.functions import Functions, domain_of, operator_sets, schema_body
from modelc.frontend.building.limits import FUNCTION_DEPTH
from modelc.frontend.building.rooms import Rooms
from modelc.frontend.building.trips import Trips
from modelc.frontend.classical.linear import strings_refused
from modelc.frontend.control.branches import both_branches, branch_of
from modelc.frontend.control.sequences import on_sequences
from modelc.frontend.control.structure import (
    OTHER_DOMAINS,
    Lack,
    captured,
    importable,
    ordered,
    reason,
)
from modelc.frontend.control.unroll import unroll
from modelc.frontend.load.attributes import attributes, resolved
from modelc.frontend.load.importing import Importing, Scope, Unsupported
from modelc.frontend.load.read import read_model
from modelc.frontend.load.types import check_node
from modelc.frontend.operators.counted import numbers_of, touched
from modelc.frontend.operators.form import Normaliser, plain
from modelc.frontend.operators.random import refuse_inner
from modelc.frontend.operators.table import FORMS
from modelc.frontend.steering.specialise import check_declared, fix_constants, input_values
from modelc.frontend.steering.uses import Uses, advised
from modelc.frontend.witness.restated import restated
from modelc.ir.expr import DTYPES
from modelc.ir.graph import RANDOM_STATE, Graph, Node, Value, room_name, size_name
from modelc.ops.found import ROOM


def unsupported(
    path: str | Path, model: onnx.ModelProto | None = None, bounds: Collection[str] = ()
) -> list[tuple[str, str, str, str]]:
    """(node, operator, domain, reason) of every node that modelc cannot compile, found without knowing shapes. `model`
    is what was read from the file, if it was; `bounds` are the values of which a user says the most. Raises ModelError
    if it is no model at all."""
    model, _ = restated(read_model(path) if model is None else model)
    refused = advised(Uses(model.graph), _lacking(model, live_nodes(model, Path(path)), bounds))
    return [(u.node, u.op, u.domain, u.reason) for u in refused]


def import_model(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    bounds: Mapping[str, int] | None = None,
    trips: Trips | None = None,
    growing: Collection[str] = (),
    rooms: Rooms | None = None,
) -> Graph:
    """The model as a Graph of static shapes. `shapes` fixes the free dimensions of inputs by name; `constants` are the
    inputs that are known when compiling; `bounds` says the most that values can be which sizes are made of. `trips`: it
    is one of several imports, at other shapes, for one package. `growing` are inputs that are caches, to which a run
    appends what is new. `rooms`: what is found has sizes of its own.

    Raises ModelError: one for all unsupported operators, one for all free dimensions, one for whatever else is wrong.
    """
    path = Path(path)
    model = read_model(path)
    fix_constants(model, constants or {})
    model, notes = restated(model)
    nodes = live_nodes(model, path)
    uses = Uses(model.graph, path.parent)
    _refuse(path, advised(uses, _lacking(model, nodes, bounds or ())))
    builder = Builder(bounds=bounds or {}, trips=trips, growing=growing, rooms=rooms)
    builder.advice = lambda name: f"{uses.advice(name)}{bound_advice(builder, name)}"
    importer = Importer(path.parent, _functions(model), builder, sizes=frozenset((*uses.sizes, *builder.bounds)))
    inputs = input_values(model.graph, shapes or {})
    importer.builder.reserved |= {x for _, n in nodes for x in (*n.input, *n.output)}
    scope = Scope(operator_sets(model))
    importer.inputs(inputs, scope)
    for value in inputs:
        if value.name in importer.sizes:
            count_sizes(builder, OnnxNode("Bound", "", 1, value.name, (), (), {}, value.name), value.name, value.name)
    importer.initialisers(model.graph, scope)
    for name, proto in nodes:
        importer.visit(proto, name, name, scope)
    _refuse(path, advised(uses, importer.lacking))
    check_bounds(builder, {x for _, n in uses.nodes for x in (*n.input, *n.output)}, uses.sizes, path)
    graph = importer.graph(model.graph, path, inputs)
    return replace(graph, notes=(*notes, *graph.notes))


def live_nodes(model: onnx.ModelProto, path: Path) -> list[tuple[str, onnx.NodeProto]]:
    """The nodes that the outputs of the model in the file `path` need, named, producers first. Raises ModelError."""
    if not model.graph.output:
        raise ModelError(f"{path} has no outputs")
    return ordered(model.graph.node, [o.name for o in model.graph.output], _given(model.graph), str(path))


def _given(graph: onnx.GraphProto) -> set[str]:
    return (
        {i.name for i in graph.input}
        | {t.name for t in graph.initializer}
        | {t.values.name for t in graph.sparse_initializer}
    )


def _functions(model: onnx.ModelProto) -> Functions:
    return {(domain_of(f), f.name): f for f in model.functions}


def _lacking(
    model: onnx.ModelProto, nodes: list[tuple[str, onnx.NodeProto]], bounds: Collection[str]
) -> list[Unsupported]:
    constants = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    lack = Lack(_functions(model), bounds)
    lack.look(nodes, operator_sets(model), constants)
    said = {refusal.node for refusal in lack.unsupported}
    strings = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.STRING}
    for name, node in nodes:
        if name not in said and (read := [x for x in node.input if x in strings]):
            text = strings_refused(f"values {read[0]!r}")
            lack.unsupported.append(Unsupported(name, node.op_type, domain_of(node), text))
    return lack.unsupported


def _refuse(path: Path, refused: list[Unsupported]) -> None:
    if refused:
        raise ModelError(
            f"{path} has {len(refused)} node(s) that modelc cannot compile:\n  " + "\n  ".join(map(str, refused))
        )


@dataclass
class Importer(Importing):
    """One import, node by node."""

    # --- nodes ----------------------------------------------------------------------------------------------------

    def visit(self, proto: onnx.NodeProto, name: str, source: str, scope: Scope) -> None:
        """Imports one node; `source` is the node of the model's graph that it belongs to."""
        with blaming(f"node {name!r} ({proto.op_type})"):
            self._visit(proto, name, source, scope)

    def _visit(self, proto: onnx.NodeProto, name: str, source: str, scope: Scope) -> None:
        proto = resolved(proto, scope.attrs)
        domain = domain_of(proto)
        inputs = tuple(scope.find(x) if x else "" for x in proto.input)
        outputs = tuple(self.defined(x, scope) if x else "" for x in proto.output)
        if any(x in self.missing for x in inputs):
            self.missing |= set(outputs)
            return
        function = self.functions.get((domain, proto.op_type))
        if function is not None:
            self._inline(function, proto, inputs, outputs, name, source, scope)
        elif proto.op_type == "If" and domain == "":
            version = scope.versions.get(domain, 1)
            self._if(proto, OnnxNode("If", "", version, name, inputs, outputs, {}, source), scope)
        elif proto.op_type in ("Loop", "Scan") and domain == "":
            version = scope.versions.get(domain, 1)
            unroll(self, proto, OnnxNode(proto.op_type, "", version, name, inputs, outputs, {}, source), scope)
        else:
            attrs = attributes(proto, self.folder, f"node {name!r}")
            version = scope.versions.get(domain, 1)
            node = OnnxNode(proto.op_type, domain, version, name, inputs, outputs, attrs, source)
            self._operator(proto, node, scope)
        here = OnnxNode(proto.op_type, domain, 1, name, inputs, outputs, {}, source)
        for formal, actual in zip(proto.output, outputs, strict=True):
            if formal in self.sizes:
                count_sizes(self.builder, here, actual, formal)

    def _operator(self, proto: onnx.NodeProto, node: OnnxNode, scope: Scope) -> None:
        b = self.builder
        if on_sequences(self, node):
            return
        sized = touched(b, node)
        if node.domain == "" and not sized and self._stated(node):
            return
        numbers = numbers_of(b, node) if sized else None
        if numbers is not None and all(b.sizes.marked(int(x)) is None for x in numbers.reshape(-1)):
            whole = node.inputs[1 if node.op == "Where" else 0]
            own = numbers.dtype if numbers.dtype == bool else DTYPES[b.value(whole).dtype]
            self._put(node.outputs, (numbers.astype(own),))
            return
        if node.domain == "" and (scope.around is not None or scope.prefix):
            refuse_inner(node)
        values = [b.value(x) if x else None for x in node.inputs]
        check_node(proto, scope.versions, values, f"node {node.name!r} ({node.op})")
        if numbers is not None:
            b.sizes.elements[node.outputs[0]] = numbers
        if (node.domain, node.op) in OTHER_DOMAINS:
            OTHER_DOMAINS[node.domain, node.op](b, node)
        elif importable(node.op, node.domain, node.version):
            form = FORMS.get(node.op) if node.domain == "" else None
            normalise = (sized and form.counted) or form.known if form is not None else plain
            if sized or not self._fold(node, normalise):
                normalise(b, node)
        else:
            body = schema_body(proto, node.version, values) if node.domain == "" else None
            if body is None:
                self.lacking.append(
                    Unsupported(node.name, node.op, node.domain, reason(node.op, node.domain, node.version))
                )
                self.missing |= set(node.outputs)
                return
            self._inline(body, proto, node.inputs, node.outputs, node.name, node.source, scope)

    # --- what is known now ----------------------------------------------------------------------------------------

    def _stated(self, node: OnnxNode) -> bool:
        """Takes over a value that is written in the model or in a shape; says whether it did."""
        if node.op == "Constant":
            self._put(node.outputs, (_constant_value(node),))
        elif node.op in ("Shape", "Size"):
            shape = np.asarray(self.builder.shape(node.inputs[0]), np.int64)
            part = shape[slice(node.attrs.get("start"), node.attrs.get("end"))]
            self._put(node.outputs, (part if node.op == "Shape" else np.asarray(shape.prod(), np.int64),))
        else:
            return False
        return True

    def _fold(self, node: OnnxNode, normalise: Normaliser) -> bool:
        """Computes the node if it depends on constants alone; says whether it did."""
        data = [self.builder.data(x) for x in node.inputs]
        if any(d is None for d, x in zip(data, node.inputs, strict=True) if x) or node.op in KEPT | RANDOM:
            return False
        results = folded(self.builder, node, normalise, data)
        if results is not None:
            self._put(node.outputs, results)
        return results is not None

    def _put(self, outputs: tuple[str, ...], arrays: tuple[Any, ...]) -> None:
        for name, array in zip(outputs, arrays, strict=False):
            if name:
                self.builder.values[name] = Value(name, array.dtype.name, array.shape, np.asarray(array, order="C"))

    # --- bodies ---------------------------------------------------------------------------------------------------

    def _inline(
        self,
        body: onnx.FunctionProto,
        proto: onnx.NodeProto,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        name: str,
        source: str,
        scope: Scope,
    ) -> None:
        if scope.depth > FUNCTION_DEPTH:
            raise ModelError(f"node {name!r} ({proto.op_type}): the model's functions call each other in a circle")
        names = dict(zip(body.input, (*inputs, *[""] * len(body.input)), strict=False))
        attrs = {a.name: a for a in body.attribute_proto} | {a.name: a for a in proto.attribute}
        versions = {**scope.versions, **operator_sets(body)}
        inner = Scope(versions, names, attrs, None, f"{name}/", scope.depth + 1)
        wanted = {formal: actual for formal, actual in zip(body.output, outputs, strict=False) if actual}
        produced = {x for node in body.node for x in node.output}
        names |= {formal: actual for formal, actual in wanted.items() if formal in produced}
        what = f"function {body.name or proto.op_type}"
        for inner_name, node in ordered(body.node, wanted, body.input, what):
            self.visit(node, f"{name}/{inner_name}", source, inner)
        self._hand_over(wanted, produced, inner, name, source)

    def _if(self, proto: onnx.NodeProto, if_: OnnxNode, scope: Scope) -> None:
        """The branch that a constant condition takes; both, where it depends on data."""
        name, outputs, source = if_.name, if_.outputs, if_.source
        condition = self.builder.value(if_.inputs[0])
        if prod(condition.shape) != 1 or condition.dtype != "bool":
            raise if_.fail(f"expected a condition of one bool, found {condition.dtype}{list(condition.shape)}")
        if condition.data is None:
            both_branches(self, proto, if_, scope)
            return
        taken = BRANCHES[0 if bool(condition.data.reshape(-1)[0]) else 1]
        graph = branch_of(proto, taken, name)
        inner = scope.within(f"{name}/")
        self.initialisers(graph, inner)
        wanted = {formal.name: actual for formal, actual in zip(graph.output, outputs, strict=False) if actual}
        produced = {x for node in graph.node for x in node.output}
        inner.names |= {formal: actual for formal, actual in wanted.items() if formal in produced}
        outside = (_given(graph) | {x for x in captured(graph) if scope.has(x)}) - produced
        for inner_name, node in ordered(graph.node, wanted, outside, f"node {name!r} (If)"):
            self.visit(node, f"{name}/{inner_name}", source, inner)
        self._hand_over(wanted, produced, inner, name, source)

    def _hand_over(self, wanted: Mapping[str, str], produced: set[str], inner: Scope, name: str, source: str) -> None:
        """Outputs of a body that are values from elsewhere, handed through."""
        for formal, actual in wanted.items():
            if formal not in produced:
                through = OnnxNode("Identity", "", 1, f"{name}/{formal}", (), (actual,), {}, source)
                self.hand(through, actual, inner.find(formal))

    # --- the end --------------------------------------------------------------------------------------------------

    def graph(self, proto: onnx.GraphProto, path: Path, inputs: list[Value]) -> Graph:
        """What was imported. An output that is a constant becomes a copy of it, so that every output is computed."""
        b = self.builder
        outputs = tuple(o.name for o in proto.output)
        if lists := [name for name in outputs if name in self.sequences]:
            raise ModelError(
                f"output {lists[0]!r} of {path} is a sequence of tensors; expected tensors: give each as an output"
            )
        for declared in (*proto.output, *proto.value_info):
            if declared.name in b.values:
                check_declared(declared, b.values[declared.name])
        last = OnnxNode("Identity", "", 1, "sizes", (), (), {}, "")
        for output in dict.fromkeys(outputs):
            for axis, count in sorted(b.sizes.of(output).items()):
                size = size_name(output, axis)
                b.emit(replace(last, name=size, source=output), "Identity", (count,), outputs=(size,))
                outputs += (size,)
        for size, count in b.rooms.counts.items() if b.rooms is not None else ():
            least = b.constant(np.int64(ROOM), f"{count}_least")
            room = room_name(size)
            b.emit(replace(last, name=room), "Max", (count, least), outputs=(room,))
            outputs += (room,)
        constants = {x: v.data for x in dict.fromkeys(outputs) if (v := b.values[x]).data is not None}
        held = {name: b.constant(data, f"{name}_value") for name, data in constants.items()}
        b.nodes = [_reading(node, held) for node in b.nodes]
        for name, constant in held.items():
            node = OnnxNode("Identity", "", 1, f"{name}_copy", (constant,), (name,), {}, name)
            b.emit(node, "Identity", (constant,), outputs=(name,))
        names = (*(v.name for v in inputs), *([RANDOM_STATE] if RANDOM_STATE in b.values else ()))
        graph = Graph(proto.name or path.stem, names, outputs, b.values, (), tuple(dict.fromkeys(self.notes)))
        return graph.with_nodes(b.nodes)


def _reading(node: Node, held: Mapping[str, str]) -> Node:
    """The node with other inputs in place of those that `held` names."""
    if held.keys().isdisjoint(node.inputs):
        return node
    return replace(node, inputs=tuple(held.get(x, x) for x in node.inputs))


def _constant_value(node: OnnxNode) -> Any:
    """The value of a Constant node, in whichever attribute it is."""
    for name, dtype in (("value", None), ("sparse_value", None), ("value_float", np.float32), ("value_int", np.int64)):
        if name in node.attrs:
            return np.asarray(node.attrs[name], dtype)
    for name, dtype in (("value_floats", np.float32), ("value_ints", np.int64)):
        if name in node.attrs:
            return np.asarray(node.attrs[name], dtype)
    raise node.fail("expected a tensor as value, found strings or nothing")
