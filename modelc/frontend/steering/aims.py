"""Numbers of an input that a model treats in a way of their own: thresholds, ties of rounding, equal numbers that it
compares or among which it chooses, boxes that overlap, pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from modelc.frontend.control.structure import is_comparison, row_of
from modelc.frontend.steering.flow import (
    Consumers,
    Reader,
    constants,
    consumers_of,
    is_power_of_two,
    number,
    readers,
    target_type,
)
from modelc.frontend.steering.uses import Uses, held

FARTHEST = 300.0  # magnitude of numbers that are drawn for the sake of a threshold
FARTHEST_WHOLE = 2.0**31  # of whole ones
FARTHEST_RAISED = 10.0  # where the model raises something to their power
STEPS = (2.0**-12, 2.0**5)  # whose ties are drawn
MOST_CONSTANTS = 64  # of one operand that numbers are compared with
MOST_SPLITS = 1 << 12  # of the trees that read an input
RAISING = {"Exp", "Pow", "Sinh", "Cosh", "ReduceLogSumExp"}
CHOOSING = {"TopK": -1, "ArgMax": 0, "ArgMin": 0}  # and the axis if none is given
DEFAULTS = {"ThresholdedRelu": ("alpha", 1.0), "Shrink": ("lambd", 0.5)}
GATHERING = {"Gather", "GatherElements", "GatherND"}
TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
BYTE_PIXELS, UNIT_PIXELS = 255.0, 1.0
BYTE_SCALES = (40.0, 300.0)  # of pixels from 0 to 255: what they are divided by, and less than twice their mean
UNIT_MEANS = (0.2, 0.7)


@dataclass(frozen=True)
class Threshold:
    """Numbers of an input below and above `at` are treated in different ways. `at` itself may be drawn where `hit`:
    nothing jumps there, or nothing is rounded before. With a `column`, of that column of the last axis alone."""

    at: float
    hit: bool = True
    column: int | None = None


@dataclass(frozen=True)
class Boxes:
    """How NonMaxSuppression reads boxes: by center and size or by two corners; and how much they may overlap."""

    centered: bool
    overlap: float


@dataclass(frozen=True)
class Aims:
    """What to draw for one input beside ordinary numbers. `steps` are powers of two that it is rounded to multiples of,
    `tied` the axes along which the model chooses among its numbers, None for one that is not known, `pixels` the
    largest that its first operator expects, 0 where it says nothing; `scores` are those of boxes; `compared` are other
    inputs with whose numbers its own are compared. Indices may be counted `from_end`. Nothing is to be larger than
    `farthest` for the sake of a threshold."""

    thresholds: tuple[Threshold, ...] = ()
    steps: tuple[float, ...] = ()
    tied: tuple[int | None, ...] = ()
    pixels: float = 0.0
    boxes: Boxes | None = None
    scores: bool = False
    compared: tuple[str, ...] = ()
    from_end: bool = False
    farthest: float = FARTHEST


def aims(uses: Uses) -> dict[str, Aims]:
    """What to aim at for each input that has anything of the kind, found through what hands its numbers through, or
    scales and shifts them by one number."""
    consumers = consumers_of(uses)
    reading = {name: list(readers(uses, consumers, name)) for name in uses.inputs}
    compared = _compared(reading)
    of_inputs = {name: _aims(uses, name, reading[name], compared[name], consumers) for name in uses.inputs}
    return {name: aimed for name, aimed in of_inputs.items() if aimed != Aims(farthest=aimed.farthest)}


def _compared(reading: Mapping[str, Iterable[Reader]]) -> dict[str, tuple[str, ...]]:
    """For each input those of the others that a node compares with it, both as they are."""
    operands: dict[str, dict[str, int]] = {}  # of each comparison by its result: the inputs, and which operand each is
    for name, readers_of_input in reading.items():
        for r in readers_of_input:
            if is_comparison(row_of(r.node)) and r.exact and (r.scale, r.offset) == (1, 0):
                operands.setdefault(r.node.output[0], {})[name] = r.position
    return {
        name: tuple(
            other for sides in operands.values() if name in sides for other in sides if sides[other] != sides[name]
        )
        for name in reading
    }


def _aims(uses: Uses, name: str, reading: list[Reader], compared: tuple[str, ...], consumers: Consumers) -> Aims:
    farthest = FARTHEST if "float" in uses.types.get(name, "") else FARTHEST_WHOLE
    if any(r.node.op_type in RAISING for r in reading):
        farthest = FARTHEST_RAISED
    thresholds = {t for r in reading for t in _thresholds(uses, r) if abs(t.at) <= farthest}
    if any(_refuses_zero(r) for r in reading):
        thresholds = {t for t in thresholds if t.at}
    steps = {abs(step / r.scale) for r in reading if r.exact for step in _steps(uses, r)}
    pixels = [_pixels(uses, r) for r in reading if (r.scale, r.offset) == (1, 0)]
    boxes = [_boxes(uses, r.node) for r in reading if _is_read_as(r, "NonMaxSuppression", 0)]
    return Aims(
        tuple(sorted(thresholds, key=lambda t: (t.at, t.hit, -1 if t.column is None else t.column))),
        tuple(sorted(step for step in steps if STEPS[0] <= step <= STEPS[1])),
        tuple(dict.fromkeys(_tied(reading))),
        max(pixels, default=0.0),
        boxes[0] if boxes else None,
        any(_is_read_as(r, "NonMaxSuppression", 1) for r in reading),
        tuple(dict.fromkeys(compared)),
        _may_count_from_end(reading, consumers),
        farthest,
    )


def _is_read_as(reader: Reader, op: str, position: int) -> bool:
    return row_of(reader.node).name == op and reader.position == position


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    named = (a for a in node.attribute if a.name == name)
    return next((a.f if a.type == onnx.AttributeProto.FLOAT else float(a.i) for a in named), default)


def _refuses_zero(reader: Reader) -> bool:
    """Whether 0 becomes infinite there."""
    op = reader.node.op_type
    return op in ("Log", "Reciprocal") or (op in ("Div", "Mod", "Pow") and (reader.position == 1 or op == "Pow"))


# --- thresholds -------------------------------------------------------------------------------------------------------


def _thresholds(uses: Uses, reader: Reader) -> Iterator[Threshold]:
    node = reader.node
    if node.op_type in TREES:
        yield from _splits(reader)
    elif row_of(node).name and (reader.position == 0 or is_comparison(row_of(node))):
        bends, jumps = tuple(_bends(uses, node)), tuple(_jumps(uses, node, reader.position))
        yield from (Threshold(reader.original(at)) for at in bends)
        yield from (Threshold(reader.original(at), reader.exact) for at in jumps)


def _bends(uses: Uses, node: onnx.NodeProto) -> Iterable[float]:
    """Where the result bends, and does not jump."""
    op, inputs = node.op_type, node.input
    if op == "Clip":
        yield from (limit for x in inputs[1:3] if (limit := number(uses, x)) is not None)
        yield from (a.f for a in node.attribute if a.name in ("min", "max"))
    elif op in ("Min", "Max"):
        yield from (limit for x in inputs for limit in constants(uses, x, MOST_CONSTANTS))
    elif op == "HardSigmoid":
        alpha, beta = _attribute(node, "alpha", 0.2), _attribute(node, "beta", 0.5)
        yield from (-beta / alpha, (1 - beta) / alpha) if alpha else ()
    elif op == "QuantizeLinear":
        yield from _saturation(uses, node)
    else:
        yield from row_of(node).bends


def _jumps(uses: Uses, node: onnx.NodeProto, position: int) -> Iterable[float]:
    op = node.op_type
    if is_comparison(row_of(node)):
        yield from constants(uses, node.input[1 - position], MOST_CONSTANTS)
    elif op in ("Floor", "Ceil") or (op == "Cast" and "int" in target_type(node)):
        yield from (-2.0, -1.0, 0.0, 1.0, 2.0)
    elif op == "Sign" or (op == "Cast" and target_type(node) == "bool"):
        yield 0.0
    elif op in DEFAULTS:
        at = _attribute(node, *DEFAULTS[op])
        yield from (at,) if op == "ThresholdedRelu" else (-at, at)


def _saturation(uses: Uses, node: onnx.NodeProto) -> Iterable[float]:
    """The ends of what a quantized number can say."""
    zero = held(uses, node.input[2]) if len(node.input) > 2 else np.zeros(1, np.uint8)
    if zero is None or zero.dtype.kind not in "iu" or not zero.size:
        return
    limits = np.iinfo(zero.dtype)
    for scale in constants(uses, node.input[1], MOST_CONSTANTS):
        yield from ((limits.min - int(zero.flat[0])) * scale, (limits.max - int(zero.flat[0])) * scale)


def _splits(reader: Reader) -> Iterator[Threshold]:
    """The numbers at which trees branch, where they read the input's own columns."""
    lists = {a.name: a for a in reader.node.attribute}
    if not (reader.exact and reader.axes_kept and {"nodes_values", "nodes_featureids"} <= lists.keys()):
        return
    numbers, columns = lists["nodes_values"].floats, lists["nodes_featureids"].ints
    leaves = [mode == b"LEAF" for mode in lists["nodes_modes"].strings] if "nodes_modes" in lists else []
    splits = [k for k in range(min(len(numbers), len(columns))) if k >= len(leaves) or not leaves[k]]
    yield from (Threshold(reader.original(numbers[k]), True, columns[k]) for k in splits[:MOST_SPLITS])


