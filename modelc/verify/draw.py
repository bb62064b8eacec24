"""Drawing inputs that a model makes sense of, each for its role: masks that hide the ends of rows, lengths and
positions here, whole numbers and indices in draw_whole.py, real numbers in draw_real.py."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.steering.aims import Aims, aims
from modelc.frontend.steering.masks import (
    ADDED_MASK,
    BINARY_MASK,
    INVERTED_MASK,
    Dimension,
    Mask,
    counted_masks,
    is_called_mask,
    lengths,
    masks,
)
from modelc.frontend.steering.uses import Span, Uses, index_spans, not_negative
from modelc.frontend.steering.wholes import Whole, wholes
from modelc.ir.expr import DTYPES, NARROW, NARROW_FLOATS
from modelc.package import TensorInfo
from modelc.verify.draw_real import real_numbers
from modelc.verify.draw_whole import are_wide, counted_from_end, indices, limits_of, whole_numbers, with_turned_bits

ENDS, NOTHING, ANYWHERE = range(3)  # what masks hide, by turns from sample to sample


@dataclass(frozen=True)
class Roles:
    """What a model does with its inputs: `spans` says where the numbers of those that become indices have to lie,
    `positive` which ones are not negative, `masks` which numbers of an input show and hide a position, `counted` which
    masks hide nothing of a single row, `lengths` which dimensions an input may be lengths of, `wholes` how large its
    whole numbers may be (0 and 1 alone where nothing is said), and `aims` which numbers a model treats in a way of
    their own."""

    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    positive: Container[str] = ()
    masks: Mapping[str, Mask] = field(default_factory=dict)
    lengths: Mapping[str, Sequence[Dimension]] = field(default_factory=dict)
    wholes: Mapping[str, Whole] = field(default_factory=dict)
    aims: Mapping[str, Aims] = field(default_factory=dict)
    counted: Container[str] = ()


def roles_of(uses: Uses | None, claimed: Sequence[tuple[str, Span]]) -> Roles:
    """The roles of the model's inputs, where `claimed` says where some of its values have to lie; without the model,
    what is claimed of its inputs."""
    spans: dict[str, tuple[Span, ...]] = {} if uses is None else index_spans(uses, claimed)
    for name, span in claimed:
        spans[name] = (*spans.get(name, ()), span)
    if uses is None:
        return Roles(spans)
    return Roles(spans, not_negative(uses), masks(uses), lengths(uses), wholes(uses), aims(uses), counted_masks(uses))


def draw_inputs(
    tensors: Sequence[TensorInfo],
    roles: Roles,
    seed: int,
    sample: int = 0,
) -> dict[str, NDArray[Any]]:
    """This draws one array for each input. By turns from sample to sample masks hide the ends of their rows, nothing,
    and positions anywhere; the first position of a row is always shown. Flags, bools of one element, are set by turns
    too: two samples see each of them both ways. Numbers are small in every other sample, from the first on; in those
    between some are large. Indices walk over what they address, from sample to sample, and
    some of every other sample count from the end."""
    rng = np.random.default_rng((seed, sample))
    hides = (ENDS, NOTHING, ANYWHERE)[sample % 3]
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    drawn: dict[str, NDArray[Any]] = {}
    ordinary: list[TensorInfo] = []
    for tensor in tensors:
        name, shape = tensor.name, tensor.shape
        mask = roles.masks.get(name) or _mask_by_convention(tensor)
        if name in roles.spans:
            numbers = _indices(tensor, roles.spans[name], hides, seed, sample, rng)
            if roles.aims.get(name, Aims()).from_end and sample % 2:
                numbers = counted_from_end(numbers, roles.spans[name], rng)
        elif name in roles.lengths:
            numbers = _lengths(shape, _longest(shapes, roles.lengths[name]), hides, rng)
        elif mask is not None:
            whole = name in roles.counted and shape[:1] == (1,)
            numbers = np.where(_shown(shape, NOTHING if whole else hides, rng), mask.shown, mask.hidden)
        elif _holds_positions(tensor):
            numbers = _positions(shape, 0, 2 * shape[-1], hides, rng)
        else:
            numbers = _numbers(tensor, roles, sample, rng)
            ordinary.append(tensor)
        drawn[name] = _encoded(numbers, tensor.dtype)
    for tensor in ordinary:
        drawn[tensor.name] = _like_compared(tensor, drawn, roles, sample, rng)
    flags = [tensor for tensor in tensors if _is_flag(tensor)]
    return drawn | {flag.name: np.full(flag.shape, (sample + k) % 2 == 0) for k, flag in enumerate(flags)}


def _is_flag(tensor: TensorInfo) -> bool:
    """Whether an input is one bool, and no mask of a sequence of one element."""
    rows = is_called_mask(tensor.name) and len(tensor.shape) > 1
    return tensor.dtype == "bool" and prod(tensor.shape) == 1 and not rows


def _encoded(numbers: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The numbers as an array of the dtype, or their bits where NumPy has none."""
    if dtype == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype in NARROW:
        return numbers.astype(DTYPES[dtype]).view(np.uint8)
    return numbers.astype(np.dtype(dtype))


