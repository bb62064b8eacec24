"""What modelc.tune is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelc.compile.options import argument, option
from modelc.compile.request import THREADS, Request
from modelc.frontend.load.given import ModelSource

if TYPE_CHECKING:
    from modelc.target import Target
    from modelc.tune.search.objectives import Aim
    from modelc.tune.search.standing import Standing
    from modelc.tune.search.tune import Budget

EXPLORER = "evolve"


@dataclass(frozen=True)
class TuneRequest(Request):
    """What modelc.tune is asked for."""

    models: ModelSource | Sequence[ModelSource] = argument(
        "A path, the bytes of an ONNX file, an onnx.ModelProto, or several of these: they share one budget, Tasks that "
        "they have in common are tuned once, and of what is said of inputs each takes what names its own."
    )
    target: str | Path | Target | None = option(
        None,
        "What this machine is, or the runner (default: native); $MODELC_TARGET says another default.",
        "NAME|FILE.yaml",
        doc="As of modelc.compile; with a `runner` that is a board it has to be named.",
        envvar="MODELC_TARGET",
    )
    budget: str | Budget = option(
        "5m",
        "Time, or measurements.",
        "5m|2000",
        doc='What measuring may take: a time, "90s", "5m", "2h", or a number of measurements, "2000".',
    )
    _: KW_ONLY
    output: str | Path | None = option(
        None,
        "The package (default: MODEL.modelc here); of several models, their folder.",
        "OUT",
        Path,
        doc="Where the package goes, or of several models the folder of their packages MODEL.modelc, which is made "
        "where there is none. Default: MODEL.modelc in the working folder.",
        flag="-o",
    )
    explorer: str = option(
        EXPLORER,
        "evolve, ppo or random.",
        "NAME",
        doc="What proposes schedules: evolve, ppo or random (docs/tune.md).",
    )
    seed: int = option(0, doc="Determines what is proposed.", metavar="N", kind=range(1 << 32))
    threads: int = option(1, "Per kernel.", "N", THREADS)
    watch: Callable[[Standing], None] | None = option(
        None, doc="Is told how tuning stands after each round, `watch(standing)`; an exception from it ends the call."
    )
    runner: str = option(
        "local",
        "What runs kernels: a board, a cluster, or a command to which a program's path is appended.",
        "local|ssh://HOST|dask://HOST:PORT|COMMAND",
        doc="Where kernels run: local; a board, ssh://USER@HOST:PORT/FOLDER; a Dask cluster, dask://HOST:PORT; or a "
        "command to which a program's path is appended, such as an emulator.",
    )
    aim: Aim | None = option(
        None,
        doc="What is to become small, an Aim of modelc.tune.search.objectives. Default: the sum of all models' times.",
    )

    @property
    def paths(self) -> tuple[Path, ...]:
        """The models' files. Those in memory are put into files before anything is asked for (modelc.tune)."""
        files = tuple(model for model in self.several if isinstance(model, str | os.PathLike))
        assert len(files) == len(self.several)
        return tuple(map(Path, files))

    @property
    def several(self) -> tuple[ModelSource, ...]:
        """The models as they were given, which may be one."""
        if isinstance(self.models, Sequence) and not isinstance(self.models, str | bytes):
            return tuple(self.models)
        return (self.models,)
