"""What of a quantized model is multiplied in bytes: what is estimated to be no slower so than in float32.

The model is cut into Tasks twice, with every contraction in bytes that can be, and with all in float32, in layouts by
rule; the estimated seconds of each contraction's Tasks are compared: those of closed forms first, and where these are
near each other, those of what is constructed. Whether what is quicker in float32 also makes the whole quicker is asked
at the end: next to each other, contractions in bytes need no numbers in float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from modelc.compile.config import Config
from modelc.compile.precision import constant_bytes
from modelc.compile.programs import attention_bytes
from modelc.ir.block import Task
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.layout.program import partition
from modelc.partition.draft import prepared
from modelc.passes.integer_contractions import CONTRACTIONS, WHOLE
from modelc.space.choose import Schedules
from modelc.target import Target

NEAR = 0.85  # of the seconds in float32 by closed forms: what takes less in bytes is quicker so
LEAST_LOST = 0.05  # of a contraction's seconds in float32, for bytes to be called slower: the price errs as much
LEAST_SAVED = 5e-6  # seconds: of what takes no longer than a call, prices say little

Reasons = Mapping[str, str]  # by the node of a contraction, why it is not multiplied in bytes


def slower_in_bytes(
    original: Graph,
    simplified: Callable[[Reasons], Graph],
    target: Target,
    config: Config,
    allowed: Callable[[int], int | None],
    schedules_on: Callable[[Target], Schedules],
) -> Reasons:
    """The quantized contractions of `original`, in whatever operators, that are quicker in float32, with the sentence
    that says so. `simplified` is the Graph with what it is told in float32; `allowed` says how many bytes parameters
    may have, of a model with constants of so many: weights stay bytes where they would be more."""
    if not any(node.op in ("DequantizeLinear", *WHOLE) for node in original.nodes):
        return {}
    quantized, whole = _contractions(original), simplified({})
    narrow = quantized & _multiplied_whole(whole)
    if not narrow:
        return {}
    everything = simplified(dict.fromkeys(narrow, "it is priced in float32"))
    narrow -= _multiplied_whole(everything)
    if not narrow:
        return {}
    row_bytes, cold_bytes = attention_bytes(target, config), constant_bytes(whole, config.policy.precision, target)
    schedules = schedules_on(replace(target, cold_bytes=cold_bytes))
    in_bytes, real = (partition(prepared(graph), row_bytes) for graph in (whole, everything))
    schedules.prepare([t for program in (in_bytes, real) for t in _named(program, narrow)], False)
    rough, otherwise = (_priced(program, narrow, schedules.optimistic) for program in (in_bytes, real))
    near = {name for name in narrow if rough[name] > NEAR * otherwise[name]}
    if not near:
        return {}
    schedules.prepare([t for program in (in_bytes, real) for t in _named(program, near)], True)
    seconds, otherwise = (_priced(program, near, schedules.seconds) for program in (in_bytes, real))
    reasons = {
        name: f"its price is {1e6 * seconds[name]:.1f} us in bytes and {1e6 * otherwise[name]:.1f} us in float32"
        for name in sorted(near)
        if seconds[name] > max((1 + LEAST_LOST) * otherwise[name], otherwise[name] + LEAST_SAVED)
    }
    model_bytes = constant_bytes(whole, "f32", target)
    if (most := allowed(model_bytes)) is not None:
        gains = {name: seconds[name] - otherwise[name] for name in reasons}
        reasons = {name: reasons[name] for name in _fitting(gains, everything, most - model_bytes)}
    if not reasons:
        return {}
    mixed = partition(prepared(simplified(reasons)), row_bytes)
    return reasons if _longer(in_bytes, mixed, schedules) > 0 else {}


def widened_bytes(graphs: Iterable[Graph], real: Collection[str]) -> int:
    """By how much the weights of the contractions `real` are larger as float32 than as bytes."""
    weights = {
        id(data): data
        for graph in graphs
        for node in graph.nodes
        if node.op in CONTRACTIONS and not set(real).isdisjoint(node.source)
        for data in (graph.values[node.inputs[1]].data,)
        if data is not None and data.dtype == np.float32
    }
    return sum(array.nbytes - array.size for array in weights.values())


def _fitting(gains: Mapping[str, float], real: Graph, room: int) -> list[str]:
    """Those that gain the most seconds for the bytes that their weights take more in float32, which have `room`."""
    larger = {name: widened_bytes([real], (name,)) for name in gains}
    fitting = list[str]()
    for name in sorted(gains, key=lambda name: gains[name] / max(larger[name], 1), reverse=True):
        if larger[name] <= room:
            room -= larger[name]
            fitting.append(name)
    return sorted(fitting)


def _contractions(graph: Graph) -> set[str]:
    """The nodes of a model that are contractions, but for those that are loops."""
    contractions = {s for node in graph.nodes if node.op in (*CONTRACTIONS, *WHOLE) for s in node.source}
    return contractions - {s for node in graph.nodes if node.bodies for s in node.source}


def _multiplied_whole(graph: Graph) -> set[str]:
    """The nodes of a model that contractions of whole numbers come from."""
    return {s for node in graph.nodes if node.op in WHOLE for s in node.source}


def _longer(program: Program, other: Program, schedules: Schedules) -> float:
    """The seconds that `program` takes more than `other`. Tasks that both have are not priced."""
    tasks = {bound.task.hash: bound.task for each in (program, other) for bound in each.kernels}
    calls = Counter(bound.task.hash for bound in program.kernels)
    calls.subtract(bound.task.hash for bound in other.kernels)
    schedules.prepare([tasks[key] for key, times in calls.items() if times], True)
    return sum(times * schedules.seconds(tasks[key]) for key, times in calls.items() if times)


def _priced(program: Program, names: Collection[str], seconds_of: Callable[[Task], float]) -> dict[str, float]:
    """The seconds of the Tasks of each of `names`. A Task names its contraction first; what it quantizes or stores for
    another one comes behind."""
    each = dict.fromkeys(names, 0.0)
    for task in _named(program, names):
        each[task.nodes[0]] += seconds_of(task)
    return each


def _named(program: Program, names: Collection[str]) -> list[Task]:
    """The Tasks of each of `names`."""
    return [bound.task for bound in program.kernels if bound.task.nodes and bound.task.nodes[0] in names]