def _numbers(tensor: TensorInfo, roles: Roles, sample: int, rng: np.random.Generator) -> NDArray[Any]:
    """Numbers for an input that is no sequence, and addresses nothing."""
    name, dtype = tensor.name, tensor.dtype
    aimed = roles.aims.get(name, Aims())
    if _is_real(dtype):
        numbers = real_numbers(tensor, aimed, sample, rng)
    elif dtype in NARROW:
        return rng.integers(0, 4 if dtype.endswith("int2") else 16, tensor.shape)
    else:
        numbers = whole_numbers(tensor, roles.wholes.get(name), aimed, sample, rng)
    return np.abs(numbers) if name in roles.positive else numbers


def _like_compared(
    tensor: TensorInfo, drawn: Mapping[str, NDArray[Any]], roles: Roles, sample: int, rng: np.random.Generator
) -> NDArray[Any]:
    """What is drawn for an input, a quarter of it replaced by numbers of the inputs that it is compared with; in the
    same places where there are as many. Large whole numbers differ in one bit in every other of these."""
    name, dtype, numbers = tensor.name, tensor.dtype, drawn[tensor.name]
    whole = roles.wholes.get(name)
    for other in roles.aims.get(name, Aims()).compared:
        theirs = drawn.get(other, np.zeros(0))
        if theirs.dtype != numbers.dtype or not theirs.size or roles.wholes.get(other) != whole:
            continue
        if (name in roles.positive) != (other in roles.positive) or (whole is not None and whole.nonzero):
            continue
        equal = theirs if theirs.shape == numbers.shape else rng.choice(theirs.reshape(-1), numbers.shape)
        if are_wide(dtype, whole, sample):
            equal = with_turned_bits(equal, dtype, rng)
        numbers = np.where(rng.random(numbers.shape) < 0.25, equal, numbers)
    return numbers


def _is_real(dtype: str) -> bool:
    return dtype == "bfloat16" or dtype in NARROW_FLOATS or dtype.startswith("float")


# --- sequences --------------------------------------------------------------------------------------------------------


def _mask_by_convention(tensor: TensorInfo) -> Mask | None:
    """What an input that is called a mask usually holds: 0 where something is hidden; but a mask of attention that is
    given for each query is added to the scores, and bools of padding are set where something is hidden."""
    name = tensor.name.lower()
    if not is_called_mask(name) or tensor.dtype in NARROW:
        return None
    if _is_real(tensor.dtype):
        return ADDED_MASK if "att" in name and len(tensor.shape) > 2 else BINARY_MASK
    return INVERTED_MASK if "padding" in name and tensor.dtype == "bool" else BINARY_MASK


def _shown(shape: tuple[int, ...], hides: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which positions a mask shows. A row lies along the last axis, or along the one before if that has one element."""
    if hides == NOTHING or not prod(shape) or not shape:
        return np.ones(shape, np.bool_)
    axis = len(shape) - (2 if len(shape) > 2 and shape[-1] == 1 else 1)
    most = shape[axis]
    rows = (*shape[:axis], *shape[axis + 1 :])
    at = np.arange(most)
    if hides == ENDS:
        shown = at < _different_lengths(prod(rows), most, rng).reshape(*rows, 1)
    else:
        shown = (at == 0) | (rng.random((*rows, most)) < 0.5)
    return np.moveaxis(shown, -1, axis)


def _different_lengths(count: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Lengths up to `most`, different ones as long as there are enough. They are at least the half where that leaves
    enough; a single one is less than the whole."""
    least = max(1, most // 2)
    if count > most - least + 1:
        least = 1
    return np.resize(rng.permutation(np.arange(least, most + (count > 1 or most == 1))), count)


def _longest(shapes: Mapping[str, tuple[int, ...]], dimensions: Sequence[Dimension]) -> int:
    """How long a sequence may be, whichever of the dimensions it lies along."""
    extents = [shapes[d.tensor][d.axis] for d in dimensions if d.tensor in shapes]
    return min((extent for extent in extents if extent > 1), default=1)


def _lengths(shape: tuple[int, ...], most: int, hides: int, rng: np.random.Generator) -> NDArray[Any]:
    """Lengths of sequences, from 1 to `most`."""
    if hides == NOTHING:
        return np.full(shape, most)
    if hides == ENDS:
        return _different_lengths(prod(shape), most, rng).reshape(shape)
    return rng.integers(1, most + 1, shape)


def _holds_positions(tensor: TensorInfo) -> bool:
    return "position" in tensor.name.lower() and tensor.dtype in ("int32", "int64") and bool(tensor.shape)


def _positions(shape: tuple[int, ...], low: int, count: int, hides: int, rng: np.random.Generator) -> NDArray[Any]:
    """Positions that grow along the last axis, `count` of them from `low` on: one after the other where masks hide
    nothing, and otherwise with gaps."""
    length = shape[-1]
    if hides == NOTHING and length <= count:
        return np.broadcast_to(low + np.arange(length), shape)
    rows = [rng.choice(count, length, replace=length > count) for _ in range(prod(shape[:-1]))]
    return low + np.sort(np.reshape(rows, shape).astype(np.int64), -1)


def _indices(
    tensor: TensorInfo, spans: Sequence[Span], hides: int, seed: int, sample: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Indices within the spans; those that are called positions grow."""
    plain = all(span.column is None and not span.distinct for span in spans)
    if _holds_positions(tensor) and 0 not in tensor.shape and plain:
        low, high = limits_of(spans, 0)
        return _positions(tensor.shape, low, high - low + 1, hides, rng)
    return indices(tensor.shape, spans, seed, sample, rng)
