"""Chains: several Tasks, each of which reads what the one before it writes, as one.

What is between two Tasks of a chain is a local of the whole: nothing else reads it, and it is no output. Who chains
them is layout/chains.py, by their price; how they are computed, tile by tile, is space/sketches/chain.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from modelc.errors import InvalidIR
from modelc.ir.block import Block, Buffer, Task
from modelc.ir.program import BoundTask, Program
from modelc.partition.tasks import unique_names


def chained(program: Program, between: Collection[str]) -> Program:
    """`program` in which each of the values `between` stays inside a Task: what writes it and what reads it are one.
    Raises InvalidIR where they cannot be."""
    tasks = {k: bound for k, bound in enumerate(program.tasks)}
    writers = {name: k for k, bound in enumerate(program.tasks) for name in bound.outputs}
    after = followers(program)
    for name in between:
        if writers.get(name) not in after:
            raise InvalidIR(
                f"value {name!r} cannot stay inside a task: it is an output, or not what one task alone reads"
            )
    for k in sorted(writers[name] for name in between):  # what comes first is joined first
        tasks[after[k]] = joined(tasks.pop(k), tasks[after[k]])
    return program.with_tasks([tasks[k] for k in sorted(tasks)], program.values, program.constants)


def followers(program: Program) -> dict[int, int]:
    """The Tasks (positions) that may begin a chain or go on with it, and the one Task that reads what each writes."""
    readers: dict[str, list[int]] = {}
    roots = {value.root for value in program.values.values() if value.is_view}
    for k, bound in enumerate(program.tasks):
        for name in bound.inputs:
            readers.setdefault(name, []).append(k)
    result: dict[int, int] = {}
    for k, bound in enumerate(program.tasks):
        if len(bound.outputs) != 1 or not _plain(bound) or program.grown:
            continue
        (name,) = bound.outputs
        value, reading = program.values[name], readers.get(name, [])
        if name in program.outputs or name in roots or value.is_view or value.strides is not None:
            continue
        if len(reading) == 1 and _plain(program.tasks[reading[0]]):
            result[k] = reading[0]
    return result


def _plain(bound: BoundTask) -> bool:
    """Whether a Task is made of Blocks alone, and computes no addresses."""
    return not bound.bodies and not bound.guards and all(isinstance(b, Block) for b in bound.task.blocks)


def joined(first: BoundTask, second: BoundTask) -> BoundTask:
    """One Task that computes what `first` and then `second` do, which alone reads what `first` writes."""
    (between,) = first.outputs
    values = dict.fromkeys([*first.inputs, *(v for v in second.inputs if v != between)])
    names = {v: f"x{k}" for k, v in enumerate(values)} | {v: f"y{k}" for k, v in enumerate(second.outputs)}
    taken, locals_ = {**names, between: "t0"}, [(b, k) for k, t in enumerate((first, second)) for b in t.task.locals]
    local_names = {(b.name, k): f"t{n}" for n, (b, k) in enumerate(locals_, 1)}
    buffers: dict[str, Buffer] = {}
    blocks: list[Block] = []
    constants = set[str]()
    for k, bound in enumerate((first, second)):
        task = bound.task
        renamed = {b.name: local_names.get((b.name, k)) or taken[bound.values[b.name]] for b in task.buffers}
        buffers |= {renamed[b.name]: replace(b, name=renamed[b.name]) for b in task.buffers}
        blocks += [b.renamed(renamed) for b in task.blocks if isinstance(b, Block)]
        constants |= {renamed[c] for c in task.constants}
    unique = unique_names([b.name for b in blocks], {*buffers})
    anchor = unique[len(first.task.blocks) + [b.name for b in second.task.blocks].index(second.task.anchor)]
    chain = Task(
        f"{first.task.name}_{second.task.name}",
        tuple(buffers.values()),
        tuple(names[v] for v in values),
        tuple(names[v] for v in second.outputs),
        tuple(replace(b, name=name) for b, name in zip(blocks, unique, strict=True)),
        anchor,
        frozenset(constants),
        tuple(dict.fromkeys((*first.task.nodes, *second.task.nodes))),
    )
    return BoundTask(chain, {names[v]: v for v in (*values, *second.outputs)})
