"""Sequences of tensors: their lengths are known when compiling, so that a sequence is a list of the Graph's values, and
nothing of it is left in the Graph. Positions have to be constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.load.importing import Importing

Parts = tuple[str, ...]
LONGEST = 1 << 12  # values of a sequence


def _put(importer: Importing, node: OnnxNode, parts: Sequence[str]) -> None:
    if len(parts) > LONGEST:
        raise node.fail(f"its sequence has {len(parts)} tensors; expected at most {LONGEST} (LONGEST)")
    importer.sequences[node.outputs[0]] = tuple(parts)


def _given(importer: Importing, node: OnnxNode) -> Parts:
    if node.inputs[0] not in importer.sequences:
        raise node.fail(f"expected a sequence that the model makes, found {node.inputs[0]!r}")
    return importer.sequences[node.inputs[0]]


def _position(importer: Importing, node: OnnxNode, k: int, length: int, default: int) -> int:
    """Input `k` as a position below `length`."""
    data = importer.builder.steering(node, k, "the position")
    if data is None:
        return default
    at = int(data.reshape(-1)[0]) if data.size == 1 else length
    if not -length <= at < length:
        raise node.fail(f"expected a position from {-length} to {length - 1}, found {data.reshape(-1)[:4].tolist()}")
    return at % length


def _construct(importer: Importing, node: OnnxNode) -> None:
    _put(importer, node, node.inputs)


def _at(importer: Importing, node: OnnxNode) -> None:
    parts = _given(importer, node)
    importer.builder.bind(node, node.outputs[0], parts[_position(importer, node, 1, len(parts), 0)])


def _insert(importer: Importing, node: OnnxNode) -> None:
    parts = _given(importer, node)
    data, length = importer.builder.steering(node, 2, "the position"), len(parts)
    at = length if data is None else int(data.reshape(-1)[0])
    if not -length <= at <= length:
        raise node.fail(f"expected a position from {-length} to {length}, found {at}")
    at += length if at < 0 else 0
    _put(importer, node, (*parts[:at], node.inputs[1], *parts[at:]))


def _erase(importer: Importing, node: OnnxNode) -> None:
    parts = _given(importer, node)
    if not parts:
        raise node.fail("expected a sequence with something to erase, found an empty one")
    at = _position(importer, node, 1, len(parts), len(parts) - 1)
    _put(importer, node, (*parts[:at], *parts[at + 1 :]))


def _length(importer: Importing, node: OnnxNode) -> None:
    b = importer.builder
    b.bind(node, node.outputs[0], b.constant(np.asarray(len(_given(importer, node))), f"{node.name}/length"))


def _split(importer: Importing, node: OnnxNode) -> None:
    b, x = importer.builder, node.inputs[0]
    shape = b.shape(x)
    axis = _axis(node, len(shape))
    extent, sizes = shape[axis], b.steering(node, 1, "the sizes")
    if sizes is None:
        chunks = [1] * extent
    elif sizes.ndim == 0:
        by = int(sizes)
        if by < 1:
            raise node.fail(f"expected parts of at least 1, found {by}")
        chunks = [min(by, extent - k) for k in range(0, extent, by)]
    else:
        chunks = [int(n) for n in sizes.tolist()]
    if sum(chunks) != extent or min(chunks, default=0) < 0:
        raise node.fail(f"expected parts that make {extent} together, found {chunks[:8]}")
    if len(chunks) > LONGEST:
        raise node.fail(f"its sequence has {len(chunks)} tensors; expected at most {LONGEST} (LONGEST)")
    squeezed = sizes is None and not node.attrs.get("keepdims", 1)
    parts, start = [], 0
    for size in chunks:
        parts.append(_part(b, node, axis, start, size, squeezed))
        start += size
    _put(importer, node, parts)


def _part(b: Builder, node: OnnxNode, axis: int, start: int, size: int, squeezed: bool) -> str:
    """`size` of the input from `start` on along an axis, without the axis where it is `squeezed`."""
    x = node.inputs[0]
    data, shape = b.data(x), list(b.shape(x))
    shape[axis : axis + 1] = [] if squeezed else [size]
    if data is not None:
        part = data.take(range(start, start + size), axis).reshape(shape)
        b.make_room(node, part.nbytes)
        return b.constant(part, f"{x}_{start}")
    bounds = [b.constant(np.asarray([n], np.int64), f"{x}_bound") for n in (start, start + size, axis)]
    cut = b.emit(node, "Slice", (x, *bounds), {}, (b.fresh(f"{x}_{start}"),))
    return b.reshape(node, cut, shape, b.fresh(f"{x}_{start}")) if squeezed else cut


def _concatenate(importer: Importing, node: OnnxNode) -> None:
    b, parts = importer.builder, _given(importer, node)
    if not parts:
        raise node.fail("expected a sequence of tensors, found an empty one")
    stacked = bool(node.attrs.get("new_axis", 0))
    axis = _axis(node, len(b.shape(parts[0])) + stacked)
    constants = [data for data in map(b.data, parts) if data is not None]
    shapes = {b.shape(x)[:axis] + (() if stacked else (0,)) + b.shape(x)[axis + (not stacked) :] for x in parts}
    if len(shapes) > 1:
        shapes_seen = ", ".join(str(list(b.shape(x))) for x in parts[:4])
        raise node.fail(f"expected tensors that fit beside each other along axis {axis}, found {shapes_seen}")
    if len(constants) == len(parts):
        b.make_room(node, sum(data.nbytes for data in constants))
        whole = np.stack(constants, axis) if stacked else np.concatenate(constants, axis)
        b.bind(node, node.outputs[0], b.constant(whole, f"{node.name}/whole"))
        return
    if stacked:
        shape = b.shape(parts[0])
        target = (*shape[:axis], 1, *shape[axis:])
        parts = tuple(b.reshape(node, x, target, b.fresh(f"{node.outputs[0]}_part")) for x in parts)
    b.emit(node, "Concat", parts, {"axis": axis}, node.outputs)


def _axis(node: OnnxNode, rank: int) -> int:
    axis = int(node.attrs.get("axis", 0))
    if not -rank <= axis < rank:
        raise node.fail(f"expected an axis from {-rank} to {rank - 1}, found {axis}")
    return axis % rank


def _same(importer: Importing, node: OnnxNode) -> None:
    _put(importer, node, _given(importer, node))


ON_SEQUENCES: dict[str, Callable[[Importing, OnnxNode], None]] = {
    "SequenceConstruct": _construct,
    "SequenceEmpty": lambda importer, node: _put(importer, node, ()),
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": _length,
    "SplitToSequence": _split,
    "ConcatFromSequence": _concatenate,
}


def on_sequences(importer: Importing, node: OnnxNode) -> bool:
    """Whether the node makes or reads sequences, and was imported. Raises ModelError for one that cannot read any."""
    read = [x for x in node.inputs if x in importer.sequences]
    if node.domain == "" and node.op in ON_SEQUENCES:
        ON_SEQUENCES[node.op](importer, node)
    elif node.domain == "" and node.op == "Identity" and read:
        _same(importer, node)
    elif read:
        raise node.fail(f"it reads the sequence {read[0]!r}; sequences are read by {', '.join(ON_SEQUENCES)} alone")
    else:
        return False
    return True
