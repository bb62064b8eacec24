"""The table of operators: one row each, grouped in files by family."""

from modelc.errors import ModelError
from modelc.ir.graph import Node
from modelc.ops import (
    control,
    conv,
    deform,
    elementwise,
    found,
    fourier,
    gather,
    matmul,
    move,
    norm,
    packed,
    pad,
    pool,
    quantize,
    random,
    reduce,
    resize,
    rnn,
    sample,
    select,
    shape,
    softmax,
    trees,
)
from modelc.ops.operator import Operator

_FAMILIES = (
    conv, deform, matmul, packed, elementwise, pool, reduce, softmax, norm, move, pad, gather, shape, select, resize,
    quantize, rnn, sample, fourier, random, trees, control, found,
)  # fmt: skip
OPERATORS: dict[str, Operator] = {entry.name: entry for family in _FAMILIES for entry in family.OPERATORS}

REFUSED: dict[str, str] = {}  # known operators that cannot be taken, and why


def operator_of(node: Node) -> Operator:
    """The library's entry for `node`. Raises ModelError if there is none."""
    if node.op in OPERATORS:
        return OPERATORS[node.op]
    reason = REFUSED.get(node.op, "this operator is not in modelc's library")
    raise ModelError(f"node {node.name!r} ({node.op}): {reason}")
