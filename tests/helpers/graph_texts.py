"""The text of a Graph (modelc/ir/graph_text.py), read back: parse_graph(show_graph(graph)) == graph."""

from __future__ import annotations

import base64
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
from modelc.ir.graph import Graph, Grown, Node, Value

Array = NDArray[Any]
_NUMBERS = {"inf": float("inf"), "nan": float("nan"), "True": True, "False": False}


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
            raise GraphSyntaxError(f"expected data for {dtype}{list(shape)}, found {len(content)} bytes")
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

    def grown(self) -> Grown:
        past = self.name()
        self.expect("in")
        present, numbers = self.name(), dict[str, int]()
        for key in ("axis", "room"):
            self.expect(key)
            self.expect("=")
            numbers[key] = self.number()
        return Grown(past, present, **numbers)

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
        raise GraphSyntaxError(f"expected {prod(shape)} numbers for {dtype}{list(shape)}, found {len(numbers)}")
    kind = DTYPES[dtype]
    with np.errstate(over="ignore"):
        return np.asarray(numbers, None if kind.kind in "iu" else np.float64).astype(kind).reshape(shape)


def parse_graph(text: str) -> Graph:
    """Reads what show_graph() prints. Raises GraphSyntaxError."""
    name = "graph"
    inputs: list[str] = []
    outputs: list[str] = []
    notes: list[str] = []
    grown: list[Grown] = []
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
            elif declares and word == "grown":
                reader.next()
                grown.append(reader.grown())
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
    return Graph(name, tuple(inputs), tuple(outputs), values, tuple(nodes), tuple(notes), tuple(grown))


def _declaration(reader: _Reader, word: str) -> Value:
    name = reader.name()
    reader.expect(":")
    dtype, shape = reader.type()
    if word != "const":
        return Value(name, dtype, shape)
    reader.expect("=")
    return Value(name, dtype, shape, reader.data(dtype, shape))
