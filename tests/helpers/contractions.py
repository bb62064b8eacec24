"""The Sketches of a Task that tile one contraction or window."""

from __future__ import annotations

from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.choose import DEFAULT
from modelc.space.sketches.contraction import Contraction
from modelc.space.sketches.listing import sketches
from modelc.target import Target


def contractions(task: Task, target: Target, policy: Policy = DEFAULT) -> list[Contraction]:
    """Every one that `policy` allows; at least one."""
    found = [s for s in sketches(task, target, policy) if isinstance(s, Contraction)]
    assert found, f"task {task.name} has no contraction to tile"
    return found
