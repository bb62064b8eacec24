"""modelc targets"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelc.cli.options import PATH
from modelc.cli.output import json_option, print_json, say, write
from modelc.errors import TargetError, VerificationError

if TYPE_CHECKING:
    from modelc.target import Target


@click.group()
def targets() -> None:
    """Machines that packages are compiled for."""


@targets.command("list")
@json_option
def list_(as_json: bool) -> None:
    """Names the targets."""
    from modelc.target import list_targets

    names = list_targets()
    if as_json:
        print_json("targets-list", {"targets": list(names)})
        return
    for name in names:
        say(name)


@targets.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Prints a target's description."""
    from modelc.compile.pass_lists import loaded

    _print(loaded(name), as_json)


@targets.command()
@click.argument("name", default="native")
@json_option
def key(name: str, as_json: bool) -> None:
    """Prints what a target (default: this machine) is called in databases and by the workers of a cluster."""
    from modelc.compile.pass_lists import loaded

    target_key = loaded(name).key
    if as_json:
        print_json("targets-key", {"key": target_key})
    else:
        say(target_key)


@targets.command("probe")
@click.option("-o", "output", metavar="FILE", type=PATH, help="Write it there.")
@json_option
def probe_(output: Path | None, as_json: bool) -> None:
    """Measures this machine: peaks, caches, bandwidths."""
    from modelc.target import probe

    target = probe(fresh=True)
    if output is not None:
        try:
            output.write_text(target.to_yaml())
        except OSError as error:
            raise TargetError(f"{output} cannot be written: {error.strerror}") from None
    _print(target, as_json)


@targets.command("check")
@click.argument("file", type=PATH)
@json_option
def check(file: Path, as_json: bool) -> int:
    """Validates a target or a file of intrinsics; runs intrinsics against their semantics where that is possible."""
    from modelc.codegen.intrinsics.check import check_file
    from modelc.compile.pass_lists import check_target_passes

    outcomes = []
    for outcome in check_file(file, check_target_passes):
        outcomes.append(outcome)
        if not as_json:
            say(f"{outcome.name}: {outcome.status}, {outcome.reason}")
    wrong = [outcome.name for outcome in outcomes if outcome.status == "wrong"]
    if as_json:
        print_json("targets-check", {"outcomes": [asdict(outcome) for outcome in outcomes]})
        return 1 if wrong else 0
    if wrong:
        raise VerificationError(f"{file}: {len(wrong)} of {len(outcomes)} intrinsics fail: {', '.join(wrong)}")
    say(f"{file} is valid")
    return 0


def _print(target: Target, as_json: bool) -> None:
    text = target.to_yaml()
    if as_json:
        from modelc.target import strict_yaml

        print_json("targets-show", {"target": strict_yaml.load(text)})
    else:
        write(text)
