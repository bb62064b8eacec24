"""Blocks and Tasks: the meaning of operators over logical index space (Stripe, section 3.2; DESIGN section 4).

A Block is one parallel polyhedral block. Its text form:

    block conv [n:1 o:64 h:56 w:56 | c:64 r:3 s:3] add
      where h + r - 1 >= 0 and h + r - 1 < 56
      Y[n, o, h, w] += X[n, c, h + r - 1, w + s - 1] * W[o, c, r, s]

Iterators before the bar are spatial (each point writes its own element), those after it are reduced over by the
aggregation. Points where a `where` condition fails contribute nothing: an `assign` leaves the element as it was, a
reduction adds its identity. A Task is a fused group of Blocks over named buffers, the unit of scheduling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import inf, prod
from typing import Any

import numpy as np

from modelc.ir.expr import (
    DTYPES,
    Const,
    Expr,
    Load,
    Op,
    Var,
    const,
    loads,
    op,
    rewrite,
    select,
    show,
    show_conditions,
    substitute,
    walk,
)
from modelc.ir.layout import Layout
from modelc.ir.remembering import Remembering
from modelc.ir.sizes import most


@dataclass(frozen=True, slots=True)
class Iter:
    """An iterator over [0, extent)."""

    name: str
    extent: int
    reduce: bool = False

    def __str__(self) -> str:
        return f"{self.name}:{self.extent}"


@dataclass(frozen=True)
class Aggregation:
    """How the points of a reduction combine: identity and combination of a tuple of accumulators."""

    arity: int
    identity: Callable[[tuple[str, ...]], tuple[Const, ...]]
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]
    symbol: str


def _lowest(dtype: str) -> Const:
    if dtype == "bool":
        return Const(False, "bool")
    kind = DTYPES[dtype]
    return const(-inf, dtype) if dtype[0] in "fb" else const(int(np.iinfo(kind).min), dtype)


def _highest(dtype: str) -> Const:
    if dtype == "bool":
        return Const(True, "bool")
    kind = DTYPES[dtype]
    return const(inf, dtype) if dtype[0] in "fb" else const(int(np.iinfo(kind).max), dtype)


def _pick(better: str) -> Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]:
    """(value, index) pairs: the better value wins, of equal ones the lower index."""

    def combine(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        closer = op("and", op("eq", b[0], a[0]), op("lt", b[1], a[1]))
        wins = op("or", op(better, b[0], a[0]), closer)
        return select(wins, b[0], a[0]), select(wins, b[1], a[1])

    return combine


def _single(name: str) -> Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]:
    return lambda a, b: (op(name, a[0], b[0]),)


_NO_INDEX = Const(2**62)
AGGREGATIONS: dict[str, Aggregation] = {
    "assign": Aggregation(1, lambda d: (const(0, d[0]),), lambda a, b: b, "="),
    "add": Aggregation(1, lambda d: (const(0, d[0]),), _single("add"), "+="),
    "mul": Aggregation(1, lambda d: (const(1, d[0]),), _single("mul"), "*="),
    "max": Aggregation(1, lambda d: (_lowest(d[0]),), _single("max"), "max="),
    "min": Aggregation(1, lambda d: (_highest(d[0]),), _single("min"), "min="),
    "argmax": Aggregation(2, lambda d: (_lowest(d[0]), const(_NO_INDEX.value, d[1])), _pick("gt"), "argmax="),
    "argmin": Aggregation(2, lambda d: (_highest(d[0]), const(_NO_INDEX.value, d[1])), _pick("lt"), "argmin="),
}


@dataclass(frozen=True)
class Block(Remembering):
    """One parallel polyhedral block.

    `writes[i]` receives the aggregation of `body[i]`. Index expressions are quasi-affine in the iterators (affine.py)
    or contain Loads (gather-like addressing, which the analyses treat as unknown).
    """

    name: str
    iters: tuple[Iter, ...]
    writes: tuple[Load, ...]
    body: tuple[Expr, ...]
    aggregation: str = "assign"
    where: tuple[Expr, ...] = ()

    @cached_property
    def spatial(self) -> tuple[Iter, ...]:
        return tuple(i for i in self.iters if not i.reduce)

    @cached_property
    def reduction(self) -> tuple[Iter, ...]:
        return tuple(i for i in self.iters if i.reduce)

    @cached_property
    def ranges(self) -> Mapping[str, int]:
        return {i.name: i.extent for i in self.iters}

    @cached_property
    def reads(self) -> tuple[Load, ...]:
        """Every distinct Load of the body, the conditions and the indices written to, in order."""
        accesses = [x for e in (*self.body, *self.where) for x in loads(e)]
        accesses += [x for w in self.writes for i in w.indices for x in loads(i)]
        return tuple(dict.fromkeys(accesses))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every Load of the body, the conditions and what is written to, as often as it is there."""
        return tuple(x for e in (*self.body, *self.where, *self.writes) for x in loads(e))

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The iterators that the same mention, as often as they do."""
        return tuple(v.name for e in (*self.body, *self.where, *self.writes) for v in walk(e) if isinstance(v, Var))

    @cached_property
    def operations(self) -> tuple[Op, ...]:
        """Every Op of the body, those inside indices too."""
        return tuple(e for value in self.body for e in walk(value) if isinstance(e, Op))

    @cached_property
    def buffers_read(self) -> frozenset[str]:
        return frozenset(r.buffer for r in self.reads)

    def mapped(self, visit: Callable[[Expr], Expr | None]) -> Block:
        """Every expression of the block (body, conditions, indices written to) rewritten by `visit`."""
        writes = tuple(Load(w.buffer, tuple(rewrite(i, visit) for i in w.indices)) for w in self.writes)
        body = tuple(rewrite(b, visit) for b in self.body)
        return replace(self, writes=writes, body=body, where=tuple(rewrite(c, visit) for c in self.where))

    def renamed(self, buffers: Mapping[str, str]) -> Block:
        """The block over other buffer names."""

        def visit(e: Expr) -> Expr | None:
            return Load(buffers[e.buffer], e.indices) if isinstance(e, Load) and e.buffer in buffers else None

        block = self.mapped(visit)
        return replace(block, writes=tuple(Load(buffers.get(w.buffer, w.buffer), w.indices) for w in block.writes))

    def points(self) -> int:
        return prod(i.extent for i in self.iters)

    def __str__(self) -> str:
        iters, reduce = "", False
        for i in self.iters:  # a bar wherever spatial iterators and reductions take turns
            iters += f" | {i}" if i.reduce != reduce else f" {i}"
            reduce = i.reduce
        lines = [f"block {self.name} [{iters.strip()}] {self.aggregation}"]
        if self.where:
            lines.append(f"  where {show_conditions(self.where)}")
        symbol = AGGREGATIONS[self.aggregation].symbol
        lines += [f"  {show(w)} {symbol} {show(b)}" for w, b in zip(self.writes, self.body, strict=True)]
        return "\n".join(lines)


@dataclass(frozen=True)
class OpaqueBlock:
    """What has no affine form (top-k, sort, non-max suppression): a named meaning in ops/, an implementation in
    codegen/. `attrs` are JSON-like values in sorted order."""

    name: str
    meaning: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def buffers_read(self) -> frozenset[str]:
        return frozenset(self.inputs)

    def renamed(self, buffers: Mapping[str, str]) -> OpaqueBlock:
        inputs, outputs = (tuple(buffers.get(b, b) for b in names) for names in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)

    def __str__(self) -> str:
        return f"opaque {show_call(self.name, self.meaning, self.inputs, self.outputs, self.attrs)}"


def show_call(
    name: str, meaning: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attrs: tuple[tuple[str, Any], ...]
) -> str:
    """`sort TopK(x0, x1) -> (y0, y1) with axis=1, largest=True`"""
    given = f" with {', '.join(f'{k}={v!r}' for k, v in attrs)}" if attrs else ""
    return f"{name} {meaning}({', '.join(inputs)}) -> ({', '.join(outputs)}){given}"


AnyBlock = Block | OpaqueBlock


@lru_cache(maxsize=4096)
def compact_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


@dataclass(frozen=True)
class Buffer:
    """A tensor that a Task reads or writes, by logical shape.

    `layout` says how it is stored; `strides` (in elements, of the physical dimensions) are given where the storage is
    a Region of a larger root; without them it is compact.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout = field(default_factory=Layout)
    strides: tuple[int, ...] | None = None

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return self.layout.shape(self.shape)

    @property
    def physical_strides(self) -> tuple[int, ...]:
        return compact_strides(self.physical_shape) if self.strides is None else self.strides

    @property
    def logical_strides(self) -> tuple[int, ...] | None:
        """Strides of the logical dimensions; None where the layout does more than reorder them."""
        return self.layout.logical_strides(self.physical_strides)

    @property
    def bytes(self) -> int:
        """At most."""
        return prod(map(most, self.physical_shape)) * DTYPES[self.dtype].itemsize

    def __str__(self) -> str:
        stored = f" stored {self.layout}" if self.layout.primitives else ""
        strides = f" strides({', '.join(map(str, self.strides))})" if self.strides is not None else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{stored}{strides}"


