"""Tensor intrinsics as data (TensorIR, section 4.1): what an instruction computes, and how to make LLVM emit it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from modelc.ir.block import Block
from modelc.ir.expr import DTYPES
from modelc.target.intrinsic_code import Code, VectorType


@dataclass(frozen=True)
class Digit:
    """A dimension of an operand: iterator // step % extent. The digits of an iterator make it up."""

    iterator: str
    step: int
    extent: int


@dataclass(frozen=True)
class Operand:
    """An operand of an intrinsic. `digits` say what each dimension of `shape` stands for."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    lies: str  # one of PLACES
    digits: tuple[Digit, ...]
    within: tuple[int, int] | None = None  # the least and the largest that its numbers may be; None: any

    @property
    def type(self) -> VectorType:
        """All of it as one vector."""
        return VectorType(self.dtype, prod(self.shape))


@dataclass(frozen=True)
class Table:
    """The bytes that tell the CPU its tiles' shapes: `fixed` at offsets, then a number for every tile from `rows_at`
    and `row_bytes_at` on, little-endian."""

    bytes: int
    fixed: tuple[tuple[int, int], ...]  # offset, value
    rows_at: int
    rows_width: int
    row_bytes_at: int
    row_bytes_width: int


@dataclass(frozen=True)
class Tiles:
    """Tile registers: how many, how large at most, and what handles them. `setup` is per thread, `permission` (an x86
    state component) per process."""

    count: int
    rows: int
    row_bytes: int
    permission: int | None
    table: Table
    setup: Code
    release: Code
    zero: Code
    load: Code
    load_once: Code | None  # of what nothing reads soon again
    store: Code


@dataclass(frozen=True)
class Intrinsic:
    """One intrinsic. Its accumulator is what `semantics` writes. Without an `implementation` no kernel can use it:
    Nests name it, and the interpreter executes them."""

    name: str
    architecture: str
    features: tuple[str, ...]
    instruction: str
    operands: tuple[Operand, ...]
    semantics: Block
    implementation: Code | None
    roundings: int
    throughput: float
    latency: int
    temporaries: int
    tiles: Tiles | None = None
    file: str | None = None  # as a target names it; None: shipped

    @property
    def code(self) -> Code:
        """The implementation, which every intrinsic of a kernel has."""
        assert self.implementation is not None, f"{self.name} has no implementation"
        return self.implementation

    @property
    def accumulator(self) -> Operand:
        return self.operand(self.semantics.writes[0].buffer)

    @property
    def multiplies(self) -> str:
        """The dtype whose products it adds up, as peaks name it: int8 for signed and unsigned bytes, and for those that
        it multiplies by wider numbers."""
        dtypes = [o.dtype for o in self.operands if o != self.accumulator]
        narrowest = min(dtypes, key=lambda dtype: DTYPES[dtype].itemsize)
        return {"uint8": "int8"}.get(narrowest, narrowest)

    @property
    def products(self) -> int:
        """Multiply-adds of one application."""
        return prod(i.extent for i in self.semantics.iters)

    def operand(self, name: str) -> Operand:
        return next(operand for operand in self.operands if operand.name == name)

    def cut(self, extents: Mapping[str, int]) -> Intrinsic:
        """The intrinsic on smaller tiles: its iterators with other extents, at most those that it has. Only what lies
        in tile registers can be smaller. Raises ValueError where an operand has no such part."""
        ranges = self.semantics.ranges
        smaller = {name: extent for name, extent in extents.items() if extent != ranges[name]}
        if not smaller:
            return self
        operands = []
        for operand in self.operands:
            shape = list(operand.shape)
            digits = list(operand.digits)
            for place, digit in enumerate(operand.digits):
                extent = smaller.get(digit.iterator)
                if extent is None or digit.step * digit.extent != ranges[digit.iterator]:
                    continue
                if operand.lies != "tile" or not 0 < extent <= ranges[digit.iterator] or extent % digit.step:
                    raise ValueError(f"{self.name} has no part with {extent} of {digit.iterator}")
                shape[place] = extent // digit.step
                digits[place] = replace(digit, extent=extent // digit.step)
            operands.append(replace(operand, shape=tuple(shape), digits=tuple(digits)))
        iters = tuple(replace(i, extent=smaller.get(i.name, i.extent)) for i in self.semantics.iters)
        return replace(self, operands=tuple(operands), semantics=replace(self.semantics, iters=iters))

    def allowed(self, architecture: str, features: Iterable[str]) -> bool:
        """Whether a CPU of these features runs it."""
        return self.architecture == architecture and set(self.features) <= set(features)
