"""How large what a model holds may be. Every limit is looked at before anything of that size is allocated."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from modelc.errors import ModelError

LARGEST_FILE = (1 << 31) - 1  # bytes of an ONNX file: protobuf's own limit
MOST_DIMENSIONS = 32  # of any value
LARGEST_TENSOR = (1 << 31) - 1  # elements of any value: kernels count them in 32 bits
LARGEST_DENSE = 1 << 28  # bytes of a sparse initialiser made dense
FUNCTION_DEPTH = 32  # functions calling functions
MOST_NODES = 1 << 17  # of a model whose functions are inlined: compiling takes time and memory for each
MOST_UNROLLED = 1 << 13  # nodes that a loop becomes: those of its body, times its iterations
FEW_UNROLLED = 1 << 10  # nodes of the Graph that a loop may become which can be left to a run
LARGEST_FOLDED = 1 << 29  # bytes of all constants that the import makes


def check_shape(shape: Iterable[int], what: str) -> None:
    """Raises ModelError for a shape that no tensor has, or that is too large to be computed with."""
    shape = list(shape)
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has the impossible shape {shape}")
    if len(shape) > MOST_DIMENSIONS:
        raise ModelError(f"{what} has {len(shape)} dimensions; expected at most {MOST_DIMENSIONS}")
    if prod(max(d, 1) for d in shape) > LARGEST_TENSOR:
        raise ModelError(f"{what} has the shape {shape}; expected at most {LARGEST_TENSOR} elements")
