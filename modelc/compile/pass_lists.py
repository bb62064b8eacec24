"""Whose list of passes runs: the configuration's where it names passes, else the target's, else modelc's own."""

from __future__ import annotations

import os
from typing import NamedTuple

from modelc.compile.config import Config
from modelc.errors import ConfigError, TargetError
from modelc.passes import SIMPLIFY, Spec, make_pass
from modelc.space.passes.listed import make_block_passes
from modelc.target import Target, load_target
from modelc.target.passes import show_spec

OWN = "modelc's own"


class PassList(NamedTuple):
    """Passes in order, and whose list it is, for a sentence."""

    passes: tuple[Spec, ...]
    whose: str

    def sentence(self, over: str) -> str:
        """`passes over Graphs, of target x: eliminate_dead, fold_constants: {limit: 16}`"""
        return f"passes over {over}, {self.whose}: {', '.join(map(show_spec, self.passes)) or 'none'}"


def simplifying(config: Config, target: Target) -> PassList:
    """The passes over the Graph."""
    return _chosen(config.simplify, target.passes.simplify, SIMPLIFY, target)


def scheduling(config: Config, target: Target) -> PassList:
    """The passes over the Blocks of each Task; none where schedules are searched. Raises ConfigError where those of the
    configuration are not for this target."""
    make_block_passes(config.schedule or (), target, "the configuration: schedule.passes")
    return _chosen(config.schedule, target.passes.schedule, (), target)


def sentences(config: Config, target: Target) -> tuple[str, str]:
    """Both lists, and whose they are."""
    return simplifying(config, target).sentence("Graphs"), scheduling(config, target).sentence("Blocks")


def notes_of(config: Config, target: Target) -> tuple[str, ...]:
    """What a package says of lists that are not modelc's own."""
    return tuple(sentence for sentence in sentences(config, target) if OWN not in sentence)


def loaded(name_or_path: str | os.PathLike[str]) -> Target:
    """load_target(), with lists of passes that there are. Raises TargetError."""
    target = load_target(name_or_path)
    check_target_passes(target, os.fspath(name_or_path))
    return target


def check_target_passes(target: Target, source: str) -> None:
    """Raises TargetError, which begins with `source`, where a list of the target has a pass or an option that there is
    not."""
    try:
        for number, spec in enumerate(target.passes.simplify or ()):
            make_pass(spec, place=f"{source}: passes.simplify[{number}]")
        make_block_passes(target.passes.schedule or (), target, f"{source}: passes.schedule")
    except ConfigError as wrong:
        raise TargetError(str(wrong)) from None


def check_executable(config: Config, target: Target) -> None:
    """Raises TargetError where passes may make Nests of an intrinsic that has no implementation."""
    if target.unimplemented and scheduling(config, target).passes:
        raise TargetError(
            f"target {target.name}: nothing executes its kernels natively, as the intrinsic "
            f"{target.unimplemented[0].name} has no implementation; --stop-after schedule makes its Nests, which the "
            "interpreter executes (--dump-dir shows them), and `passes: []` under `schedule` of a configuration makes "
            "kernels without it"
        )


def check_searched(config: Config, target: Target) -> None:
    """Raises ConfigError where passes make every schedule, so that none is searched."""
    if (passes := scheduling(config, target)).passes:
        raise ConfigError(
            f"nothing is left to tune: {passes.sentence('Blocks')}, which make every schedule; compile, or write "
            "`passes: []` under `schedule` of a configuration"
        )


def _chosen(
    configured: tuple[Spec, ...] | None, described: tuple[Spec, ...] | None, own: tuple[Spec, ...], target: Target
) -> PassList:
    if configured is not None:
        return PassList(configured, "of the configuration")
    return PassList(own, OWN) if described is None else PassList(described, f"of target {target.name}")
