"""What a Task is run on, how its buffers store it, and whether what a kernel computed is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Block, Buffer, Task
from modelc.ir.candidate import Candidate
from modelc.ir.evaluate import evaluate
from modelc.ir.expr import DTYPES, Load, Var, loads
from modelc.ir.interpret import run_blocks
from modelc.ir.pack import pack_constant
from modelc.ops import MEANINGS
from modelc.ops.opaque import index_ranges
from modelc.space.rules.derivation import constant_data, derive

Array = NDArray[Any]
Arrays = dict[str, Array]
RTOL, ATOL = 1e-4, 1e-5  # of float32; ATOL is relative to the largest element too
COARSER = {"float16": 20.0, "bfloat16": 160.0}  # than float32, that is
FILTERED = 5e-4  # of the largest element: what fewer multiplications may be off


# --- drawing ------------------------------------------------------------------------------------------------------


def draw(task: Task, seed: int = 0) -> Arrays:
    """The inputs of `task`, logical shapes by buffer name: standard normal floats, small whole numbers, and where a
    number is an index, one that there is. Elements that a buffer stores in one place (what is repeated) are equal."""
    rng = np.random.default_rng(seed)
    bounds = bounds_of(task)
    buffers = [task.buffer(name) for name in task.inputs]
    drawn = {b.name: draw_array(rng, b.dtype, b.shape, bounds.get(b.name)) for b in buffers}
    repeated = [b for b in buffers if stored_bytes(b) < drawn[b.name].nbytes]
    return drawn | {b.name: from_storage(to_storage(drawn[b.name], b), b) for b in repeated}


def draw_array(rng: np.random.Generator, dtype: str, shape: Sequence[int], bound: int | None = None) -> Array:
    """With a `bound`, whole numbers below it."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    if kind.kind in "iu":
        low, high = (0, bound) if bound is not None else (0 if kind.kind == "u" else -9, 10)
        return np.asarray(rng.integers(low, max(high, low + 1), shape).astype(kind))
    return np.asarray(rng.standard_normal(shape)).astype(kind)


def bounds_of(task: Task) -> dict[str, int]:
    """For each buffer whose elements are used as indices, or make some, the least extent that they index."""
    bounds: dict[str, int] = {}

    def below(name: str, extent: int) -> None:
        bounds[name] = min(extent, bounds.get(name, extent))

    for block in reversed(task.blocks):  # consumers first: what makes an index is bounded as it is
        if not isinstance(block, Block):
            for name, _, _, high in index_ranges(block, {b.name: b.shape for b in task.buffers}):
                below(name, high + 1)
            continue
        for access in (*block.reads, *block.writes):
            for index, extent in zip(access.indices, task.buffer(access.buffer).shape, strict=True):
                for inner in _whole(index, task):
                    below(inner, extent)
        for write, body in zip(block.writes, block.body, strict=True):
            if write.buffer in bounds:
                for inner in _whole(body, task):
                    below(inner, bounds[write.buffer])
    return bounds


def _whole(e: Any, task: Task) -> list[str]:
    """The buffers of whole numbers that an expression loads from."""
    buffers = [x.buffer for x in loads(e) if isinstance(x, Load)]
    return [name for name in buffers if DTYPES[task.buffer(name).dtype].kind in "iu"]


def run_task(task: Task, inputs: Mapping[str, Array]) -> Arrays:
    """The outputs of the Task's Blocks, with NumPy: what the Task means."""
    buffers = {b.name: np.zeros(b.shape, DTYPES[b.dtype]) for b in task.buffers if b.name not in task.inputs}
    buffers |= {name: inputs[name].reshape(task.buffer(name).shape) for name in task.inputs}
    run_blocks(task.blocks, buffers, MEANINGS)
    return {name: buffers[name] for name in task.outputs}


# --- storing ------------------------------------------------------------------------------------------------------


