"""The passes that a target's YAML lists, with their options (Stripe, section 1.3: a compiler for a machine is a list of
passes from a common pool, with parameters).

    passes:
      simplify: [eliminate_dead, {fold_constants: {limit: 4096}}]       # over the Graph; without it, modelc's own list
      schedule: [tensorize, {autotile: {memory: scratchpad}}]           # over each Task; without it, the search decides

Here a list is read as data. Which passes and options there are is for `passes/` and `space/passes/` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from modelc.target.section import WORD, Section, shown

Spec = str | Mapping[str, Mapping[str, Any] | None]  # "name", or {"name": {option: value}}
MOST_PASSES = 100  # in a list


@dataclass(frozen=True)
class PassLists:
    """`simplify`: the passes over the Graph, in order; None: modelc's own list. `schedule`: those over the Blocks of
    each Task, which make its Candidate; None: Candidates are searched."""

    simplify: tuple[Spec, ...] | None = None
    schedule: tuple[Spec, ...] | None = None

    def to_yaml(self) -> dict[str, list[Spec]]:
        """The section `passes` that says the same."""
        lists = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: list(passes) for name, passes in lists if passes is not None}


def pass_lists(part: Section) -> PassLists:
    """The section `passes` of a target's YAML. Raises TargetError."""
    names = tuple(f.name for f in fields(PassLists))
    if not isinstance(part.tree, dict):
        raise part.wrong("", part.tree, f"a mapping with {', '.join(names)}")
    part.only_keys(names, required=())
    return PassLists(**{name: _list(part, name) for name in names if name in part.tree})


def _list(part: Section, key: str) -> tuple[Spec, ...]:
    passes = part.sequence(key, "a list of passes")
    if len(passes) > MOST_PASSES:
        raise part.wrong(key, passes, f"at most {MOST_PASSES} passes")
    for place, spec in enumerate(passes):
        if not is_spec(spec):
            raise part.wrong(f"{key}[{place}]", spec, "the name of a pass, or `name: {option: value}`")
    return tuple(passes)


def is_spec(value: Any) -> bool:
    """Whether a value of a YAML tree has the form of one pass: its name, or its name with options."""
    if isinstance(value, str):
        return WORD.fullmatch(value) is not None
    if not isinstance(value, dict) or len(value) != 1:
        return False
    (name,) = value
    return isinstance(name, str) and WORD.fullmatch(name) is not None


def show_spec(spec: Spec) -> str:
    """A pass as one line of YAML: `name`, or `name: {option: value}`."""
    if isinstance(spec, str):
        return spec
    ((name, options),) = spec.items()
    return (
        f"{name}: {{{', '.join(f'{k}: {v if isinstance(v, str) else shown(v)}' for k, v in (options or {}).items())}}}"
    )
