"""The C functions of opaque Blocks, compiled and called."""

from __future__ import annotations

import ctypes
import subprocess
from itertools import pairwise

import numpy as np

from modelc.codegen.opaque import opaque_source

FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


def run(folder, meaning, attrs, arrays, outputs, cuts=(0, 1)):
    """The C function's outputs; `cuts` are fractions of the extent at which it is cut."""
    tensors = [[(a.dtype.name, a.shape) for a in group] for group in (arrays, outputs)]
    source, extent, scratch_bytes = opaque_source("kernel", meaning, attrs, *tensors)
    name = f"k{len(list(folder.iterdir()))}"
    (folder / f"{name}.c").write_text(source)
    subprocess.run(["cc", *FLAGS, f"{name}.c", "-o", f"{name}.so"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / f"{name}.so"))
    arrays = [np.ascontiguousarray(a) for a in arrays]
    scratch = np.zeros(scratch_bytes // 8 + 1, np.uint64)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, *outputs, scratch)]
    bounds = [round(c * extent) for c in cuts]
    for begin, end in pairwise(bounds):
        library.kernel(*pointers, ctypes.c_int32(begin), ctypes.c_int32(end))
    return outputs
