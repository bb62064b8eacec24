"""Finding a Target: the machine itself, one that is shipped, or a file."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from modelc.errors import TargetError
from modelc.target.native import probe
from modelc.target.schema import Target, read_target
from modelc.target.section import targets_folder


def list_targets() -> tuple[str, ...]:
    """The names that `load_target` knows: `native`, then the shipped ones."""
    return ("native", *sorted(path.stem for path in targets_folder().glob("*.yaml")))


def load_target(name_or_path: str | os.PathLike[str]) -> Target:
    """`native` (this machine, probed), a shipped target's name, or the path of a .yaml file."""
    name = os.fspath(name_or_path)
    if name == "native":
        return probe()
    if os.sep in name or name.endswith((".yaml", ".yml")):
        return read_target(Path(name))
    targets = list_targets()
    if name not in targets:
        close = difflib.get_close_matches(name, targets, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise TargetError(
            f"target {name!r} is unknown; expected one of {', '.join(targets)}, or the path of a .yaml file.{hint}"
        )
    return read_target(targets_folder() / f"{name}.yaml")
