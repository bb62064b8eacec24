"""A variant of a package with the memory of its results. Standard library and numpy alone."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from modelc.runtime.files import ModelError
from modelc.runtime.free import Free
from modelc.runtime.shown import names_shown
from modelc.runtime.tensors import Array, TensorInfo, Variant, address_of, aligned, bits_dtype, numpy_dtype

KEPT_OUTPUTS = 2  # of each output: while the last result is looked at, the next is computed

_ALONE = aligned((0,), np.dtype(np.uint8))
_NOBODY = sys.getrefcount(_ALONE.base)  # besides the array itself holds its memory


class Output:
    """An output, and its latest results: their memory is used again when nobody holds them any more, as from the system
    it would come page by page, at every run. What is given out are views, for which numpy counts references."""

    def __init__(self, info: TensorInfo) -> None:
        self.name, self.shape, self.dtype = info.name, info.shape, numpy_dtype(info.dtype)
        self.kept: list[tuple[Array, int]] = []  # with their addresses

    def idle(self) -> tuple[Array, int]:
        for kept in self.kept:
            if sys.getrefcount(kept[0].base) == _NOBODY:
                return kept
        array = aligned(self.shape, self.dtype)
        self.kept = [(array, address_of(array)), *self.kept[: KEPT_OUTPUTS - 1]]
        return self.kept[0]


class Bound:
    """A variant with what a call needs, made once."""

    def __init__(self, index: int, variant: Variant, sized: tuple[int, ...], free: Free | None) -> None:
        self.index, self.free = index, free
        self.sized = sized  # outputs whose shape depends on data
        self.cut = tuple(sorted({*sized, *(() if free is None else free.outputs)}))  # or on free sizes
        self.shapes = [info.shape for info in variant.inputs]
        self.outputs = [Output(info) for info in variant.outputs]
        self.input_pointers = (ctypes.c_void_p * len(variant.inputs))()
        self.output_pointers = (ctypes.c_void_p * len(variant.outputs))()
        self.inputs_at, self.outputs_at = map(ctypes.addressof, (self.input_pointers, self.output_pointers))

    def allocate(self) -> dict[str, Array]:
        results = {}
        for k, output in enumerate(self.outputs):
            array, self.output_pointers[k] = output.idle()
            results[output.name] = array.view()
        return results

    def place(self, out: Mapping[str, Array], inputs: Sequence[Array], shaped: bool = False) -> dict[str, Array]:
        names = [output.name for output in self.outputs]
        unknown = [name for name in out if name not in names]
        if unknown:
            raise ModelError(f"'out' names {names_shown(unknown)}; the model's outputs are {names_shown(names)}")
        results: dict[str, Array] = {}
        own = self.free.shapes(inputs) if self.free is not None and shaped else {}
        for k, output in enumerate(self.outputs):
            name, dtype = output.name, output.dtype
            array = out.get(name)
            shape = own.get(k, output.shape)
            if array is None:
                array = aligned(shape, dtype)
            elif array.shape not in (shape, output.shape) or array.dtype not in (dtype, bits_dtype(dtype.name)):
                description = f"{array.dtype.name} {list(array.shape)}"
                raise ModelError(f"'out' has {description} for output '{name}', which is {dtype.name} {list(shape)}")
            elif not (array.flags.c_contiguous and array.flags.writeable):
                raise ModelError(f"'out' has a read-only or non-contiguous array for output '{name}'")
            elif any(np.may_share_memory(array, other) for other in (*inputs, *results.values())):
                raise ModelError(f"'out' has an array for output '{name}' that overlaps another input or output")
            results[name] = array
            self.output_pointers[k] = address_of(array)
        return results
