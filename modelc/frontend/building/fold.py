"""Folding while importing: a node whose inputs are all known becomes nodes of the Graph, as any other does, and these
are computed at once, as the operator library says. This is what makes chains that compute shapes vanish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.ir.graph import Value
from modelc.ops.direct import computed

Array = NDArray[Any]
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FINDING = {"NonZero", "Compress", "NonMaxSuppression", "Unique"}  # what they find of constants has a size that is known
KEPT = {"DequantizeLinear", "QuantizeLinear"}  # constants are better kept quantised
LIMIT = 1 << 22  # bytes read and written; larger foldings are left to passes.fold_constants


def folded(
    b: Builder, n: OnnxNode, normalise: Callable[[Builder, OnnxNode], None], inputs: Sequence[Array | None]
) -> tuple[Array, ...] | None:
    """What the node computes of `inputs`, by output; None where that is so much that it is left for later. `normalise`
    says what the node becomes; `b` is the Graph that will have the constants. Raises ModelError for what the operator
    does not take, and where the constants are too many or memory ends."""
    scratch = Builder(reserved={*n.outputs}, folded=b.folded)
    for name, array in zip(n.inputs, inputs, strict=True):
        if name and array is not None:
            scratch.values[name] = Value(name, array.dtype.name, array.shape, array)
    normalise(scratch, n)
    made = sum(scratch.value(x).bytes for x in n.outputs if x)
    read = sum(x.nbytes for x in inputs if x is not None)
    if n.op not in FINDING and (read + made > LIMIT or not b.has_room(made)):
        return None
    b.make_room(n, made)
    try:
        _compute(scratch)
    except MemoryError:
        raise n.fail("computing this constant needs more memory than there is") from None
    return tuple(_there(scratch, x) if x else np.zeros(0) for x in n.outputs)


def _compute(scratch: Builder) -> None:
    """Gives every value that a node makes its data."""
    values = scratch.values
    for node in scratch.nodes:
        results = computed(node, tuple(values[x] if x else None for x in node.inputs))
        for name, data in zip(node.outputs, results, strict=False):
            if name:
                values[name] = Value(name, values[name].dtype, values[name].shape, data)


def _there(scratch: Builder, name: str) -> Array:
    """The data of a value, as much as there is of it."""
    data = scratch.data(name)
    assert data is not None
    for axis, count in scratch.sizes.of(name).items():
        amount = scratch.data(count)
        assert amount is not None
        data = data[(slice(None),) * axis + (slice(int(amount)),)]
    return data.reshape(data.shape if scratch.sizes.of(name) else scratch.shape(name))
