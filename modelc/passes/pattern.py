"""Rewrites of Graphs as data: a table of rules, each a pattern over values and a function that says what replaces it.

    RULES = (Rule(Op("Transpose", Op("Transpose", Bind("x"), name="inner"), name="outer"), merge_transposes),)
    graph = rewrite(graph, RULES)

A rule's function gets an Editor and the Match, adds nodes with `editor.add`, and returns the name of the value that
stands for the matched root from now on, or None if the rule does not apply after all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value
from modelc.ops import operator_of

COMMUTATIVE = {"Add", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal"}


@dataclass(frozen=True)
class Bind:
    """Any value; the same name twice is the same value twice."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A value that is a constant."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant whose elements are all `value`, to float32's precision; of 0, exactly."""

    value: float


@dataclass(frozen=True)
class Op:
    """What an operator (one of several, with bars between: "Add|Sub") produces first. Commutative operators match
    either way round. With `more`, inputs after `args` are allowed. Its value is bound to `name`."""

    op: str
    args: tuple[Pattern, ...] = ()
    name: str = ""
    more: bool = False

    def __init__(self, op: str, *args: Pattern, name: str = "", more: bool = False) -> None:
        for key, value in (("op", op), ("args", args), ("name", name), ("more", more)):
            object.__setattr__(self, key, value)


Pattern = Bind | Constant | Number | Op


@dataclass(frozen=True)
class Match:
    """Where a pattern was found: the nodes, root first, and the value of each name."""

    nodes: tuple[Node, ...]
    bound: Mapping[str, str]

    @property
    def root(self) -> Node:
        return self.nodes[0]

    def __getitem__(self, name: str) -> str:
        return self.bound[name]


@dataclass(frozen=True)
class Rule:
    """`private`: values between the matched nodes are read by matched nodes alone (else the rewrite would compute
    something twice)."""

    pattern: Op
    apply: Callable[[Editor, Match], str | None]
    private: bool = True


@dataclass
class Editor:
    """The Graph under a sweep of rewrites. Questions are answered about the Graph as it was when the sweep began."""

    graph: Graph
    values: dict[str, Value] = field(default_factory=dict)
    added: list[Node] = field(default_factory=list)
    root: Node | None = None
    source: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._producers = self.graph.producers()
        self._consumers = self.graph.consumers()
        self.names = {node.name for node in self.graph.nodes}
        self.outputs = frozenset(self.graph.outputs)

    def value(self, name: str) -> Value:
        return self.values.get(name) or self.graph.values[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.value(name).shape

    def data(self, name: str) -> NDArray[Any] | None:
        return self.value(name).data if name else None

    def producer(self, name: str) -> Node | None:
        return self._producers.get(name)

    def node(self, name: str) -> Node:
        """The node that computes a value, where there is one."""
        return self._producers[name]

    def array(self, name: str) -> NDArray[Any]:
        """The data of what is a constant."""
        data = self.data(name)
        assert data is not None
        return data

    def readers(self, name: str) -> list[Node]:
        return self._consumers.get(name, [])

    def private(self, name: str) -> bool:
        """Whether one node alone reads the value."""
        return len(self.readers(name)) == 1 and name not in self.outputs

    def scalar(self, name: str) -> float | None:
        """The number that all elements of a constant are."""
        data = self.data(name)
        if data is None or not data.size or data.dtype.kind == "b":
            return None
        first = data.reshape(-1)[0]
        return float(first) if data.size == 1 or bool((data == first).all()) else None

    def fresh(self, base: str) -> str:
        return self.graph.fresh(base, self.values)

    def constant(self, data: Any, base: str, dtype: str = "int64") -> str:
        array = np.asarray(np.asarray(data).astype(DTYPES[dtype], copy=False), order="C")
        name = self.fresh(base)
        self.values[name] = Value(name, dtype, array.shape, array)
        return name

    def add(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None) -> str:
        """Adds a node; returns the name of its first output."""
        return self.add_several(op, inputs, 1, attrs)[0]

    def add_several(
        self, op: str, inputs: Sequence[str], outputs: int, attrs: Mapping[str, Any] | None = None
    ) -> tuple[str, ...]:
        """Adds a node with so many `outputs`; returns their names."""
        assert self.root is not None
        label, k = f"{self.root.name}/{op}", 1
        while label in self.names:
            label, k = f"{self.root.name}/{op}_{k}", k + 1
        self.names.add(label)
        names: tuple[str, ...] = ()
        for _ in range(outputs):
            taken = {**self.values, **dict.fromkeys(names)}
            names = (*names, self.graph.fresh(f"{self.root.outputs[0]}_{op.lower()}", taken))
        node = Node(op, label, tuple(inputs), names, dict(attrs or {}), self.source)
        types = operator_of(node).infer(node, tuple(self.value(x) if x else None for x in inputs))
        for name, (dtype, shape) in zip(names, types, strict=False):
            self.values[name] = Value(name, dtype, tuple(shape))
        self.added.append(node)
        return names

    def again(self, node: Node, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None) -> str:
        """Adds the same operator as `node` over other inputs, with some attributes changed."""
        return self.add(node.op, inputs, {**node.attrs, **(attrs or {})})


def matches(editor: Editor, node: Node, pattern: Op, private: bool = True) -> Match | None:
    """The first way in which `pattern` matches with `node` as its root."""
    for bound, nodes in _node(editor, node, pattern, {}):
        unique = tuple(dict.fromkeys(nodes))
        if not private or _is_private(editor, unique):
            return Match(unique, bound)
    return None


def _is_private(editor: Editor, nodes: tuple[Node, ...]) -> bool:
    names = {n.name for n in nodes}
    inner = [out for n in nodes[1:] for out in n.outputs if out]
    return all(o not in editor.outputs and all(r.name in names for r in editor.readers(o)) for o in inner)


Found = tuple[dict[str, str], tuple[Node, ...]]


def _value(editor: Editor, name: str, pattern: Pattern, bound: dict[str, str]) -> Iterator[Found]:
    if isinstance(pattern, Number):
        scalar = editor.scalar(name) if name else None
        if scalar is not None and abs(scalar - pattern.value) <= 1e-6 * abs(pattern.value):
            yield bound, ()
        return
    if isinstance(pattern, Constant) and editor.data(name) is None:
        return
    if pattern.name and bound.get(pattern.name, name) != name:
        return
    bound = {**bound, pattern.name: name} if pattern.name else bound
    if isinstance(pattern, Op):
        producer = editor.producer(name)
        if producer is not None and producer.outputs[0] == name:
            yield from _node(editor, producer, pattern, bound)
    elif name:
        yield bound, ()


def _node(editor: Editor, node: Node, pattern: Op, bound: dict[str, str]) -> Iterator[Found]:
    if node.op not in pattern.op.split("|"):
        return
    if len(node.inputs) < len(pattern.args) or (len(node.inputs) > len(pattern.args) and not pattern.more):
        return
    if pattern.name:
        bound = {**bound, pattern.name: node.outputs[0]}
    orders: list[tuple[str, ...]] = [node.inputs]
    if node.op in COMMUTATIVE and len(node.inputs) == 2:
        orders.append(node.inputs[::-1])
    for inputs in orders:
        yield from _args(editor, inputs, pattern.args, bound, (node,))


def _args(
    editor: Editor,
    inputs: tuple[str, ...],
    patterns: tuple[Pattern, ...],
    bound: dict[str, str],
    nodes: tuple[Node, ...],
) -> Iterator[Found]:
    if not patterns:
        yield bound, nodes
        return
    for now, more in _value(editor, inputs[0], patterns[0], bound):
        yield from _args(editor, inputs[1:], patterns[1:], now, (*nodes, *more))


# --- rewriting ----------------------------------------------------------------------------------------------------


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """`graph` with the rules applied until none applies; of several rules for a node the first that applies."""
    for _ in range(10 * len(graph.nodes) + 10):
        new = _sweep(graph, rules)
        if new is None:
            return graph
        graph = new
    raise AssertionError("rewrite rules undo each other")


@dataclass(frozen=True)
class RulePass:
    """A pass that does nothing but apply its rules."""

    rules: ClassVar[Sequence[Rule]]

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, self.rules)


