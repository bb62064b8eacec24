"""The text of a Graph, printed and parsed (its form is shown in graph.py).

    graph NAME
      input X: float32[1, 3]
      const W: float32[3] = [1.0, 2.0, 3.0]      few elements; more are "<base64 of zlib-compressed data>"
      value Y: float32[1, 3]
      Y = Op(X, "", W) axis=1 mode="linear" table=int64[2]([1, 2])  # node_name from source_1, source_2
      output Y
      note "a sentence"

The bodies of control flow follow their node, each a graph between the lines `begin` and `end`.
Names that are not identifiers are quoted as in JSON; `""` is an absent input. A node's sources are printed unless they
are its own name alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value

Array = NDArray[Any]
INLINE = 16  # constants of at most this many elements are printed as numbers
_NUMBERS = {"inf": float("inf"), "nan": float("nan"), "True": True, "False": False}


def show_graph(graph: Graph, elide: int | None = None) -> str:
    """The text of `graph`; parse_graph reads it back to an equal one. With `elide`, constants of more elements show
    their hash instead of their data, for people to read."""
    lines = [f"graph {_name(graph.name)}"]
    for name, value in graph.values.items():
        if name in graph.inputs:
            continue
        if value.data is not None:
            lines.append(f"  const {_typed(value)} = {_data(value.data, elide)}")
    inputs = [f"  input {_typed(graph.values[name])}" for name in graph.inputs]
    given = {*graph.inputs, *(k for k, v in graph.values.items() if v.data is not None)}
    computed = [f"  value {_typed(v)}" for k, v in graph.values.items() if k not in given]
    lines[1:1] = inputs
    lines += computed
    for node in graph.nodes:
        lines.append(f"  {show_node(node, elide)}")
        for body in node.bodies:
            lines += ["  begin", *(f"  {line}" for line in show_graph(body, elide).splitlines()), "  end"]
    lines += [f"  output {_name(name)}" for name in graph.outputs]
    lines += [f"  note {json.dumps(note)}" for note in graph.notes]
    return "\n".join(lines) + "\n"


def show_node(node: Node, elide: int | None = None) -> str:
    """One node as a line of the Graph's text."""
    attrs = "".join(f" {key}={_attribute(value, elide)}" for key, value in node.attrs.items())
    source = "" if node.source == (node.name,) else f" from {', '.join(map(_name, node.source))}"
    outputs, inputs = (", ".join(map(_name, names)) for names in (node.outputs, node.inputs))
    return f"{outputs} = {_name(node.op)}({inputs}){attrs}  # {_name(node.name)}{source}".rstrip()


def _name(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name != "from" and name not in _NUMBERS
    return name if plain else json.dumps(name)


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _typed(value: Value) -> str:
    return f"{_name(value.name)}: {_type(value.dtype, value.shape)}"


def _data(data: Array, elide: int | None) -> str:
    if data.size <= INLINE:
        text = f"[{', '.join(map(repr, _numbers(data)))}]"
        if _array(_Reader(text).numbers(), data.dtype.name, data.shape).tobytes() == data.tobytes():
            return text
    content = np.asarray(data).astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
    if elide is not None and data.size > elide:
        return f"<elided sha256:{hashlib.sha256(content).hexdigest()[:16]}>"
    return json.dumps(base64.b64encode(zlib.compress(content, 1)).decode())


def _numbers(data: Array) -> list[Any]:
    """Python numbers that print short and read back to the same bits."""
    flat = data.reshape(-1)
    if data.dtype.kind in "iub" or data.dtype == np.float64:
        return list(flat.tolist())
    return [float(str(x)) if np.isfinite(x) else float(x) for x in flat]


def _attribute(value: Any, elide: int | None) -> str:
    if isinstance(value, np.ndarray):
        return f"{_type(value.dtype.name, value.shape)}({_data(value, elide)})"
    if isinstance(value, tuple):
        return f"({', '.join(_attribute(v, elide) for v in value)}{',' if len(value) == 1 else ''})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


# --- reading ------------------------------------------------------------------------------------------------------


class GraphSyntaxError(ValueError):
    """The text is not a Graph; says the line and what was expected."""


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>-?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|inf\b|nan\b))"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>[][(){}=:,#<>]))"""
)


