"""The text of Blocks and Tasks, read back: `parse_x(str(x)) == x`.

One statement a line; what belongs to a statement is indented by two spaces under it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import DTYPES, Expr, Load
from modelc.ir.expr_syntax import NUMBERS, ExprSyntaxError, parse, parse_conditions
from modelc.ir.layout import Layout

NAME = r"[^\s()\[\],;]+"
NAMES = rf"(?:{NAME}(?:, {NAME})*)?"
INTS = r"(?:\d+(?:, ?\d+)*)?"
T = TypeVar("T")


class TextError(ValueError):
    """The text is not what str() prints: the line, what was expected there, what was found."""


@dataclass(frozen=True)
class Line:
    """One statement: its number in the text, what it says, what is indented under it."""

    number: int
    text: str
    inner: tuple[Line, ...] = ()

    def fail(self, expected: str) -> NoReturn:
        raise TextError(f"line {self.number}: expected {expected}, found {self.text!r}")

    def match(self, pattern: str, expected: str) -> re.Match[str]:
        return re.fullmatch(pattern, self.text) or self.fail(expected)

    def read(self, reader: Callable[[str], T], text: str) -> T:
        """`reader(text)`, its ValueErrors with the line's number."""
        try:
            return reader(text)
        except TextError:
            raise
        except ValueError as error:
            raise TextError(f"line {self.number}: {error}") from None

    def expr(self, text: str) -> Expr:
        return self.read(parse, text)


def parse_block(text: str) -> AnyBlock:
    """Reads one `block` or `opaque`. Raises TextError."""
    return _block(only_line(text, "block"))


def parse_task(text: str) -> Task:
    """Reads a `task`. Raises TextError."""
    line = only_line(text, "task")
    head = line.match(
        rf"task ({NAME})\(({NAMES})\) -> \(({NAMES})\) anchor ({NAME})", "'task NAME(inputs) -> (outputs) anchor BLOCK'"
    )
    buffers: list[Buffer] = []
    constants: set[str] = set()
    blocks: list[AnyBlock] = []
    nodes: tuple[str, ...] = ()
    for part in line.inner:
        kind, _, content = part.text.partition(" ")
        if kind in ("in", "out", "const", "local"):
            buffers.append(buffer_of(part, content))
            if kind == "const":
                constants.add(buffers[-1].name)
        elif kind in ("block", "opaque"):
            blocks.append(_block(part))
        elif kind == "nodes":
            nodes = part.read(_literal, f"({content},)")
        else:
            part.fail("a buffer ('in', 'out', 'const' or 'local'), 'block', 'opaque' or 'nodes'")
    return Task(
        head[1],
        tuple(buffers),
        names_of(head[2]),
        names_of(head[3]),
        tuple(blocks),
        head[4],
        frozenset(constants),
        nodes,
    )


# --- lines --------------------------------------------------------------------------------------------------------


def only_line(text: str, kind: str) -> Line:
    lines = _nested(text)
    if not lines:
        raise TextError(f"line 1: expected a {kind}, found nothing")
    if len(lines) > 1:
        lines[1].fail(f"the end of the {kind}")
    return lines[0]


def _nested(text: str) -> tuple[Line, ...]:
    """The lines as a tree by indentation; empty lines and a common indentation are ignored."""
    rows = [(k, len(row) - len(row.lstrip()), row.strip()) for k, row in enumerate(text.splitlines(), 1) if row.strip()]
    if not rows:
        return ()
    margin = rows[0][1]
    open_: list[tuple[Line, list[Line]]] = []
    result: list[Line] = []

    def close(depth: int) -> None:
        while len(open_) > depth:
            line, inner = open_.pop()
            (open_[-1][1] if open_ else result).append(replace(line, inner=tuple(inner)))

    for number, indent, row in rows:
        line = Line(number, row)
        depth, odd = divmod(indent - margin, 2)
        if odd or not 0 <= depth <= len(open_):
            line.fail(f"an indentation of at most {margin + 2 * len(open_)} spaces, by twos")
        close(depth)
        open_.append((line, []))
    close(0)
    return tuple(result)


def names_of(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",")) if text else ()