@dataclass(frozen=True)
class Task(Remembering):
    """A fused subgraph: Blocks in order of execution over named buffers.

    `inputs` and `outputs` name the buffers that cross the Task's boundary; `constants` are those inputs whose contents
    are known when compiling (they may be packed); every other buffer is local to the Task.
    `anchor` names the Block that the schedule is built around; `nodes` the ONNX nodes covered.
    """

    name: str
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    blocks: tuple[AnyBlock, ...]
    anchor: str
    constants: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()

    def buffer(self, name: str) -> Buffer:
        return self._buffers[name]

    @cached_property
    def _buffers(self) -> Mapping[str, Buffer]:
        return {b.name: b for b in self.buffers}

    def block(self, name: str) -> AnyBlock:
        return self._blocks[name]

    @cached_property
    def _blocks(self) -> Mapping[str, AnyBlock]:
        return {b.name: b for b in self.blocks}

    @cached_property
    def dtypes(self) -> Mapping[str, str]:
        return {b.name: b.dtype for b in self.buffers}

    @property
    def locals(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.name not in self.inputs and b.name not in self.outputs)

    def canonical(self) -> Task:
        """The same Task with buffers and blocks named by position: equal for equal work."""
        return self._canonical

    @cached_property
    def _canonical(self) -> Task:
        buffers = {b.name: f"b{i}" for i, b in enumerate(self.buffers)}
        blocks = {b.name: f"s{i}" for i, b in enumerate(self.blocks)}
        return Task(
            "task",
            tuple(replace(b, name=buffers[b.name]) for b in self.buffers),
            tuple(buffers[x] for x in self.inputs),
            tuple(buffers[x] for x in self.outputs),
            tuple(replace(b.renamed(buffers), name=blocks[b.name]) for b in self.blocks),
            blocks[self.anchor],
            frozenset(buffers[x] for x in self.constants),
        )

    @cached_property
    def hash(self) -> str:
        """Equal Tasks (up to names) have equal hashes, from process to process."""
        canonical = self.canonical()
        vars(canonical)["hash"] = code = hashlib.sha256(str(canonical).encode()).hexdigest()[:16]
        return code

    def __str__(self) -> str:
        lines = [f"task {self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}) anchor {self.anchor}"]
        for b in self.buffers:
            kinds = (("const", self.constants), ("in", self.inputs), ("out", self.outputs))
            kind = next((kind for kind, names in kinds if b.name in names), "local")
            lines.append(f"  {kind} {b}")
        for block in self.blocks:
            lines += ["  " + line for line in str(block).splitlines()]
        if self.nodes:
            lines.append(f"  nodes {', '.join(map(repr, self.nodes))}")
        return "\n".join(lines)


def inline(block: Block, producer: Block) -> Block:
    """`block` with every read of what `producer` assigns replaced by the producer's body (Ansor's always-inline rule).

    Requires: `producer` assigns without conditions and writes its iterators plainly, `P[i, j, ...]`.
    """
    (write,), (body,) = producer.writes, producer.body
    names = [i.name for i in write.indices if isinstance(i, Var)]
    assert len(names) == len(write.indices) and producer.aggregation == "assign" and not producer.where

    def visit(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == write.buffer:
            return substitute(body, dict(zip(names, e.indices, strict=True)))
        return None

    return block.mapped(visit)


__all__ = ["AGGREGATIONS", "Aggregation", "AnyBlock", "Block", "Buffer", "Iter", "Op", "OpaqueBlock", "Task", "inline"]
