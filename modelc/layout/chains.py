"""Which Tasks become a chain: consecutive ones, where one kernel with local intermediate results is priced lower.

    A -> B -> C        prices of A, B, C, of A-B, B-C and of A-B-C; of all ways to cut the sum is least

Asked for are Tasks whose result alone leaves the second-level cache: what stays there is near without a chain. A Task
of maps becomes a prologue of its reader in the same way: upsampling before a convolution, the scaling of squeeze and
excitation. Three Tasks are asked for where both of their pairs are priced lower than apart. The sum is least by dynamic
programming, from the first Task to the last; a Task that reads several results goes on with the chain of one of them.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol

from modelc.ir.block import Task
from modelc.ir.program import Program
from modelc.layout.costs import Cost
from modelc.partition.chains import followers, joined
from modelc.target import Target

LONGEST = 3  # Tasks of a chain
LEAST_GAIN = 0.03  # of the seconds of its Tasks, that a chain is priced lower: prices of unlike loops err by as much
CACHE_SHARE = 0.5  # of the second-level cache: a larger result has left it before it is read

Path = tuple[int, ...]  # positions of Tasks, each of which reads what the one before it writes


class ChainCost(Cost, Protocol):
    """What Tasks cost, and which of them are computed as chains."""

    target: Target

    def is_fused(self, task: Task) -> bool:
        """Whether no Sketch of `task` stores a whole intermediate tensor between two reductions."""


def chains_by_price(program: Program, cost: ChainCost) -> tuple[str, ...]:
    """The values that stay between the Tasks of a chain, so that the prices of all Tasks add up to least."""
    seconds = _priced(program, cost)
    before: dict[int, set[int]] = {path[-1]: set() for path in seconds}
    for path in seconds:
        before[path[-1]] |= {*path[-2:-1]}
    least, taken = dict[int, float](), dict[int, Path]()  # of all that a Task waits for, where it ends a chain
    for end in sorted(before):
        sums = {
            path: price + sum(least[k] for member in path for k in before[member] - {*path})
            for path, price in seconds.items()
            if path[-1] == end
        }
        taken[end] = min(sums, key=sums.__getitem__)
        least[end] = sums[taken[end]]
    inside = set[int]()
    for end in sorted(before, reverse=True):
        if end not in inside:
            inside |= {*taken[end][:-1]}
    return tuple(program.tasks[k].outputs[0] for k in sorted(inside))


def _priced(program: Program, cost: ChainCost) -> dict[Path, float]:
    """Seconds of single Tasks and of possible chains, these with LEAST_GAIN as a margin."""
    large = CACHE_SHARE * cost.target.second.bytes
    after = {
        k: end for k, end in followers(program).items() if program.values[program.tasks[k].outputs[0]].bytes > large
    }
    seconds = dict[Path, float]()
    paths: list[Path] = [*after.items()]
    for _ in range(1, LONGEST):
        joint = {path: reduce(joined, [program.tasks[k] for k in path]).task for path in paths}
        chains = {path: task for path, task in joint.items() if cost.is_fused(task)}
        single = {(k,): program.tasks[k].task for path in chains for k in path}
        cost.prepare([*single.values(), *chains.values()], True)
        seconds |= {path: cost.seconds(task) for path, task in single.items()}
        seconds |= {path: cost.seconds(task) / (1 - LEAST_GAIN) for path, task in chains.items()}
        saving = {path for path in chains if seconds[path] < seconds[path[:1]] + seconds[path[1:]]}
        paths = [(*path, after[path[-1]]) for path in saving if path[-1] in after]
        paths = [path for path in paths if path[1:] in saving]
    return seconds
