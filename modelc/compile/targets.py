"""What users do with targets: `modelc.targets` as the command line has it."""

from __future__ import annotations

from pathlib import Path

from modelc.codegen.intrinsics.check import check_file
from modelc.codegen.intrinsics.checked import Outcome
from modelc.compile.pass_lists import check_target_passes, loaded
from modelc.target import Target, list_targets
from modelc.target import probe as probed


def names() -> tuple[str, ...]:
    """Names the targets: this machine, native, and those that are shipped.

    Returns:
        Names for `target` of modelc.compile.

    Example:
        >>> "cortex-a76" in modelc.targets.names()
        True
    """
    return list_targets()


def load(name: str | Path) -> Target:
    """The description of a machine.

    Args:
        name: Of a target, or the path of a .yaml file.

    Returns:
        A Target: `to_yaml()` is its description, `key` what it is called in databases.

    Raises:
        TargetError: There is none of this name, or the file is wrong.

    Example:
        >>> modelc.targets.load("cortex-a76").triple
        'aarch64-linux-gnu'
    """
    return loaded(name)


def probe() -> Target:
    """Measures this machine: peaks, caches, bandwidths.

    Returns:
        Its Target, measured anew.

    Example:
        >>> modelc.targets.probe().peak["float32"] > 0
        True
    """
    return probed(fresh=True)


def check(file: str | Path) -> tuple[Outcome, ...]:
    """Validates a target or a file of intrinsics, and runs intrinsics against their semantics where that is possible.

    Args:
        file: The .yaml file.

    Returns:
        An Outcome for each intrinsic: its `name`, its `status` (right, wrong, or not run), the `reason`.

    Raises:
        TargetError: The file is wrong.

    Example:
        >>> modelc.targets.check("machine.yaml")
        ()
    """
    return tuple(check_file(Path(file), check_target_passes))
