"""params.bin: constants as kernels read them, or what opening a package makes these of; equal bytes are stored once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelError
from modelc.ir.block import Buffer, Task, compact_strides
from modelc.ir.candidate import Candidate
from modelc.ir.layout import Layout
from modelc.ir.narrow import narrow_of
from modelc.ir.pack import pack_constant
from modelc.ir.program import Placed, Program
from modelc.ir.sizes import is_sized, same
from modelc.package.spec import Argument, Made, SummedConstant, WidenedConstant, aligned, made_bytes
from modelc.space.opening import Widening, opening_of, widening_of
from modelc.space.rules.derivation import constant_made
from modelc.space.rules.rule import Sums

Matrix = tuple[tuple[float, ...], ...]
COMPARED = 512  # bytes at least of two constants that are compared before all are


@dataclass
class Parameters:
    """params.bin while it is filled: equal bytes are stored once. Where constants are `opened`, sums of weights are
    stored as their parts; `made` says how opening makes them, by `matrices`."""

    opened: bool = False
    arrays: list[tuple[int, NDArray[Any]]] = field(default_factory=list)
    end: int = 0
    made: list[Made] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    _alike: dict[tuple[int, bytes], list[tuple[int, NDArray[Any]]]] = field(default_factory=dict)  # by some bytes
    _by_use: dict[tuple[int, str, str], tuple[int, object]] = field(default_factory=dict)

    def place(self, data: NDArray[Any], buffer: Buffer, layout: Layout) -> int:
        """The offset of `data` as a kernel reads it: in `layout` over the logical shape of `buffer`."""
        use = (id(data), f"{buffer.dtype}{buffer.shape}{buffer.strides}", str(layout))
        if use not in self._by_use:
            packed = pack_constant(data, buffer, layout)
            self._by_use[use] = (self._store(packed), data)  # holding `data` keeps its id taken
        return self._by_use[use][0]

    def argument(self, stored: StoredConstant) -> Argument:
        """Where a kernel finds a constant."""
        anew = self._opened(stored) if self.opened and not stored.offset else None
        if anew is None:
            return Argument("params", 0, self.place(stored.data, stored.buffer, stored.layout) + stored.offset)
        like = (constant for constant in self.made if replace(anew, offset=constant.offset) == constant)
        constant = next(like, anew)
        if constant is anew:
            self.made.append(anew)
        return Argument("made", 0, constant.offset)

    def _opened(self, stored: StoredConstant) -> Made | None:
        """How opening makes a constant, of what is stored then; None where it is stored as it is read."""
        opening = opening_of(stored.made, stored.buffer, stored.layout)
        if opening is not None:
            parts = StoredConstant(opening.sums.parts(), opening.stored, opening.layout)
            widened = self._widened(parts)
            source = self.place(parts.data, parts.buffer, parts.layout) if widened is None else widened.offset
            self.made += [] if widened is None else [widened]
            matrix: Matrix = tuple(map(tuple, opening.sums.matrix.tolist()))
            if matrix not in self.matrices:
                self.matrices.append(matrix)
            shape = (opening.outer, opening.rows, opening.columns, opening.inner)
            end, number = made_bytes(self.made), self.matrices.index(matrix)
            return SummedConstant(source, end, *shape, number, widened is not None)
        return self._widened(stored)

    def _widened(self, stored: StoredConstant) -> WidenedConstant | None:
        """How opening makes a constant of numbers of fewer bits; None where these do not hold it."""
        widening = stored.widening
        if widening is None:
            return None
        places = self._store(widening.numbers), self._store(widening.factors), made_bytes(self.made)
        return WidenedConstant(*places, widening.numbers.dtype.name, widening.extents, widening.strides)

    def _store(self, array: NDArray[Any]) -> int:
        content = array.reshape(-1).view(np.uint8)
        alike = self._alike.setdefault((content.size, content[:: content.size // COMPARED + 1].tobytes()), [])
        for offset, other in alike:
            if np.array_equal(other.reshape(-1).view(np.uint8), content):
                return offset
        alike.append((self.end, array))
        self.arrays.append(alike[-1])
        self.end += aligned(array.nbytes)
        return alike[-1][0]


@dataclass(frozen=True)
class StoredConstant:
    """What a kernel reads of a constant: what is `made` of the model's, in `layout` over the logical shape of `buffer`,
    from byte `offset`."""

    made: NDArray[Any] | Sums
    buffer: Buffer
    layout: Layout
    offset: int = 0

    @cached_property
    def data(self) -> NDArray[Any]:
        return self.made.whole() if isinstance(self.made, Sums) else self.made

    @property
    def widening(self) -> Widening | None:
        """How it is made of numbers of fewer bits; None where these do not hold it."""
        narrow = narrow_of(self.data.reshape(self.buffer.shape))
        return None if narrow is None else widening_of(narrow, self.buffer, self.layout)


def stored_constant(
    program: Program, placed: Placed, region: str, task: Task, candidate: Candidate, derived: Task
) -> StoredConstant:
    """The constant `placed` as the kernel of `task` wants it in `region`; a strided view of a constant is read where it
    is in its root."""
    data, buffer = program.constants[placed.root], derived.buffer(region)
    if placed.strides is not None:
        root = Buffer(placed.root, placed.dtype, data.shape)
        return StoredConstant(data, root, Layout(), placed.offset * data.itemsize)
    if placed.is_view:
        data = _part(data, placed)
    layout = candidate.layouts.get(region, buffer.layout)
    return StoredConstant(constant_made(task, candidate.stages, region, data), buffer, layout)


def _part(data: NDArray[Any], placed: Placed) -> NDArray[Any]:
    """What a compact view is of its root's data."""
    return data.reshape(-1)[placed.offset : placed.offset + placed.elements].reshape(placed.shape)


def compact_constant(data: NDArray[Any], placed: Placed) -> StoredConstant:
    """The constant as control flow takes it, row-major. What a run has of one that depends on sizes is its beginning.
    Raises ModelError where that is not all in one piece."""
    if not any(map(is_sized, placed.shape)):
        data = _part(data, placed)
        return StoredConstant(data, Buffer(placed.name, placed.dtype, placed.shape), Layout())
    pairs = zip(compact_strides(placed.shape), placed.physical_strides, placed.shape, strict=True)
    if placed.offset or not all(same(ours, theirs) or same(n, 1) for ours, theirs, n in pairs):
        raise ModelError(
            f"a loop or a branch takes the constant {placed.name!r}, of which sizes say more than its outermost "
            "dimension; expected one of which a run takes the beginning"
        )
    return StoredConstant(data, Buffer(placed.name, placed.dtype, data.shape), Layout())
