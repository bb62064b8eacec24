"""The structure of an ONNX graph before shapes are known: names, order, what is alive, what modelc lacks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote

import onnx

from modelc.errors import ModelError
from modelc.frontend.building.fold import KEPT, RANDOM
from modelc.frontend.building.functions import Functions, domain_of, has_body, operator_sets, schema_of
from modelc.frontend.building.limits import FUNCTION_DEPTH
from modelc.frontend.classical.linear import strings_refused
from modelc.frontend.classical.trees import TREES
from modelc.frontend.control.sequences import ON_SEQUENCES
from modelc.frontend.load.importing import Unsupported
from modelc.frontend.microsoft.fused import FUSED
from modelc.frontend.operators.form import Normaliser
from modelc.frontend.operators.table import FORMS, ROWS
from modelc.ir.scalar import OPERATIONS
from modelc.ops import OPERATORS, REFUSED
from modelc.ops.row import Row

OWN_DOMAINS = ("", "ai.onnx")
OTHER_DOMAINS: Mapping[tuple[str, str], Normaliser] = {
    **{key: fused.meaning for key, fused in FUSED.items()},
    **TREES,
}
NEVER_FOLDED = {*KEPT, *RANDOM, "Loop", "Scan"}
HANDLED = {"Constant", "Shape", "Size", "Range", "If", "Scan", *ON_SEQUENCES}
REASONS = {
    "Loop": "how often it runs at most depends on data, so the length of what it hands out is not known when compiling",
    "SequenceMap": "of sequences modelc takes those that are made, read and put together node by node",
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), "optional values are not supported"),
    **dict.fromkeys(("StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch"), "strings are not supported"),
}
REASONS_BY_DOMAIN = {
    "ai.onnx.ml": "of this domain modelc takes linear models, trees, support vectors, and what prepares "
    "numbers for them; strings, maps and sequences are not supported",
    **dict.fromkeys(
        ("com.microsoft.nchwc", "com.ms.internal.nhwc"),
        "ONNX Runtime has written this for the machine that it ran on; save the model with extended optimisations at "
        "the most",
    ),
}


def node_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """A name for every node: its own, or operator and position."""
    return [node.name or f"{node.op_type}_{index}" for index, node in enumerate(nodes)]


def row_of(node: onnx.NodeProto) -> Row:
    """What is known of a node's operator by its name: nothing, not even the name, of those of other domains."""
    return ROWS.get(node.op_type) or Row(node.op_type) if node.domain in OWN_DOMAINS else Row("")


def is_comparison(row: Row) -> bool:
    return row.scalar != "" and OPERATIONS[row.scalar].rounding == "compares"


