"""The constants of a package, all of their elements: params.bin, unpacked by the layouts of its kernels, equals what
these were made for, bit for bit; and that equals the model's constants where no pass computed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer
from modelc.ir.graph import Graph
from modelc.ir.program import BoundTask, Placed, Program
from modelc.package import Package
from modelc.package.spec import MadeConstant, Plan
from modelc.passes.flush_subnormals import subnormals
from modelc.plan.program import StoredConstant, stored_constant
from modelc.runtime.files import PARAMS
from modelc.space.opening import opening_of
from modelc.verify.kernels.blueprint import Scheduled
from modelc.verify.kernels.calls import Use
from modelc.verify.kernels.stored import logical

Array = NDArray[Any]
Fault = tuple[Program, BoundTask, str, str]  # where, the value's name, and what is wrong with it


def wrong_constants(
    package: Package, plan: Plan, of_steps: Sequence[Sequence[Use]], scheduled: Mapping[str, Scheduled]
) -> Iterator[Fault]:
    """The constants of a package that are others than those that a plan's kernels were made for, or that opening makes
    these of. A package whose library holds its parameters has no file to compare."""
    path = package.path / PARAMS
    if not path.exists() or not path.stat().st_size:
        return
    params = np.memmap(path, np.uint8, "r")
    compared: set[tuple[int | MadeConstant, int, str]] = set()
    sources = {constant.offset: constant for constant in package.manifest.made}
    for step, uses in zip(plan.steps, of_steps, strict=True):
        for iteration, use in enumerate(uses):
            for argument, buffer in zip(step.arguments, use.arguments, strict=True):
                placed = use.program.values.get(use.bound.values.get(buffer, ""))
                if argument.space not in ("params", "made") or placed is None:
                    continue
                offset = argument.offset + iteration * argument.stride
                source = sources[offset] if argument.space == "made" else None
                key = (source or offset, id(use.program.constants[placed.root]), use.bound.task.hash + buffer)
                if key not in compared and (sentence := _wrong(params, offset, source, placed, use, buffer, scheduled)):
                    yield use.program, use.bound, placed.name, sentence
                compared.add(key)


def _wrong(
    params: Array,
    offset: int,
    source: MadeConstant | None,
    placed: Placed,
    use: Use,
    buffer: str,
    scheduled: Mapping[str, Scheduled],
) -> str | None:
    """What is wrong with the constant that a kernel reads from `offset` on, or that is made of a `source`."""
    made, own = scheduled[use.bound.task.hash], use.bound.task.buffers
    region = next(b.name for mine, b in zip(own, made.task.buffers, strict=True) if mine.name == buffer)
    stored = stored_constant(use.program, placed, region, made.task, made.candidate, made.derived)
    if source is not None:
        opening = opening_of(stored.made, stored.buffer, stored.layout)
        shape = (source.outer, source.rows, source.columns, source.inner)
        if opening is None or (opening.outer, opening.rows, opening.columns, opening.inner) != shape:
            return "is made otherwise when the package is opened than its schedule says"
        stored, offset = StoredConstant(opening.sums.parts(), opening.stored, opening.layout), source.source
    there = Buffer(placed.name, stored.data.dtype.name, stored.buffer.shape, stored.layout)
    begin = offset - stored.offset
    held = logical(there, params[begin : begin + there.bytes].tobytes())
    return difference(held, stored.data.reshape(held.shape))


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
