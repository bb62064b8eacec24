"""Finding a Target: the machine itself, one that is shipped, or a file."""

from __future__ import annotations

import difflib
import os
from importlib.resources import files
from pathlib import Path

from modelc.errors import TargetError
from modelc.target.native import probe
from modelc.target.schema import Target, read_target


def list_targets() -> tuple[str, ...]:
    """The names that `load_target` knows: `native`, then the shipped ones."""
    return ("native", *sorted(path.stem for path in _folder().glob("*.yaml")))


def load_target(name_or_path: str | os.PathLike[str]) -> Target:
    """`native` (this machine, probed), a shipped target's name, or the path of a .yaml file."""
    name = os.fspath(name_or_path)
    if name == "native":
        return probe()
    if os.sep in name or name.endswith((".yaml", ".yml")):
        return read_target(Path(name))
    known = list_targets()
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise TargetError(
            f"target {name!r} is unknown; expected one of {', '.join(known)}, or the path of a .yaml file.{hint}"
        )
    return read_target(_folder() / f"{name}.yaml")


def _folder() -> Path:
    """In a wheel the files are package data; in a checkout they lie beside the package."""
    installed = Path(str(files("modelc"))) / "data" / "targets"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "targets"
