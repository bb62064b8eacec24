"""Derivation rule: a local is stored in a wider dtype than the Task says, where it is read as that anyway.

    P[m, n] = bfloat16(E[m, n])                       P[m, n] = E[m, n]
    Y[m, d] += float32(P[m, n]) * V[n, d]      ->     Y[m, d] += P[m, n] * V[n, d]

Rounding pays for instructions that multiply what is rounded; without them it is one more thing to do.
"""

from __future__ import annotations

from dataclasses import replace

from modelc.ir.block import AnyBlock, Block, Task
from modelc.ir.expr import Expr, Load, Op, cast, dtype_of, walk
from modelc.space.rules.rule import DoesNotApply, replaced


def widen_rule(task: Task, buffer: str, dtype: str) -> Task:
    """`task` with its local `buffer` stored as `dtype`, to which every reader casts it. Raises DoesNotApply."""
    source = task.buffer(buffer)
    if source not in task.locals:
        raise DoesNotApply(f"{buffer} is no local")

    def read(e: Expr) -> Expr | None:
        wide = isinstance(e, Op) and e.name == "cast" and e.dtype == dtype
        return e.args[0] if wide and isinstance(e.args[0], Load) and e.args[0].buffer == buffer else None  # type: ignore[union-attr]

    def written(value: Expr) -> Expr:
        inner = value.args[0] if isinstance(value, Op) and value.name == "cast" else value
        return inner if dtype_of(inner, task.dtypes) == dtype else cast(dtype, value)

    blocks: list[AnyBlock] = []
    for block in task.blocks:
        if not isinstance(block, Block):
            if buffer in {*block.inputs, *block.outputs}:
                raise DoesNotApply(f"an opaque block reads or writes {buffer}")
            blocks.append(block)
            continue
        inside = [e for x in (*block.body, *block.where) for e in walk(x)]
        reads = [e for e in inside if isinstance(e, Load) and e.buffer == buffer]
        if len(reads) != sum(read(e) is not None for e in inside):
            raise DoesNotApply(f"block {block.name} reads {buffer} otherwise than as {dtype}")
        if any(w.buffer == buffer for w in block.writes) and block.aggregation != "assign":
            raise DoesNotApply(f"{buffer} is accumulated")
        new = block.mapped(read)
        body = tuple(written(b) if w.buffer == buffer else b for w, b in zip(new.writes, new.body, strict=True))
        blocks.append(replace(new, body=body))
    return replaced(task, blocks, replace(source, dtype=dtype))
