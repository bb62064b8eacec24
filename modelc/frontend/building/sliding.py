"""A part of a value that begins where data says and has a length that is known, as `x[i : i + 3]` in a loop's body."""

from __future__ import annotations

from math import prod

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode

HANDED_ON = ("Identity", "Reshape", "Cast")  # whose one number is that of their first input
DEEPEST = 32


def sliding(b: Builder, n: OnnxNode) -> bool:
    """Emits the Slice as a Gather of consecutive elements, if it is one of them; says whether it is. Where ONNX would
    give less, for the part begins before the first element or ends behind the last, a run ends with an error."""
    starts, ends = n.input(1), n.input(2)
    if not starts or not ends or b.data(starts) is not None or b.data(ends) is not None:
        return False
    steps, axes = (b.data(n.input(k)) if n.input(k) else np.asarray([d]) for k, d in ((4, 1), (3, 0)))
    if steps is None or axes is None or any(prod(b.shape(x)) != 1 for x in (starts, ends)) or axes.size != 1:
        return False
    (first, before), (last, behind) = _distance(b, starts), _distance(b, ends)
    shape, length = b.shape(n.inputs[0]), behind - before
    axis = int(axes.reshape(-1)[0]) % len(shape)
    if first != last or int(steps.reshape(-1)[0]) != 1 or not 0 < length <= shape[axis]:
        return False
    begin = b.emit(n, "Bound", (starts,), {"most": shape[axis] - length})
    places = b.constant(np.arange(length, dtype=np.int64), f"{n.outputs[0]}_places")
    at = b.emit(n, "Add", (b.reshape(n, begin, (1,)), places))
    b.emit(n, "Gather", (n.inputs[0], at), {"axis": axis}, n.outputs)
    return True


def _distance(b: Builder, name: str) -> tuple[str, int]:
    """One number as another value and what a constant adds to that."""
    added = 0
    for _ in range(DEEPEST):
        node = b.producers.get(name)
        if node is None:
            break
        if node.op in HANDED_ON and b.value(node.inputs[0]).dtype in ("int32", "int64"):
            name = node.inputs[0]
            continue
        numbers = [b.data(x) for x in node.inputs] if node.op in ("Add", "Sub") else []
        constants = [k for k, x in enumerate(numbers) if x is not None and x.size == 1]
        if len(constants) != 1 or (node.op == "Sub" and constants != [1]):
            break
        constant = int(numbers[constants[0]].reshape(-1)[0])  # type: ignore[union-attr]
        name, added = node.inputs[1 - constants[0]], added + (constant if node.op == "Add" else -constant)
    return name, added


__all__ = ["sliding"]
