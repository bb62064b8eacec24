"""The links of a chain: a Task with several reductions, each of which reads what the one before it makes, as Tasks of
their own that are tiled (tiling/tiled.py). Their stages together make the Task that the chain is scheduled as."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from modelc.ir.block import Block, Task
from modelc.ir.candidate import Stage
from modelc.space.rules.derivation import derived
from modelc.space.rules.rule import DoesNotApply
from modelc.space.sketches.tensorized import tensorized
from modelc.space.sketches.vectorized import tiled_space
from modelc.space.tiling.tiled import Tiled
from modelc.target import Target


def prepared_links(
    task: Task, target: Target, stages: list[Stage], tensorize: bool
) -> tuple[Task, tuple[Tiled, ...]] | None:
    """The Task after more stages, and its links in order; None if it is no chain, or a link cannot be tiled."""
    links = list[Tiled]()
    for names in links_of(task):
        done = len(stages)
        tiled = tiled_space(_part(task, names), target, stages, apart=True)[1]
        if tiled is None:
            return None
        units = [unit for unit in tensorized(tiled) if unit.unit.plain] if tensorize else []
        links.append((*units, tiled)[0])
        stages[:] = links[-1].stages
        try:
            for stage in stages[done:]:
                task = derived(task, stage)
        except DoesNotApply:
            return None
    blocks = {b.name: b for b in task.blocks}
    alike = all(blocks.get(b.name) == b for tiled in links for b in tiled.task.blocks)
    return (task, tuple(links)) if len(links) > 1 and alike else None


def links_of(task: Task) -> list[list[str]]:
    """The Blocks of each link: a reduction, the maps of its result and the maps that it alone reads. None where more
    than one buffer is between a link and the next, or more than one Block reads it, as in a softmax."""
    blocks = [b for b in task.blocks if isinstance(b, Block)]
    writer = {w.buffer: b.name for b in blocks for w in b.writes}
    link, count = dict[str, int](), 0
    for b in blocks:
        before = [link[writer[x]] for x in b.buffers_read if writer.get(x) in link]
        if b.reduction:
            link[b.name], count = count, count + 1
        elif before:
            link[b.name] = max(before)
    for b in reversed(blocks):
        if b.name not in link:
            readers = [link[r.name] for r in blocks if r.name in link and b.writes[0].buffer in r.buffers_read]
            if not readers:
                return []
            link[b.name] = min(readers)
    for k in range(count):
        written = {w.buffer for b in blocks if link[b.name] == k for w in b.writes}
        readers = [link[b.name] for b in blocks if link[b.name] != k for _ in b.buffers_read & written]
        last = k == count - 1
        if readers != ([] if last else [k + 1]) or (not last and written & {*task.outputs}):
            return []
    return [[b.name for b in blocks if link[b.name] == k] for k in range(count)]


def _part(task: Task, names: Collection[str]) -> Task:
    """The Task of some of the Blocks: what others read of them is its output."""
    own = [b for b in task.blocks if isinstance(b, Block) and b.name in names]
    written = {w.buffer for b in own for w in b.writes}
    read = {x for b in own for x in b.buffers_read}
    wanted = {x for b in task.blocks if b.name not in names for x in b.buffers_read} | {*task.outputs}
    anchor = next(b.name for b in own if b.reduction)
    return Task(
        task.name,
        tuple(b for b in task.buffers if b.name in read | written),
        _in_order(task, read - written),
        _in_order(task, written & wanted),
        tuple(own),
        anchor,
        task.constants & read,
        task.nodes,
    )


def _in_order(task: Task, names: Collection[str]) -> tuple[str, ...]:
    return tuple(b.name for b in task.buffers if b.name in names)


def between(links: Sequence[Tiled]) -> tuple[str, ...]:
    """The buffers that links but the last make for the next."""
    return tuple(name for tiled in links[:-1] for name in tiled.task.outputs)
