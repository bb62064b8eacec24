"""Small Tasks of several kinds, and the bytes of their kernels."""

from __future__ import annotations

import hashlib

from three_ways import started, task_of

from modelc.codegen.kernels import compile_nest
from modelc.space.nest.build import build_nest
from modelc.target import load_target

SMALL = {
    "conv": task_of("Conv", {"pads": [1] * 4}, [(1, 5, 9, 7), (17, 5, 3, 3), (17,)], (1, 2), True),
    "matmul": task_of("MatMul", {}, [(17, 33), (33, 40)], (1,)),
    "softmax": task_of("Softmax", {"axis": -1}, [(7, 70)]),
    "add": task_of("Add", {}, [(3, 17, 5), (17, 1)]),
    "transposed": task_of("ConvTranspose", {"strides": [2, 2]}, [(1, 3, 5, 4), (3, 10, 4, 4)], (1,)),
}


def digests() -> str:
    """The bytes of small kernels, hashed."""
    target, code = load_target("x86-64-v3"), hashlib.sha256()
    for task in SMALL.values():
        kernel = compile_nest(build_nest(task, started(task, target)), "k", target)
        code.update(kernel.object or b"")
    return code.hexdigest()
