"""Attention as exporters write it, of many shapes and masks, and the one Task that it becomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from partition_models import Model, tasks

from modelc.ir.block import Task

CACHE = 1 << 20
FUSED = "matmul {}peak exp total inverse softmax matmul_1"


def heads(m: Model, x: str, tokens: int, count: int, size: int, perm: list[int], batch: int = 1) -> str:
    return m.node("Transpose", m.node("Reshape", x, m.const([batch, tokens, count, size], "int64")), perm=perm)


def attention(
    m: Model,
    queries: int,
    keys: int,
    count: int = 2,
    size: int = 16,
    batch: int = 1,
    mask: str = "",
    joint: bool = False,
    values: bool = True,
) -> str:
    """Attention of `count` heads on [batch, tokens, count * size]; gives the output's name."""
    hidden = count * size
    if joint:
        m.node("Split", m.input("x", batch, queries, 3 * hidden), to=["q", "k", "v"], axis=2, num_outputs=3)
        q, k, v = "q", "k", "v"
    else:
        q = m.input("q", batch, queries, hidden)
        k, v = (m.input(n, batch, keys, hidden) for n in ("k", "v"))
    q = heads(m, q, queries, count, size, [0, 2, 1, 3], batch)
    k = heads(m, k, keys, count, size, [0, 2, 3, 1], batch)
    scores = m.node("MatMul", q, k)
    if mask == "added":
        scores = m.node("Add", m.node("Div", scores, m.const(2)), m.input("mask", batch, 1, 1, keys))
    if mask == "causal":
        visible = m.const(np.tri(queries, keys, dtype=bool)[None, None], "bool")
        scores = m.node("Where", visible, m.node("Mul", scores, m.const(0.5)), m.const(-3e38))
    weights = m.node("Softmax", scores, axis=-1, to="" if values else "y")
    if not values:
        return weights
    mixed = m.node("MatMul", weights, heads(m, v, keys, count, size, [0, 2, 1, 3], batch))
    merged = m.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return m.node("Reshape", merged, m.const([batch, queries, hidden], "int64"), to="y")


def fused_task(m: Model, folder: Path, output: str, blocks: str) -> Task:
    program = m.program(folder, output, attention_bytes=CACHE)
    assert tasks(program) == [blocks]
    return program.tasks[0].task


CASES = {
    "plain": dict(queries=24, keys=24),
    "odd": dict(queries=9, keys=9, size=7),
    "boundaries": dict(queries=37, keys=45, size=24),
    "long": dict(queries=5, keys=197, size=33),
    "one head": dict(queries=40, keys=20, count=1),
    "batch": dict(queries=17, keys=16, count=3, batch=5),
    "added mask": dict(queries=19, keys=35, mask="added"),
    "added mask in a batch": dict(queries=8, keys=35, mask="added", batch=3),
    "causal": dict(queries=33, keys=33, mask="causal"),
    "joint": dict(queries=21, keys=21, mask="causal", joint=True),
}
MAPS = {"added": "div add ", "causal": "mul where "}