def _literal(text: str) -> Any:
    """A Python literal; `inf` and `nan` are read too."""
    try:
        return _value(ast.parse(text, mode="eval").body)
    except SyntaxError:
        raise ValueError(f"expected a literal, found {text!r}") from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in NUMBERS:
        return NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        values = [_value(e) for e in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values
    if isinstance(node, ast.Dict) and all(node.keys):
        return {_value(k): _value(v) for k, v in zip(node.keys, node.values, strict=True) if k}
    if isinstance(node, ast.Constant):
        return node.value
    raise ValueError(f"expected a literal, found {ast.unparse(node)!r}")


def keywords_of(text: str) -> list[tuple[str, ast.expr]]:
    """`a=1, b=c + 1` as names and syntax."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or call.args or not all(k.arg for k in call.keywords):
        raise ValueError(f"expected 'name=value, ...', found {text!r}")
    return [(str(k.arg), k.value) for k in call.keywords]


# --- storage ------------------------------------------------------------------------------------------------------


def buffer_of(line: Line, text: str) -> Buffer:
    match = re.fullmatch(rf"({NAME}): (\w+)\[({INTS})\](?: stored (\S.*?))?(?: strides\(({INTS})\))?", text)
    if not match:
        line.fail("'NAME: DTYPE[EXTENTS]', then 'stored LAYOUT' and 'strides(NUMBERS)' if there are any")
    name, dtype, shape, layout, strides = match.groups()
    if dtype not in DTYPES:
        line.fail(f"a dtype of {', '.join(DTYPES)}")
    stored = Layout() if layout is None else line.read(Layout.parse, layout)
    return Buffer(name, dtype, _ints(shape), stored, None if strides is None else _ints(strides))


# --- blocks -------------------------------------------------------------------------------------------------------


def _block(line: Line) -> AnyBlock:
    if line.text.startswith("opaque "):
        return OpaqueBlock(*call_of(line, "opaque"))
    head = line.match(rf"block ({NAME}) \[(.*)\] (\w+)", "'block NAME [iterators | reductions] AGGREGATION'")
    iters: list[Iter] = []
    reduce = False
    for word in head[2].split():
        match = re.fullmatch(r"(\w+):(\d+)", word)
        if word == "|":
            reduce = not reduce
        elif match:
            iters.append(Iter(match[1], int(match[2]), reduce))
        else:
            line.fail(f"iterators such as 'h:56', not {word!r}")
    where, writes, body = statements_of(line, symbol_of(line, head[3]))
    return Block(head[1], tuple(iters), writes, body, head[3], where)


def symbol_of(line: Line, aggregation: str) -> str:
    if aggregation not in AGGREGATIONS:
        line.fail(f"an aggregation of {', '.join(AGGREGATIONS)}")
    return AGGREGATIONS[aggregation].symbol


def statements_of(line: Line, symbol: str) -> tuple[tuple[Expr, ...], tuple[Load, ...], tuple[Expr, ...]]:
    """The conditions, writes and bodies under a Block or Leaf."""
    where: tuple[Expr, ...] = ()
    writes: list[Load] = []
    body: list[Expr] = []
    for k, part in enumerate(line.inner):
        if part.inner:
            part.inner[0].fail("nothing indented under a statement")
        if k == 0 and part.text.startswith("where "):
            where = part.read(parse_conditions, part.text.removeprefix("where "))
            continue
        left, separator, right = part.text.partition(f" {symbol} ")
        if not separator:
            part.fail(f"'BUFFER[indices] {symbol} EXPRESSION'")
        write = part.expr(left)
        if not isinstance(write, Load):
            part.fail(f"an element of a buffer before {symbol!r}")
        writes.append(write)
        body.append(part.expr(right))
    return where, tuple(writes), tuple(body)


Attrs = tuple[tuple[str, Any], ...]


def call_of(line: Line, kind: str) -> tuple[str, str, tuple[str, ...], tuple[str, ...], Attrs]:
    head = line.match(
        rf"{kind} ({NAME}) ({NAME})\(({NAMES})\) -> \(({NAMES})\)(?: with (.*))?",
        f"'{kind} NAME MEANING(inputs) -> (outputs)', then 'with name=value, ...' if there are attributes",
    )

    def attributes(text: str) -> Attrs:
        return tuple((name, _value(node)) for name, node in keywords_of(text))

    attrs = line.read(attributes, head[5]) if head[5] else ()
    return head[1], head[2], names_of(head[3]), names_of(head[4]), attrs


__all__ = ["ExprSyntaxError", "TextError", "parse_block", "parse_task"]