class _Reader:
    """The tokens of one line."""

    def __init__(self, line: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while line[at:].strip():
            match = _TOKEN.match(line, at)
            if not match:
                raise GraphSyntaxError(f"did not expect {line[at:].strip()!r}")
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind]))
            at = match.end()
        self.at = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "the end of the line")

    def next(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, mark: str) -> bool:
        if self.peek() in (("mark", mark), ("name", mark)):
            self.at += 1
            return True
        return False

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise GraphSyntaxError(f"expected {mark!r}, found {self.peek()[1]!r}")

    def name(self) -> str:
        kind, text = self.next()
        if kind == "string":
            return str(json.loads(text))
        if kind != "name":
            raise GraphSyntaxError(f"expected a name, found {text!r}")
        return text

    def items(self, item: Callable[[], Any], end: str) -> list[Any]:
        """Items with commas between, up to and with `end`."""
        parsed = []
        while not self.accept(end):
            parsed.append(item())
            if not self.accept(","):
                self.expect(end)
                break
        return parsed

    def number(self) -> Any:
        kind, text = self.next()
        if text in _NUMBERS:
            return _NUMBERS[text]
        if kind != "number":
            raise GraphSyntaxError(f"expected a number, found {text!r}")
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)

    def numbers(self) -> list[Any]:
        self.expect("[")
        return self.items(self.number, "]")

    def type(self) -> tuple[str, tuple[int, ...]]:
        dtype = self.name()
        if dtype not in DTYPES:
            raise GraphSyntaxError(f"expected a dtype ({', '.join(DTYPES)}), found {dtype!r}")
        return dtype, tuple(self.numbers())

    def data(self, dtype: str, shape: tuple[int, ...]) -> Array:
        if self.peek()[1] == "<":
            raise GraphSyntaxError(
                "the data of this constant was elided; print the graph with all data to read it back"
            )
        if self.peek()[0] != "string":
            return _array(self.numbers(), dtype, shape)
        content = zlib.decompress(base64.b64decode(json.loads(self.next()[1])))
        if len(content) != prod(shape) * DTYPES[dtype].itemsize:
            raise GraphSyntaxError(f"expected data for {_type(dtype, shape)}, found {len(content)} bytes")
        return np.frombuffer(content, DTYPES[dtype]).reshape(shape)

    def attribute(self) -> Any:
        kind, text = self.peek()
        if self.accept("("):
            return tuple(self.items(self.attribute, ")"))
        if kind == "string":
            return self.name()
        if text in DTYPES:
            dtype, shape = self.type()
            self.expect("(")
            data = self.data(dtype, shape)
            self.expect(")")
            return data
        return self.number()

    def node(self) -> Node:
        outputs = self.items(self.name, "=")
        op = self.name()
        self.expect("(")
        inputs = self.items(self.name, ")")
        attrs = {}
        while not self.accept("#"):
            if self.peek()[0] == "end":
                raise GraphSyntaxError("expected '# ' and the node's name at the end of the line")
            key = self.name()
            self.expect("=")
            attrs[key] = self.attribute()
        name = self.name()
        source: tuple[str, ...] = (name,)
        if self.accept("from"):
            source = ()
            while self.peek()[0] != "end":
                source = (*source, self.name())
                if self.peek()[0] != "end":
                    self.expect(",")
        return Node(op, name, tuple(inputs), tuple(outputs), attrs, source)


def _array(numbers: list[Any], dtype: str, shape: tuple[int, ...]) -> Array:
    if len(numbers) != prod(shape):
        raise GraphSyntaxError(f"expected {prod(shape)} numbers for {_type(dtype, shape)}, found {len(numbers)}")
    kind = DTYPES[dtype]
    with np.errstate(over="ignore"):
        return np.asarray(numbers, None if kind.kind in "iu" else np.float64).astype(kind).reshape(shape)


def parse_graph(text: str) -> Graph:
    """Reads what show_graph() prints. Raises GraphSyntaxError."""
    name = "graph"
    inputs: list[str] = []
    outputs: list[str] = []
    notes: list[str] = []
    values: dict[str, Value] = {}
    nodes: list[Node] = []
    inner: list[str] | None = None  # the lines of a body, while it is read
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        depth += {"begin": 1, "end": -1}.get(line.strip(), 0)
        if inner is not None and depth:
            inner.append(line)
            continue
        if inner is not None and nodes:
            nodes[-1] = replace(nodes[-1], bodies=(*nodes[-1].bodies, parse_graph("\n".join(inner))))
            inner = None
            continue
        if depth and nodes:
            inner = []
            continue
        try:
            reader = _Reader(line)
            kind, word = reader.peek()
            following = reader.tokens[1][0] if len(reader.tokens) > 1 else ""
            declares = kind == "name" and following in ("name", "string")
            if declares and word == "graph":
                reader.next()
                name = reader.name()
            elif declares and word in ("input", "const", "value"):
                reader.next()
                value = _declaration(reader, word)
                values[value.name] = value
                if word == "input":
                    inputs.append(value.name)
            elif declares and word in ("output", "note"):
                reader.next()
                (outputs if word == "output" else notes).append(reader.name())
            else:
                nodes.append(reader.node())
        except GraphSyntaxError as error:
            raise GraphSyntaxError(f"line {number}: {error}") from None
        except (ValueError, zlib.error) as error:
            raise GraphSyntaxError(f"line {number}: damaged data: {error}") from None
    if depth:
        raise GraphSyntaxError(f"expected 'begin' and 'end' in pairs, found {abs(depth)} without the other")
    return Graph(name, tuple(inputs), tuple(outputs), values, tuple(nodes), tuple(notes))


def _declaration(reader: _Reader, word: str) -> Value:
    name = reader.name()
    reader.expect(":")
    dtype, shape = reader.type()
    if word != "const":
        return Value(name, dtype, shape)
    reader.expect("=")
    return Value(name, dtype, shape, reader.data(dtype, shape))
