"""Inputs that hide positions of a sequence from a model, and inputs that say how long its sequences are. Which number
of a mask shows a position and which hides it is told by what the model adds to scores, or puts in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from modelc.frontend.control.structure import row_of
from modelc.frontend.steering.uses import ARITHMETIC, Uses, held
from modelc.ir.scalar import OPERATIONS

HIDING = -1e3  # added to a score, or put in its place: at most so much leaves nothing of its weight
DEEPEST = 16  # nodes between a sum and the softmax that takes it for scores
PROBES = np.array([0.0, 1.0, 7.0])  # what a mask may hold, and a number that only what moves numbers leaves as it is
MASK_INPUTS: Mapping[str, tuple[int, ...]] = {  # of operators that compute attention as a whole; then what is added
    "Attention": (3, 5),
    "MultiHeadAttention": (4, 5),
    "QAttention": (5,),
}
BITWISE = ("bitand", "bitor", "bitxor", "bitnot")  # which no mask is made by
LENGTHS = re.compile(r"(^|[^a-z]|seq|sequence|input)len(gth)?s?($|[^a-z])")


@dataclass(frozen=True)
class Mask:
    """The number of an input that shows a position to the model, and the number that hides it."""

    shown: float
    hidden: float


BINARY_MASK, INVERTED_MASK, ADDED_MASK = Mask(1, 0), Mask(0, 1), Mask(0, -1e4)


@dataclass(frozen=True)
class Dimension:
    """Axis `axis` of input `tensor`."""

    tensor: str
    axis: int


def is_called_mask(name: str) -> bool:
    return "mask" in name.lower()


# --- what shows and what hides ----------------------------------------------------------------------------------------


def masks(uses: Uses) -> dict[str, Mask]:
    """The inputs by which the model hides scores from a softmax. A real input that is added to scores as it is counts
    where its name says that it is a mask; it may be a bias as well."""
    meanings = {name: _meaning(uses, name) for name in uses.inputs}
    return {name: mask for name, mask in meanings.items() if mask is not None}


def _meaning(uses: Uses, name: str) -> Mask | None:
    """Follows what the probes become in the model (their image) to where it hides a score."""
    images = {name: PROBES}
    for _, node in uses.nodes:
        if not any(x in images for x in node.input):
            continue
        with np.errstate(all="ignore"):
            mask = _hiding(uses, node, name, images)
            if mask is not None:
                return mask
            image = _image(uses, node, name, images)
        if image is not None:
            images[node.output[0]] = image.astype(np.float64)
    return None


def _hiding(uses: Uses, node: onnx.NodeProto, name: str, images: Mapping[str, NDArray[Any]]) -> Mask | None:
    """What hides a score if this node does so by the input."""
    for k in MASK_INPUTS.get(node.op_type, ()):
        if k < len(node.input) and node.input[k] in images:
            return _of_attention(uses, name, images[node.input[k]])
    if node.op_type == "Where" and node.input[0] in images:
        chosen, otherwise = (_numbers(uses, x, images) for x in node.input[1:3])
        if chosen is not None or otherwise is not None:
            branches = [np.zeros(PROBES.size) if numbers is None else numbers for numbers in (chosen, otherwise)]
            return _hiding_number(np.where(images[node.input[0]] != 0, *branches))
    positions = [k for k, x in enumerate(node.input) if x in images]
    if node.op_type in ("Add", "Sub") and len(positions) == 1:
        position = positions[0]
        if not _is_data(uses, node.input[1 - position], name):
            return None
        image = images[node.input[position]]
        if node.op_type == "Add" and _is_unchanged(image) and _is_real(uses, name):
            return ADDED_MASK if is_called_mask(name) and _is_score(uses, node.output[0]) else None
        return _hiding_number(-image if node.op_type == "Sub" and position == 1 else image)
    return None


def _of_attention(uses: Uses, name: str, image: NDArray[Any]) -> Mask | None:
    """A mask of real numbers is added to the scores; any other one shows where it is not 0."""
    if _is_unchanged(image) and _is_real(uses, name):
        return ADDED_MASK if is_called_mask(name) else None
    return _hiding_number(image) or _hiding_number(np.where(image != 0, 0, HIDING))


def _hiding_number(image: NDArray[Any]) -> Mask | None:
    """Which of 0 and 1 hides a score that the image is added to, or stands for."""
    if image[0] - image[1] <= HIDING:
        return BINARY_MASK
    return INVERTED_MASK if image[1] - image[0] <= HIDING else None


def _is_unchanged(image: NDArray[Any]) -> bool:
    return np.array_equal(image, PROBES)


def _is_real(uses: Uses, name: str) -> bool:
    return "float" in uses.types.get(name, "")


def _is_data(uses: Uses, value: str, name: str) -> bool:
    """Whether the value depends on other inputs' data."""
    return bool(uses.reached(value) - {name})


