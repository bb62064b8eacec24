"""Which outputs look like class scores: what a softmax gives, and rows of many numbers that a product gives."""

from __future__ import annotations

from math import prod

from modelc.frontend.quantize.floats import FloatModel

MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast")
SOFT = ("Softmax", "LogSoftmax")
LEAST_CLASSES = 10  # of what is no softmax's


def class_scores(floats: FloatModel) -> tuple[str, ...]:
    """The names of such outputs of a model."""
    return tuple(value.name for value in floats.model.graph.output if _is_score(floats, value.name))


def _is_score(floats: FloatModel, name: str) -> bool:
    node = floats.producers.get(name)
    while node is not None and node.op_type in MOVES:
        node = floats.producers.get(node.input[0])
    if node is None:
        return False
    if node.op_type in SOFT:
        return True
    if node.op_type == "Add":  # a bias behind a product
        producers = [floats.producers.get(x) for x in node.input if x not in floats.constants]
        node = producers[0] if len(producers) == 1 else None
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        return False
    weights = floats.array(node.input[1])
    return (
        weights is not None
        and weights.ndim == 2
        and prod(weights.shape) // weights.shape[_depth(node)] >= LEAST_CLASSES
    )


def _depth(node: object) -> int:
    """The dimension of a product's weights that is summed up."""
    return int(any(a.name == "transB" and a.i for a in node.attribute))  # type: ignore[attr-defined]
