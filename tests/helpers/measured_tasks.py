"""Tasks of every kind of data that a runner has to make, and measurements that take a moment."""

from __future__ import annotations

import numpy as np
from three_ways import host_target, started, task_of

from modelc.ir.candidate import Candidate
from modelc.measure import Effort
from modelc.policy import Policy

QUICK = Effort(sample_seconds=1e-4, least=3, most=5, seconds=0.05)
CONV = task_of("Conv", {"pads": [1] * 4}, [(1, 17, 9, 7), (33, 17, 3, 3), (33,)], (1, 2), True)
TASKS = {
    "conv": CONV,
    "bf16": task_of("MatMul", {}, [(33, 64), (64, 48)], (1,), dtypes=["bfloat16"] * 2),
    "int8": task_of("MatMulInteger", {}, [(33, 64), (64, 48)], (1,), dtypes=["int8"] * 2),
    "float16": task_of("Sigmoid", {}, [(5, 33)], dtypes=["float16"]),
    "bool": task_of("Not", {}, [(5, 33)], dtypes=["bool"]),
    "int64 indices": task_of("Gather", {}, [(7, 40), (5, 3)], dtypes=["float32", "int64"]),
    "int32 indices": task_of("GatherElements", {"axis": 1}, [(7, 40), (7, 3)], dtypes=["float32", "int32"]),
    "opaque": task_of("TopK", {"axis": -1}, [(6, 50), (1,)], steering={1: np.array([5])}, outputs=2),
    "indices of opaque": task_of("ScatterND", {}, [(9, 8), (4, 1), (4, 8)], dtypes=["float32", "int64", "float32"]),
    "softmax": task_of("Softmax", {"axis": -1}, [(7, 70)]),
}


def several(count: int) -> list[Candidate]:
    return [started(CONV, host_target(), Policy(winograd=False))] * count