def _sweep(graph: Graph, rules: Sequence[Rule]) -> Graph | None:
    """Every node rewritten once, or None if nothing changed."""
    editor = Editor(graph)
    nodes: list[Node] = []
    aliases: dict[str, str] = {}  # values that are others from now on
    changed = False
    for node in graph.nodes:
        replaced = _replaced(editor, node, rules, aliases)
        changed |= replaced is not None
        nodes += [node] if replaced is None else replaced
    return live(_aliased(graph, nodes, aliases, editor.values)) if changed else None


def _replaced(editor: Editor, node: Node, rules: Sequence[Rule], aliases: dict[str, str]) -> list[Node] | None:
    if any(editor.readers(o) or o in editor.outputs for o in node.outputs[1:] if o):
        return None
    for rule in rules:
        match = matches(editor, node, rule.pattern, rule.private)
        if match is None:
            continue
        editor.root, editor.added = node, []
        editor.source = tuple(dict.fromkeys(s for n in reversed(match.nodes) for s in n.source))
        result = rule.apply(editor, match)
        if result is None:
            continue
        out, new = node.outputs[0], editor.value(result)
        declared = editor.graph.values[out]
        assert (new.dtype, new.shape) == (declared.dtype, declared.shape), f"{rule.apply.__name__} at {node.name}"
        if editor.added and editor.added[-1].outputs[0] == result:
            last = replace(editor.added[-1], name=node.name, outputs=(out,))
            return [*editor.added[:-1], last]
        if _may_alias(editor, out, result, aliases):
            aliases[out] = result
            return list(editor.added)
    return None


def _may_alias(editor: Editor, out: str, value: str, aliases: Mapping[str, str]) -> bool:
    """A graph's output keeps its name: what it becomes an alias of must be free to take it."""
    if out not in editor.outputs:
        return True
    taken = value in aliases or value in aliases.values() or value in editor.outputs
    return editor.producer(value) is not None and not taken


def _aliased(graph: Graph, nodes: Sequence[Node], aliases: Mapping[str, str], values: Mapping[str, Value]) -> Graph:
    """The graph over `nodes` with every read of an alias replaced; a value that an output is an alias of gets the
    output's name."""
    outputs = frozenset(graph.outputs)
    renamed = {value: out for out, value in aliases.items() if out in outputs}
    last: dict[str, str] = {}  # name -> what it is in the end an alias of

    def final(name: str) -> str:
        chain = []
        while name not in last and name in aliases and name not in outputs:
            chain.append(name)
            name = aliases[name]
        name = last.get(name, name)
        last.update(dict.fromkeys(chain, name))
        return renamed.get(name, name)

    result = []
    for node in nodes:
        if node.outputs[0] in aliases and node.outputs[0] in outputs:
            continue
        names = tuple(renamed.get(o, o) for o in node.outputs)
        result.append(replace(node, inputs=tuple(final(x) if x else "" for x in node.inputs), outputs=names))
    return graph.with_nodes(result, values.values())


def live(graph: Graph) -> Graph:
    """The graph without nodes that no output needs."""
    needed = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if any(out in needed for out in node.outputs):
            kept.append(node)
            needed |= set(node.inputs)
    return graph.with_nodes(reversed(kept))
