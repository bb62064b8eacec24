"""The text of a Nest (modelc/ir/nest.py), read back: `parse_nest(str(nest)) == nest`."""

from __future__ import annotations

import re
from dataclasses import replace

from modelc.ir.expr import Expr, Load
from modelc.ir.expr_syntax import expression
from modelc.ir.nest import INTRINSIC, SCOPES, TAGS, Alloc, Branch, Call, For, Leaf, Nest, Prefetch, Region, Stmt
from modelc.ir.text import (
    NAME,
    NAMES,
    Line,
    buffer_of,
    call_of,
    keywords_of,
    names_of,
    only_line,
    statements_of,
    symbol_of,
)


def parse_nest(text: str) -> Nest:
    """Reads a `nest`. Raises TextError."""
    line = only_line(text, "nest")
    head = line.match(rf"nest ({NAME})\((.*)\) -> \(({NAMES})\)", "'nest NAME(regions) -> (outputs)'")
    params = tuple(_region(line, p) for p in head[2].split("; ")) if head[2] else ()
    temporaries: list[Region] = []
    phases: list[tuple[Stmt, ...]] = []
    for part in line.inner:
        if part.text == "phase":
            phases.append(_body(part.inner))
        elif part.text.startswith("arena "):
            temporaries.append(_region(part, part.text.removeprefix("arena ")))
        else:
            part.fail("'phase' or 'arena REGION'")
    return Nest(head[1], params, names_of(head[3]), tuple(phases), tuple(temporaries))


def _region(line: Line, text: str) -> Region:
    buffer = buffer_of(line, text)
    if buffer.layout.primitives:
        line.fail("a region, which has no layout")
    return Region(buffer.name, buffer.dtype, buffer.shape, buffer.strides)


def _body(lines: tuple[Line, ...]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for line in lines:
        kind, _, content = line.text.partition(" ")
        if line.text == "else":
            if not result or not isinstance(result[-1], Branch) or result[-1].otherwise:
                line.fail("'else' right after an 'if'")
            result[-1] = replace(result[-1], otherwise=_body(line.inner))
        elif kind == "if":
            result.append(Branch(line.expr(content), _body(line.inner), ()))
        elif kind in TAGS or kind.startswith(INTRINSIC):
            match = line.match(rf"{re.escape(kind)} (\w+):(\d+)", f"'{kind} VARIABLE:EXTENT'")
            result.append(For(match[1], int(match[2]), _body(line.inner), kind))
        elif kind in SCOPES:
            result.append(Alloc(_region(line, content), kind))
        elif kind == "call":
            result.append(Call(*call_of(line, "call")))
        elif kind in ("prefetch", "prefetchw"):
            if not isinstance(access := line.expr(content), Load):
                line.fail(f"an element of a buffer after {kind!r}")
            result.append(Prefetch(access, kind == "prefetchw"))
        elif kind in ("assign", "init", "update"):
            result.append(_leaf(line, kind))
        else:
            kinds = ", ".join((*TAGS, f"{INTRINSIC}NAME", *SCOPES))
            line.fail(f"a statement ({kinds}, if, else, call, prefetch, prefetchw, assign, init, update)")
    return tuple(result)


def _leaf(line: Line, part: str) -> Leaf:
    head = line.match(rf"{part} ({NAME})\[(.*)\] (\w+)", f"'{part} BLOCK[iterator=value, ...] AGGREGATION'")

    def binding(text: str) -> tuple[tuple[str, Expr], ...]:
        return tuple((name, expression(node)) for name, node in keywords_of(text))

    bound = line.read(binding, head[2])
    symbol = symbol_of(line, head[3])
    where, writes, body = statements_of(line, symbol if part == "update" else "=")
    return Leaf(head[1], part, writes, body, head[3], where, bound)
