"""Constants as kernels read them: laid out when compiling (ALT's offline transformation)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import Buffer
from modelc.ir.layout import Layout


def pack_constant(data: NDArray[Any], buffer: Buffer, layout: Layout) -> NDArray[Any]:
    """`data` (any shape of `buffer`'s size) stored by `layout`; padding is zero. Contiguous."""
    packed = data.reshape(buffer.shape)
    for primitive in layout.primitives:
        args = primitive.args
        if primitive.name == "reorder":
            packed = packed.transpose(args)
        elif primitive.name == "pad":
            packed = np.pad(packed, [(args[1], args[2]) if d == args[0] else (0, 0) for d in range(packed.ndim)])
        elif primitive.name == "store_at":
            packed = np.pad(packed, [(0, args[1]) if d == args[0] else (0, 0) for d in range(packed.ndim)])
        elif primitive.name == "unfold":
            dim, tile, stride = args
            tiles = primitive.shape(packed.shape)[dim]
            last = (tiles - 1) * stride + tile - packed.shape[dim]
            whole = np.pad(packed, [(0, last) if d == dim else (0, 0) for d in range(packed.ndim)])
            packed = np.stack([whole.take(range(t * stride, t * stride + tile), dim) for t in range(tiles)], dim)
        else:
            packed = packed.reshape(primitive.shape(packed.shape))
    return np.asarray(packed, order="C")
