"""How large a package may be, as a user says it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from modelc.errors import ConfigError

if TYPE_CHECKING:
    from modelc.package import PackageSpec
    from modelc.space.constants import Within

UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
NOTABLE = 0.005  # of what a package takes, for schedules that keep it small
FORM = "expected bytes such as 400KB or 4MiB"


@dataclass(frozen=True)
class Limits:
    """The most that parameters, the arena and the code's file may have: bytes, and of parameters also how many times
    the model's. Empty: none."""

    params: str = ""
    arena: str = ""
    library: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+(\.\d+)?x", self.params):
            _bytes_of(self.params, "--max-params", f"{FORM}, or times the model's such as 1.2x")
        _bytes_of(self.arena, "--max-arena", FORM)
        _bytes_of(self.library, "--max-library", FORM)

    def params_bytes(self, model: int) -> int | None:
        """What parameters may have, of a model with constants of `model` bytes; None: nobody says."""
        if self.params.endswith("x"):
            return ceil(float(self.params[:-1]) * model)
        return _bytes_of(self.params, "--max-params", FORM)

    def notes(self, within: Within, file: int) -> tuple[str, ...]:
        """What became of the parameters of a model whose file has so many bytes, where nobody says a limit."""
        from modelc.space.constants import GROWTH, GROWTH_LOST

        slower = max(within.slower, default=0.0)
        if self.params or not within.model_bytes:
            return ()
        if within.stored_bytes > GROWTH * file:
            why = (
                f"what the model computes from its constants is {within.model_bytes / file:.2f} times that"
                if within.model_bytes > file
                else f"no schedules for {GROWTH} times it are at most {GROWTH_LOST:.0%} slower by estimate; "
                "--max-params sets a limit"
            )
            return (f"parameters are {within.stored_bytes / file:.2f} times the model's file: {why}",)
        if slower < NOTABLE:
            return ()
        return (
            f"schedules keep parameters within {GROWTH} times the model's file, {slower:.1%} slower by estimate; "
            "--max-params 100x takes what is fastest",
        )

    def check_plan(self, spec: PackageSpec, within: Within) -> None:
        """Raises ConfigError where parameters or the arena are larger: what is the least."""
        most = self.params_bytes(within.model_bytes)
        if most is not None and spec.params_bytes > most:
            times = f" ({ceil(1000 * spec.params_bytes / within.model_bytes) / 1000:g}x)" if within.model_bytes else ""
            raise ConfigError(
                f"--max-params {self.params} allows {most} bytes of parameters, and the least that there are schedules "
                f"for is {spec.params_bytes}{times}: allow that"
            )
        arena = max(plan.arena_bytes for plan in spec.variants)
        allowed = _bytes_of(self.arena, "--max-arena", FORM)
        if allowed is not None and arena > allowed:
            raise ConfigError(
                f"--max-arena {self.arena} allows {allowed} bytes, and the arena has {arena}: allow that, or compile "
                "smaller shapes"
            )

    def check_library(self, folder: Path, name: str) -> None:
        """Raises ConfigError where the file with the code is larger."""
        allowed, size = _bytes_of(self.library, "--max-library", FORM), (folder / name).stat().st_size
        if allowed is not None and size > allowed:
            raise ConfigError(
                f"--max-library {self.library} allows {allowed} bytes, and {name} has {size}: allow that, or say "
                "schedule.winograd and schedule.strassen false in a configuration, which makes fewer kernels"
            )


def _bytes_of(text: str, flag: str, expected: str) -> int | None:
    """Raises ConfigError for what is no size."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in UNITS:
        raise ConfigError(f"{flag} {text} is no size: {expected}")
    return int(float(match[1]) * UNITS[match[2]])
