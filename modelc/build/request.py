"""What modelc.build is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modelc.compile.options import option
from modelc.compile.request import THREADS, Request

if TYPE_CHECKING:
    from modelc.verb import Progress

NAME = "modelc.yaml"


class Watching(Protocol):
    """What is told how a build stands."""

    def stands(self, done: int, total: int, text: str) -> None: ...


@dataclass(frozen=True)
class BuildRequest:
    """What modelc.build is asked for."""

    source: str | Path = option(NAME, "The modelc.yaml.")
    _: KW_ONLY
    only: Sequence[str] = option(
        (),
        "Patterns MODEL:TARGET:PRECISION, with * and ?, of the cells that are asked for. Default: all.",
        "Cells that fit, with * and ?.",
        "MODEL:TARGET:PRECISION",
        several=True,
    )
    shard: str = option(
        "",
        '"K/N": of these cells every N-th, from the K-th on.',
        "Every N-th cell, from the K-th on.",
        "K/N",
    )
    jobs: int | None = option(
        None,
        "Cells that are made at a time. Default: the processors that may be used.",
        "Cells made at a time (default: processors).",
        "N",
        THREADS,
    )
    cluster: str = option(
        "",
        'The scheduler of a Dask cluster whose workers make them, "dask://HOST:PORT". Default: this machine.',
        "Make cells on the workers of a Dask cluster.",
        "dask://HOST:PORT",
    )
    cache: str | Path | None = option(
        None,
        "The folder of cells that were made before. Default: the user's own.",
        "Of cells (default: in the user's own).",
        "DIR",
        Path,
    )
    output: str | Path | None = option(
        None,
        "The folder for the packages, in place of the one that the file names.",
        "In place of the file's output.",
        "DIR",
        Path,
        flag="-o",
    )
    baseline: str | Path | None = option(
        None,
        "The build.json of an earlier build with its packages, which the gate max-slowdown is measured against.",
        "An earlier build with its packages, for max-slowdown.",
        "build.json",
        Path,
    )
    allow_code: bool = option(
        False,
        "Whether what the file names is executed: metrics, and the runners of targets that are tuned.",
        "Execute the metrics that the file names, and reach the runners that tune.",
    )
    dry_run: bool = option(
        False, "Whether it is only said what would be made.", "Say what would be made, and make nothing."
    )
    database: str | Path | bool = field(default=True, metadata=Request.__dataclass_fields__["database"].metadata)
    watch: Watching | None = option(
        None, "Has a method `stands(done, total, text)`, which is told how many cells are made."
    )
    progress: Progress | None = option(
        None,
        "Is told what becomes of each cell, `progress(stage, text)`; an exception from it ends the call.",
    )
