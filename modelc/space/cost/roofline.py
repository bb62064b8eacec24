"""The roofline of a Task: seconds that no schedule of it is faster than, by the machine's peak and bandwidths."""

from __future__ import annotations

from collections.abc import Iterable

from modelc.ir.block import Block, Task
from modelc.ir.expr import DTYPES
from modelc.space.analysis.work import block_flops, reached_bytes
from modelc.target import Target

ALIKE = {"uint8": "int8"}  # dtypes that are multiplied by the same units as another


def roofline_seconds(tasks: Iterable[Task], target: Target, cores: int = 1) -> float:
    """Of a Task that may be computed as any of `tasks`, on `cores` cores, its constants lying where `cold_bytes` of the
    target do: the longest that its operations take at the peak, its boundary in the innermost cache that holds it,
    and its constants take to come. 0 where an opaque Block hides what is done."""
    return min((_seconds(task, target, cores) for task in tasks), default=0.0)


def _seconds(task: Task, target: Target, cores: int) -> float:
    blocks = [block for block in task.blocks if isinstance(block, Block)]
    if len(blocks) < len(task.blocks):
        return 0.0
    compute = sum(block_flops(b) / (1e9 * cores * _peak(task, b, target)) for b in blocks)
    moved = {name: reached_bytes(task, name) for name in (*task.inputs, *task.outputs)}
    constants = sum(size for name, size in moved.items() if name in task.constants)
    boundary = sum(moved.values()) - constants
    return max(
        compute,
        boundary / (1e9 * _bandwidth(target, boundary, cores)),
        constants / (1e9 * _bandwidth(target, max(constants, target.cold_bytes), cores)),
    )


def _peak(task: Task, block: Block, target: Target) -> float:
    """GFLOP/s of one core by the fastest unit that multiplies what the Block reads."""
    read = {ALIKE.get(dtype, dtype) for dtype in (task.dtypes[load.buffer] for load in block.reads)}
    if len(read) == 1 and read <= target.peak.keys():
        return target.peak[min(read)]
    wide = all(DTYPES[dtype].itemsize >= 4 for dtype in read)
    return target.peak["float32"] if wide else max(target.peak.values())


def _bandwidth(target: Target, size: int, cores: int) -> float:
    """GB/s at which `cores` cores read a working set of `size` bytes."""
    for cache in target.caches:
        if size <= cache.bytes:
            return cache.bandwidth_gbs * cores
    return target.memory_gbs(cores)
