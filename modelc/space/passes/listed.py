"""The passes over Blocks by name, and a list of them applied to a Task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modelc.errors import ConfigError, TargetError
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.nest import Alloc, Branch, For, Stmt
from modelc.passes.spec import made_of
from modelc.space.nest.build import build_nest
from modelc.space.passes.autotile import Autotile
from modelc.space.passes.scheduling import Scheduling
from modelc.space.passes.tensorize import Tensorize
from modelc.target import Target
from modelc.target.passes import Spec

BlockPass = Callable[[Scheduling], Scheduling]

BLOCK_PASSES: dict[str, type] = {"tensorize": Tensorize, "autotile": Autotile}


def make_block_passes(specs: Sequence[Spec], target: Target, place: str = "passes") -> list[BlockPass]:
    """The passes that a configuration or a target lists, with their options. Raises ConfigError, which begins with
    `place`, for a pass or an option that there is not, and for one that is listed at a wrong place."""
    made: list[BlockPass] = []
    for k, spec in enumerate(specs):
        at = f"{place}[{k}]"
        name, apply = made_of(spec, BLOCK_PASSES, at, target=target)
        if isinstance(apply, Tensorize) and made:
            raise ConfigError(
                f"{at}: pass {name} is not the first: list it there, once, for tiles are whole ones of its own"
            )
        if isinstance(apply, Autotile) and any(isinstance(x, Autotile) for x in made) and apply.copies:
            raise ConfigError(
                f"{at}: pass {name} fills {apply.memory} around another memory, which it cannot: list the memory that "
                "programs fill first, and then caches, the nearest first"
            )
        made.append(apply)
    return made


def scheduled(task: Task, specs: Sequence[Spec], target: Target) -> Candidate:
    """The Candidate that the passes make of a Task. Raises ConfigError for an unknown pass, and TargetError where the
    Task does not fit a memory of the target."""
    scheduling, passes = Scheduling.of(task), make_block_passes(specs, target)
    for apply in passes:
        scheduling = apply(scheduling)
    candidate = scheduling.candidate()
    for tiling in (x for x in passes if isinstance(x, Autotile) and x.copies):
        taken = max(map(local_bytes, build_nest(task, candidate).phases), default=0)
        if taken > tiling.budget:
            raise TargetError(
                f"the copies that pass autotile makes take {taken} bytes, and {tiling.memory} has {tiling.budget} for "
                "them: give it less `bytes`, so that it chooses smaller tiles"
            )
    return candidate


def local_bytes(body: Sequence[Stmt]) -> int:
    """The most bytes of local buffers that are needed at once while a body runs; one of the same name takes the place
    of the one before."""
    live, most = dict[str, int](), 0
    for stmt in body:
        inner = 0
        if isinstance(stmt, Alloc):
            live[stmt.region.name] = stmt.region.bytes
        elif isinstance(stmt, For):
            inner = local_bytes(stmt.body)
        elif isinstance(stmt, Branch):
            inner = max(local_bytes(stmt.then), local_bytes(stmt.otherwise))
        most = max(most, sum(live.values()) + inner)
    return most