def every_node(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The nodes with their names, and those of branches and loops in them."""
    for name, node in zip(node_names(graph.node), graph.node, strict=True):
        yield name, node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from every_node(inner)


def captured(graph: onnx.GraphProto) -> set[str]:
    """What a branch reads from the graphs around it."""
    own = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    own |= {out for node in graph.node for out in node.output}
    read = {name for node in graph.node for name in reads(node)} | {o.name for o in graph.output}
    return {name for name in read - own if name}


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every value that a node reads, those that its branches capture included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from captured(attribute.g)


def ordered(
    nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], available: Iterable[str], what: str
) -> list[tuple[str, onnx.NodeProto]]:
    """The nodes that `outputs` need, named, producers first, otherwise in the model's order; of an If without the names
    of outputs that nothing needs. Raises ModelError for values that nothing produces or two nodes produce, and for
    cycles."""
    provided, outputs = set(available), list(outputs)
    names = node_names(nodes)
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for out in node.output:
            if out and (out in producer or out in provided):
                raise ModelError(f"{what}: value {out!r} is produced twice, the second time by node {names[index]!r}")
            if out:
                producer[out] = index
    alive = _alive(nodes, names, outputs, provided, producer, what)
    for index in set(range(len(nodes))) - alive:
        if missing := [r for r in reads(nodes[index]) if r not in provided and r not in producer]:
            raise ModelError(_unproduced(what, missing[0], names[index]))
    needed = {*outputs, *(r for index in alive for r in reads(nodes[index]))}
    done: set[int] = set()
    result: list[tuple[str, onnx.NodeProto]] = []
    for index in sorted(alive):
        stack = [index]
        path: set[int] = set()
        while stack:
            top = stack[-1]
            waiting = [producer[r] for r in reads(nodes[top]) if r in producer and producer[r] not in done]
            if top in done or not waiting:
                stack.pop()
                path.discard(top)
                if top not in done:
                    done.add(top)
                    result.append((names[top], _of_needed(nodes[top], needed)))
                continue
            path.add(top)
            if any(w in path for w in waiting):
                raise ModelError(f"{what}: node {names[top]!r} depends on its own output")
            stack += waiting
    return result


def _of_needed(node: onnx.NodeProto, needed: Container[str]) -> onnx.NodeProto:
    if node.op_type != "If" or all(x in needed for x in node.output):
        return node
    left = onnx.NodeProto()
    left.CopyFrom(node)
    left.output[:] = [x if x in needed else "" for x in node.output]
    return left


def _alive(
    nodes: Sequence[onnx.NodeProto],
    names: Sequence[str],
    outputs: Iterable[str],
    provided: set[str],
    producer: Mapping[str, int],
    what: str,
) -> set[int]:
    alive: set[int] = set()
    wanted = [(out, "") for out in outputs]
    while wanted:
        name, reader = wanted.pop()
        if name in provided:
            continue
        if name not in producer:
            raise ModelError(_unproduced(what, name, reader))
        index = producer[name]
        if index not in alive:
            alive.add(index)
            wanted += [(r, names[index]) for r in reads(nodes[index])]
    return alive


def _unproduced(what: str, name: str, reader: str) -> str:
    use = f"is read by node {reader!r}" if reader else "is an output"
    return f"{what}: value {name!r} {use}, but nothing produces it"


def importable(op: str, domain: str, version: int) -> bool:
    """Whether the operator has an entry in the operator library or becomes some that have."""
    if (domain, op) in OTHER_DOMAINS:
        return True
    if domain == "":
        return op in FORMS or op in OPERATORS or op in HANDLED
    return op in OPERATORS and domain == "com.microsoft" and schema_of(op, "", 1 << 20) is None


@dataclass
class Lack:
    """Looks for what modelc lacks in a model whose shapes are not known yet."""

    functions: Functions
    bounded: Container[str] = ()  # values of which a user says the most
    unsupported: list[Unsupported] = field(default_factory=list)

    def look(
        self,
        nodes: Iterable[tuple[str, onnx.NodeProto]],
        versions: Mapping[str, int],
        constants: set[str],
        depth: int = 0,
    ) -> None:
        """`constants` are the values known when compiling, among which what is computed from them alone comes to be."""
        for name, node in nodes:
            domain, op = domain_of(node), node.op_type
            constant = op not in NEVER_FOLDED and all(x in constants for x in reads(node))
            if constant or (domain == "" and op in ("Constant", "Shape", "Size")):
                constants |= set(node.output)
            self._look_at(name, node, domain, versions, constants, depth)

    def _look_at(
        self, name: str, node: onnx.NodeProto, domain: str, versions: Mapping[str, int], constants: set[str], depth: int
    ) -> None:
        op, version = node.op_type, versions.get(domain, 1)
        function = self.functions.get((domain, op))
        if function is not None:
            if depth > FUNCTION_DEPTH:
                self.unsupported.append(
                    Unsupported(name, op, domain, "the model's functions call each other in a circle")
                )
                return
            inner = {a for a, given in zip(function.input, node.input, strict=False) if given in constants}
            inner |= set(function.input[len(node.input) :])
            named = [(f"{name}/{n}", x) for n, x in zip(node_names(function.node), function.node, strict=True)]
            self.look(named, operator_sets(function), inner, depth + 1)
        elif op == "If" and domain == "":
            if node.input[0] not in constants:
                self._look_into(name, node, versions, constants, depth)
        elif op == "Loop" and domain == "":
            if any(x and x not in constants for x in node.input[:2]):
                count = node.input[0]
                unbounded = not count or (count not in constants and count not in self.bounded)
                if unbounded and any(node.output[len(node.input) - 2 :]):
                    more = f"; say the most with --bound {quote(f'{count}=N')}" if count else ""
                    self.unsupported.append(Unsupported(name, op, domain, REASONS["Loop"] + more))
                self._look_into(name, node, versions, constants, depth)
        elif not importable(op, domain, version) and not self._body(op, domain, version):
            self.unsupported.append(Unsupported(name, op, domain, reason(op, domain, version)))
        elif strings := [a.name for a in node.attribute if a.name.endswith("_strings") and a.strings]:
            self.unsupported.append(Unsupported(name, op, domain, strings_refused(strings[0])))

    def _look_into(
        self, name: str, node: onnx.NodeProto, versions: Mapping[str, int], constants: set[str], depth: int
    ) -> None:
        """Looks at the bodies of control flow that is left to a run."""
        for graph in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            inside = {*constants, *(t.name for t in graph.initializer)}
            inside |= {t.values.name for t in graph.sparse_initializer}
            inner = zip(node_names(graph.node), graph.node, strict=True)
            self.look([(f"{name}/{n}", x) for n, x in inner], versions, inside, depth)

    def _body(self, op: str, domain: str, version: int) -> bool:
        """Whether ONNX defines the operator by others. Those are looked at when their types are known."""
        return domain == "" and op not in REASONS and op not in REFUSED and has_body(op, domain, version)


def reason(op: str, domain: str, version: int) -> str:
    """Why an operator cannot be compiled, as the end of a sentence."""
    if domain == "" and op in REASONS:
        return REASONS[op]
    if domain == "" and schema_of(op, "", version) is None:
        return f"ONNX operator set {version} has no such operator"
    if op in REFUSED:
        return REFUSED[op]
    if domain in REASONS_BY_DOMAIN:
        return REASONS_BY_DOMAIN[domain]
    if domain:
        return f"operators of the domain {domain!r} are not known to modelc, except those that it lists"
    return "modelc's operator library has no entry for it"
