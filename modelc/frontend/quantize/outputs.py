"""What outputs look like: class scores, which are what a softmax gives, and rows of many numbers that a product gives;
and embeddings and hidden states, which are what a normalisation gives, by layer or by length, or an average of an
image, or a tanh of a product, also where rows are chosen or pooled behind it."""

from __future__ import annotations

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import attribute

MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast")
POOLING = (*MOVES, "Concat", "Gather", "Slice", "Transpose", "Mul", "Div", "Add", "Sub", "ReduceMean", "ReduceSum")
NORMALISING = ("LayerNormalization", "SkipLayerNormalization", "LpNormalization", "GlobalAveragePool")
BOUNDED = (*MOVES, "Expand", "Clip", "Max", "Add")  # lengths, that nothing is divided by 0
ROOTS = ("Sqrt", "ReduceL2")
LEAST_CLASSES = 10  # of what is no softmax's


def class_scores(floats: FloatModel) -> tuple[str, ...]:
    """The names of the outputs that look like class scores."""
    return tuple(value.name for value in floats.model.graph.output if _is_score(floats, value.name))


def _is_score(floats: FloatModel, name: str) -> bool:
    node = floats.producers.get(name)
    while node is not None and node.op_type in MOVES:
        node = floats.producers.get(node.input[0])
    if node is not None and node.op_type in ("Softmax", "LogSoftmax"):
        return True
    if node is not None and node.op_type == "Add":  # a bias behind a product
        producers = [floats.producers.get(x) for x in node.input if x not in floats.constants]
        node = producers[0] if len(producers) == 1 else None
    if node is None or node.op_type not in ("Gemm", "MatMul"):
        return False
    weights, columns = floats.array(node.input[1]), 0 if attribute(node, "transB", 0) else 1
    return weights is not None and weights.ndim == 2 and weights.shape[columns] >= LEAST_CLASSES


def embeddings(floats: FloatModel) -> tuple[str, ...]:
    """The names of the outputs that look like embeddings or hidden states, if their rows are long."""
    scores = class_scores(floats)
    names = (value.name for value in floats.model.graph.output)
    return tuple(name for name in names if name not in scores and _is_normalised(floats, name))


def _is_normalised(floats: FloatModel, name: str) -> bool:
    """Whether a normalisation writes the value, or what is pooled or moved to become it."""
    waiting, visited = [name], set[str]()
    while waiting:
        node = floats.producers.get(waiting.pop())
        if node is None or node.output[0] in visited:
            continue
        visited.add(node.output[0])
        if node.op_type in NORMALISING or (node.op_type == "Tanh" and _is_product(floats, node.input[0])):
            return True
        if node.op_type == "Div" and _is_length(floats, node.input[1]):
            return True
        waiting += node.input if node.op_type in POOLING else ()
    return False


def _is_length(floats: FloatModel, name: str) -> bool:
    """Whether a value is the length or the deviation of rows: a root, or a power of a sum."""
    node = floats.producers.get(name)
    while node is not None and node.op_type in BOUNDED:
        node = next((floats.producers[x] for x in node.input if x in floats.producers), None)
    if node is not None and node.op_type == "Pow":
        node = floats.producers.get(node.input[0])
        return node is not None and node.op_type in ("ReduceSum", "ReduceMean")
    return node is not None and node.op_type in ROOTS


def _is_product(floats: FloatModel, name: str) -> bool:
    """Whether a product with constant weights writes the value, with a bias or without."""
    node = floats.producers.get(name)
    if node is not None and node.op_type == "Add":
        producers = [floats.producers.get(x) for x in node.input if x not in floats.constants]
        node = producers[0] if len(producers) == 1 else None
    return node is not None and node.op_type in ("Gemm", "MatMul") and node.input[1] in floats.constants
