"""The constants of a package, all of their elements: params.bin, unpacked by the layouts of its kernels, equals what
these were made for, bit for bit; and that equals the model's constants where no pass computed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer
from modelc.ir.graph import Graph
from modelc.ir.program import BoundTask, Placed, Program
from modelc.package import Package
from modelc.package.spec import Made, Plan, WidenedConstant
from modelc.passes.flush_subnormals import subnormals
from modelc.plan.parameters import StoredConstant, stored_constant
from modelc.runtime.files import PARAMS
from modelc.space.opening import opening_of
from modelc.verify.kernels.blueprint import Scheduled
from modelc.verify.kernels.calls import Use
from modelc.verify.kernels.stored import logical

Array = NDArray[Any]
OTHERWISE = "is made otherwise when the package is opened than its schedule says"
Fault = tuple[Program, BoundTask, str, str]  # where, the value's name, and what is wrong with it


def wrong_constants(
    package: Package, plan: Plan, of_steps: Sequence[Sequence[Use]], scheduled: Mapping[str, Scheduled]
) -> Iterator[Fault]:
    """The constants of a package that are others than those that a plan's kernels were made for, or that opening makes
    these of. A package whose library holds its parameters has no file to compare."""
    path = package.path / PARAMS
    if not path.exists() or not path.stat().st_size:
        return
    params = _Params(np.memmap(path, np.uint8, "r"), {made.offset: made for made in package.manifest.made})
    compared: set[tuple[int | Made, int, str]] = set()
    for step, uses in zip(plan.steps, of_steps, strict=True):
        for iteration, use in enumerate(uses):
            for argument, buffer in zip(step.arguments, use.arguments, strict=True):
                placed = use.program.values.get(use.bound.values.get(buffer, ""))
                if argument.space not in ("params", "made") or placed is None:
                    continue
                offset = argument.offset + iteration * argument.stride
                place = params.made[offset] if argument.space == "made" else offset
                key = (place, id(use.program.constants[placed.root]), use.bound.task.hash + buffer)
                if key not in compared and (sentence := _wrong(params, place, placed, use, buffer, scheduled)):
                    yield use.program, use.bound, placed.name, sentence
                compared.add(key)


@dataclass(frozen=True)
class _Params:
    """The bytes of params.bin, and by offset the constants that opening makes of these."""

    data: Array
    made: Mapping[int, Made]

    def fault(self, offset: int, stored: StoredConstant) -> str | None:
        """What is wrong with a constant that is stored from `offset` on."""
        there = Buffer("", stored.data.dtype.name, stored.buffer.shape, stored.layout)
        begin = offset - stored.offset
        held = logical(there, self.data[begin : begin + there.bytes].tobytes())
        return difference(held, stored.data.reshape(held.shape))

    def fault_in_made(self, made: Made | None, stored: StoredConstant) -> str | None:
        """What is wrong with what a constant is made of."""
        if isinstance(made, WidenedConstant):
            widening = stored.widening
            if widening is None or (widening.extents, widening.strides) != (made.extents, made.strides):
                return OTHERWISE
            for begin, expected in ((made.source, widening.numbers), (made.factors, widening.factors)):
                held = self.data[begin : begin + expected.nbytes].view(expected.dtype).reshape(expected.shape)
                if (sentence := difference(held, expected)) is not None:
                    return sentence
            return None
        opening = opening_of(stored.made, stored.buffer, stored.layout)
        if made is None or opening is None:
            return OTHERWISE
        if (opening.outer, opening.rows, opening.columns, opening.inner) != made.shape:
            return OTHERWISE
        parts = StoredConstant(opening.sums.parts(), opening.stored, opening.layout)
        if made.widened:
            return self.fault_in_made(self.made.get(made.source), parts)
        return self.fault(made.source, parts)


def _wrong(
    params: _Params, place: int | Made, placed: Placed, use: Use, buffer: str, scheduled: Mapping[str, Scheduled]
) -> str | None:
    """What is wrong with the constant that a kernel reads from an offset on, or that is made when opening."""
    made, own = scheduled[use.bound.task.hash], use.bound.task.buffers
    region = next(b.name for mine, b in zip(own, made.task.buffers, strict=True) if mine.name == buffer)
    stored = stored_constant(use.program, placed, region, made.task, made.candidate, made.derived)
    return params.fault(place, stored) if isinstance(place, int) else params.fault_in_made(place, stored)


def wrongly_imported(program: Program, graph: Graph) -> Iterator[tuple[str, str]]:
    """The constants of a Program that have the name of one of the model's, and other numbers; zero where the model's
    are subnormal is the same, for a pass flushes these."""
    for name, data in program.constants.items():
        value = graph.values.get(name)
        if value is None or value.data is None or (value.dtype, value.shape) != (data.dtype.name, data.shape):
            continue
        expected = np.where(subnormals(value.data) & (data == 0), data, value.data)
        if (sentence := difference(data, expected)) is not None:
            yield name, sentence


def difference(held: Array, expected: Array) -> str | None:
    """Which elements differ, bit for bit; None where none does."""
    if held.dtype != expected.dtype:
        return f"is stored as {held.dtype}, expected {expected.dtype}"
    if held.shape != expected.shape:
        return f"has the shape {list(held.shape)}, expected {list(expected.shape)}"
    if np.array_equal(held, expected):
        return None
    bits = np.dtype(f"u{held.dtype.itemsize}")
    apart = np.asarray(held, order="C").view(bits) != np.asarray(expected, order="C").view(bits)
    if not apart.any():  # NaNs are equal to nothing
        return None
    place = np.unravel_index(int(np.argmax(apart)), apart.shape) if apart.ndim else ()
    where = [int(i) for i in place]
    return (
        f"has {int(apart.sum()):,} of {apart.size:,} elements that are not the model's: at {where} {held[place]}, "
        f"expected {expected[place]}"
    )