def physical_index(buffer: Buffer) -> Array:
    """For each element (logical shape) its offset in the storage, in elements."""
    indices = buffer.layout.apply(tuple(Var(f"i{d}") for d in range(len(buffer.shape))), buffer.shape)
    grid = {
        f"i{d}": np.arange(n).reshape([-1 if k == d else 1 for k in range(len(buffer.shape))])
        for d, n in enumerate(buffer.shape)
    }
    flat = np.zeros(buffer.shape, np.int64)
    for index, stride in zip(indices, buffer.physical_strides, strict=True):
        flat = flat + evaluate(index, grid, {}) * stride
    return flat


def stored_bytes(buffer: Buffer) -> int:
    """From the first to the last element."""
    if not prod(buffer.physical_shape):
        return 0
    span = sum((n - 1) * s for n, s in zip(buffer.physical_shape, buffer.physical_strides, strict=True)) + 1
    return span * DTYPES[buffer.dtype].itemsize


def to_storage(data: Array, buffer: Buffer, poison: int = 0xFF) -> Array:
    """The bytes of `data` as `buffer` stores it; bytes between elements are `poison`."""
    raw = np.full(stored_bytes(buffer), poison, np.uint8)
    kind = np.dtype(np.uint8) if buffer.dtype == "bool" else DTYPES[buffer.dtype]
    raw.view(kind)[physical_index(buffer)] = data.astype(kind)
    return raw


def from_storage(raw: Array, buffer: Buffer) -> Array:
    return np.asarray(raw.view(DTYPES[buffer.dtype])[physical_index(buffer)])


def between(raw: Array, buffer: Buffer) -> Array:
    """The bytes of the storage that belong to no element."""
    unused = np.ones(raw.size // DTYPES[buffer.dtype].itemsize, np.bool_)
    unused[physical_index(buffer)] = False
    return raw.reshape(unused.size, -1)[unused] if unused.any() else raw[:0]


def packed(task: Task, candidate: Candidate, constants: Mapping[str, Array]) -> Arrays:
    """The bytes of each constant as the candidate's kernel reads it."""
    derived = derive(task, candidate.stages)
    result = {}
    for name, data in constants.items():
        buffer = derived.buffer(name)
        layout = candidate.layouts.get(name, buffer.layout)
        data = constant_data(task, candidate.stages, name, data)
        result[name] = pack_constant(data, buffer, layout).reshape(-1).view(np.uint8)
    return result


# --- comparing ----------------------------------------------------------------------------------------------------


def coarseness(dtypes: Sequence[str]) -> float:
    """How much coarser than float32 results are that come through values of these dtypes."""
    return max((COARSER.get(dtype, 1.0) for dtype in dtypes), default=1.0)


def slack_of(wanted: Array) -> float:
    """What every element of float32 or float64 results may be off by, at the least."""
    return ATOL * max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)))


def surely_close(computed: Array, wanted: Array, slack: float) -> bool:
    """Whether difference() finds nothing, as far as that is known without looking at each element: none is off by as
    much as `slack`, which is that of `wanted` or less. Not so where either has infinities or NaN."""
    if wanted.dtype.kind != "f" or wanted.dtype.itemsize < 4:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.abs(computed - wanted).max(initial=0.0) < 0.9 * slack)  # 0.9: of rounding here


def difference(computed: Array, wanted: Array, coarser: float = 1.0, filtered: bool = False) -> str:
    """What is wrong with `computed`, or nothing: whole numbers are equal; floats are close, relative to the element or
    to the largest of the tensor, `coarser` times as much as float32 ones have to be. `filtered`: by fewer
    multiplications."""
    if wanted.dtype.kind in "iub":
        bad = computed != wanted
    else:
        a, b = computed.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):
            largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
            slack = max(coarser * ATOL * max(1.0, largest), FILTERED * largest if filtered else 0.0)
            near = (np.abs(a - b) <= slack + coarser * RTOL * np.abs(b)) & np.isfinite(b)
            bad = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return ""
    at = tuple(int(k) for k in np.argwhere(bad)[0])
    return (
        f"{int(bad.sum())} of {bad.size} elements are wrong, the first at {list(at)}: {computed[at]}, not {wanted[at]}"
    )
