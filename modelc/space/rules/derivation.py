"""Derivation rules by name, and what Tasks become by them. Each application is a named stage of a Candidate.

Others are a user's own. A program registers them; an installed package names them as entry points of the group
"modelc.rules", each a Rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from numpy.typing import NDArray

from modelc.errors import ConfigError, InvalidIR
from modelc.ir.block import Task
from modelc.ir.candidate import Stage
from modelc.ir.verify import verify_task
from modelc.space.rules.caching import cache_read_rule, cache_write_rule, inline_rule, pad_rule, stage_write_rule
from modelc.space.rules.defer import defer_rule
from modelc.space.rules.deinterleave import deinterleave_rule
from modelc.space.rules.dimensions import collapse_rule, expose_rule, factor_rule, split_rule
from modelc.space.rules.extend import extend_rule, lengthen_rule
from modelc.space.rules.fuse import fuse_rule, fused_constant
from modelc.space.rules.online import online_rule
from modelc.space.rules.rfactor import rfactor_rule
from modelc.space.rules.rule import DoesNotApply, Rule, Sums
from modelc.space.rules.strassen import error_bound as strassen_bound
from modelc.space.rules.strassen import strassen_rule, summed_kernel
from modelc.space.rules.widen import widen_rule
from modelc.space.rules.winograd import error_bound as winograd_bound
from modelc.space.rules.winograd import transformed_kernel, winograd_rule
from modelc.target import Target

GROUP = "modelc.rules"  # of entry points
_RULES = {
    rule.name: rule
    for rule in (
        Rule("inline", inline_rule),
        Rule("pad", pad_rule),
        Rule("cache_read", cache_read_rule),
        Rule("cache_write", cache_write_rule),
        Rule("stage_write", stage_write_rule),
        Rule("rfactor", rfactor_rule),
        Rule("online", online_rule),
        Rule("deinterleave", deinterleave_rule),
        Rule("collapse", collapse_rule),
        Rule("split", split_rule),
        Rule("factor", factor_rule),
        Rule("expose", expose_rule),
        Rule("fuse", fuse_rule, constant=fused_constant),
        Rule("winograd", winograd_rule, constant=transformed_kernel, error_bound=winograd_bound),
        Rule("strassen", strassen_rule, constant=summed_kernel, error_bound=strassen_bound),
        Rule("defer", defer_rule),
        Rule("widen", widen_rule),
        Rule("extend", extend_rule),
        Rule("lengthen", lengthen_rule),
    )
}
SHIPPED = frozenset(_RULES)  # the names of our own


def register_rule(rule: Rule) -> None:
    """Makes `rule` known: Tasks are derived by it where it proposes so, and Candidates may name it. Raises ConfigError
    if another one has its name."""
    if _RULES.setdefault(rule.name, rule) != rule:
        raise ConfigError(f"there is a derivation rule {rule.name!r} already: a rule needs a name of its own")


@cache
def _installed() -> None:
    """Registers what installed packages bring."""
    for entry in entry_points(group=GROUP):
        rule = entry.load()
        if not isinstance(rule, Rule):
            raise ConfigError(f"the entry point {entry.name!r} of the group {GROUP} ({entry.value}) is no modelc.Rule")
        register_rule(rule)


def rules() -> dict[str, Rule]:
    """Every rule that is known, by its name."""
    _installed()
    return dict(_RULES)


def derived(task: Task, stage: Stage) -> Task:
    """`task` after one stage. Raises DoesNotApply; InvalidIR if the rule is not known. A Task keeps what rules make of
    it: Sketches, Candidates and Nests all go the same way from it."""
    rule = _RULES.get(stage.rule) or rules().get(stage.rule)
    if rule is None:
        raise InvalidIR(f"there is no derivation rule {stage.rule!r}; known are {', '.join(sorted(_RULES))}")
    kept: dict[tuple[Rule, Stage], Task | DoesNotApply] = vars(task).setdefault("_derived", {})
    if (rule, stage) not in kept:
        try:
            kept[rule, stage] = rule.apply(task, **stage.args)
        except DoesNotApply as reason:
            kept[rule, stage] = reason.with_traceback(None)
    made = kept[rule, stage]
    if isinstance(made, DoesNotApply):
        raise made
    return made


def derive(task: Task, stages: tuple[Stage, ...]) -> Task:
    """`task` after `stages`, in order."""
    for stage in stages:
        task = derived(task, stage)
    return task


def constant_data(task: Task, stages: tuple[Stage, ...], name: str, data: NDArray[Any]) -> NDArray[Any]:
    """What constant `name` of `task` holds after `stages`, some of which compute it anew."""
    made = constant_made(task, stages, name, data)
    return made.whole() if isinstance(made, Sums) else made


def constant_made(task: Task, stages: tuple[Stage, ...], name: str, data: NDArray[Any]) -> NDArray[Any] | Sums:
    """The same as the Sums that it is, where no stage after those that add up changes its shape."""
    made: NDArray[Any] | Sums = data
    for stage in stages:
        anew, after = rules()[stage.rule].constant, derived(task, stage)
        if anew is not None and not isinstance(made, Sums):
            made = anew(task, name, made, **stage.args)
        elif anew is not None and isinstance(made, Sums) and after.buffer(name).shape != task.buffer(name).shape:
            made = anew(task, name, made.whole(), **stage.args)
        task = after
    return made


def rounding_error(task: Task, stages: tuple[Stage, ...]) -> float:
    """The largest error bound of the rules among `stages` that round otherwise; 0 where there is none."""
    most = 0.0
    for stage in stages:
        bound = rules()[stage.rule].error_bound
        most = most if bound is None else max(most, bound(task, **stage.args))
        task = derived(task, stage)
    return most


def proposals(task: Task, target: Target) -> Iterator[tuple[Stage, Task]]:
    """What the rules propose to make of `task`. Raises ConfigError where a rule makes a Task that is none."""
    for rule in rules().values():
        for args in rule.proposed(task, target) if rule.proposed is not None else ():
            stage = Stage(rule.name, args)
            try:
                proposal = derived(task, stage)
            except DoesNotApply:
                continue
            try:
                verify_task(proposal)
            except InvalidIR as wrong:
                raise ConfigError(f"the derivation rule {rule.name!r} makes no Task of {task.name}: {wrong}") from None
            if _boundary(proposal) != _boundary(task):
                raise ConfigError(f"the derivation rule {rule.name!r} gives {task.name} other inputs or outputs")
            yield stage, proposal


def _boundary(task: Task) -> list[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of what a Task has in common with others: not its constants, which are its own."""
    buffers = (task.buffer(name) for name in (*task.inputs, *task.outputs) if name not in task.constants)
    return [(b.name, b.dtype, b.shape) for b in buffers]