def _steps(uses: Uses, reader: Reader) -> Iterable[float]:
    """The powers of two whose multiples a node rounds to."""
    op = reader.node.op_type
    if op == "QuantizeLinear" and reader.position == 0:
        yield from filter(is_power_of_two, constants(uses, reader.node.input[1], MOST_CONSTANTS))
    elif op == "Round" or (op == "Cast" and "int" in target_type(reader.node)):
        yield 1.0


# --- indices, choices, boxes, pixels ----------------------------------------------------------------------------------


def _may_count_from_end(reading: Iterable[Reader], consumers: Consumers) -> bool:
    """Whether an input is nothing but indices of gathers, of which -1 names the last row; no rows that are added, for
    ONNX Runtime fuses sums of embeddings to an operator that refuses negative ones."""
    indexing = [r.node for r in reading if r.node.op_type in GATHERING and r.position == 1]
    rows = [(row_of(r.node), r.position) for r in reading]
    known = all(
        row.numbers == "moves" or row.name == "Concat" or (row.name in GATHERING and position == 1)
        for row, position in rows
    )
    added = any(node.op_type == "Add" for gather in indexing for node, _ in consumers.get(gather.output[0], ()))
    return bool(indexing) and known and not added


def _tied(reading: Iterable[Reader]) -> Iterator[int | None]:
    """The axes along which nodes choose; a TopK that does not sort may give equal numbers in any order."""
    for reader in reading:
        node = reader.node
        chooses = row_of(node).name in CHOOSING and reader.position == 0
        if chooses and _attribute(node, "sorted", 1) and reader.exact:
            axis = int(_attribute(node, "axis", CHOOSING[node.op_type]))
            yield axis if reader.axes_kept else None


def _boxes(uses: Uses, node: onnx.NodeProto) -> Boxes:
    overlap = number(uses, node.input[3]) if len(node.input) > 3 else 0.0
    return Boxes(bool(_attribute(node, "center_point_box", 0)), 0.5 if overlap is None else overlap)


def _pixels(uses: Uses, reader: Reader) -> float:
    """The largest pixel, if the node looks like the normalisation of an image: less a mean, over a deviation."""
    node = reader.node
    if node.op_type not in ("Add", "Sub", "Mul", "Div") or reader.position > 0 or len(node.input) != 2:
        return 0.0
    numbers = np.abs(constants(uses, node.input[1], MOST_CONSTANTS))
    if not numbers.size or numbers.min() == 0:
        return 0.0
    if node.op_type == "Mul":
        numbers = 1 / numbers
    if BYTE_SCALES[0] <= numbers.min() and numbers.max() <= BYTE_SCALES[1]:
        return BYTE_PIXELS
    means = node.op_type in ("Add", "Sub") and UNIT_MEANS[0] <= numbers.min() and numbers.max() <= UNIT_MEANS[1]
    return UNIT_PIXELS if means else 0.0