def _image(uses: Uses, node: onnx.NodeProto, name: str, images: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """What the node makes of the probes. Numbers that differ from place to place, as those of a causal mask do, but
    depend on no data, are taken to leave them as they are."""
    op, inputs = node.op_type, node.input
    if op == "Where":
        condition, chosen, otherwise = (_numbers(uses, x, images) for x in inputs)
        if condition is not None and chosen is not None and otherwise is not None:
            return np.where(condition != 0, chosen, otherwise)
        moved = [x for x in inputs[1:3] if x in images]
        return images[moved[0]] if len(moved) == 1 and inputs[0] not in images else None
    row = row_of(node)
    scalar = OPERATIONS.get(row.scalar) if row.scalar not in BITWISE else None
    if scalar is not None and len(inputs) == 2:
        a, b = (_numbers(uses, x, images) for x in inputs)
        if a is not None and b is not None:
            return np.asarray(scalar.meaning(a, b))
        unknown, image = (inputs[0], b) if a is None else (inputs[1], a)
        return image if op in ("And", "Or") or not _is_data(uses, unknown, name) else None
    image = images.get(inputs[0])
    if image is None:
        return None
    if scalar is not None and scalar.arity == len(inputs):
        return np.asarray(scalar.meaning(image))
    if op == "Cast":
        to = next((a.i for a in node.attribute if a.name == "to"), 0)
        return image != 0 if to == onnx.TensorProto.BOOL else image
    return image if 0 in row.holds and op != "Concat" else None


def _numbers(uses: Uses, value: str, images: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """What the value holds for each probe: the same for all of them where it is a constant."""
    return images[value] if value in images else _constant(uses, value)


def _constant(uses: Uses, value: str) -> NDArray[Any] | None:
    """The number that every element of a constant is, for each probe."""
    node = uses.producers.get(value)
    while node is not None and row_of(node).holds == (0,):
        value = node.input[0]
        node = uses.producers.get(value)
    array = held(uses, value)
    if node is not None and node.op_type == "ConstantOfShape":
        array = next((onnx.numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1))
    if array is None or not array.size or (array != array.flat[0]).any():
        return None
    return np.full(PROBES.size, array.flat[0], np.float64)


def _is_score(uses: Uses, value: str) -> bool:
    """Whether a softmax takes the value, or what is made of it element by element."""
    reached = {value}
    for _ in range(DEEPEST):
        readers = [node for _, node in uses.nodes if reached & {*node.input}]
        if any(node.op_type == "Softmax" for node in readers):
            return True
        rows = ((node, row_of(node)) for node in readers)
        reached = {node.output[0] for node, row in rows if row.holds or row.scalar in ARITHMETIC}
    return False


def counted_masks(uses: Uses) -> frozenset[str]:
    """The inputs of which sums say how many keys GroupQueryAttention has: of one sequence as many as there is room
    for."""
    grouped = (node for _, node in uses.nodes if node.op_type == "GroupQueryAttention")
    return frozenset[str]().union(*(uses.reached(x) for node in grouped for x in node.input[5:6]))


# --- how long sequences are -------------------------------------------------------------------------------------------


def lengths(uses: Uses) -> dict[str, tuple[Dimension, ...]]:
    """The inputs that say how long sequences are: their names say so, or they are ends of keys for ONNX Runtime's
    attention. And the dimensions that they may be lengths of: those that the model leaves free, if there are any."""
    counting = [name for name in uses.inputs if LENGTHS.search(name.lower()) and _counts(uses, name)]
    counting += [
        x
        for _, node in uses.nodes
        for k in MASK_INPUTS.get(node.op_type, ())[:1]
        if node.domain == "com.microsoft"
        for x in node.input[k : k + 1]
        if _counts(uses, x)
    ]
    return {name: tuple(_measured(uses, name)) for name in counting}


def _counts(uses: Uses, name: str) -> bool:
    """Whether an input is whole numbers, at most one for each sequence."""
    shape = uses.inputs.get(name)
    return shape is not None and len(shape) <= 1 and uses.types[name] in ("int32", "int64")


def _measured(uses: Uses, name: str) -> Iterator[Dimension]:
    shapes = {x: shape for x, shape in uses.inputs.items() if shape is not None and len(shape) > 1 and x != name}
    every = [(Dimension(x, axis), shape[axis]) for x, shape in shapes.items() for axis in range(1, len(shape))]
    free = [dimension for dimension, extent in every if not isinstance(extent, int)]
    yield from free or [dimension for dimension, _ in every]
