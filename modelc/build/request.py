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

    source: str | Path = option(NAME, doc="The modelc.yaml.")
    _: KW_ONLY
    only: Sequence[str] = option((), "Cells that fit, with * and ?.", "MODEL:TARGET:PRECISION", several=True)
    shard: str = option("", "Every N-th cell, from the K-th on.", "K/N")
    jobs: int | None = option(None, "Cells made at a time (default: processors).", "N", THREADS)
    cluster: str = option("", "Make cells on the workers of a Dask cluster.", "dask://HOST:PORT")
    cache: str | Path | None = option(None, "Of cells (default: in the user's own).", "DIR", Path)
    output: str | Path | None = option(
        None,
        "In place of the file's output.",
        "DIR",
        Path,
        doc="The folder for the packages, in place of the one that the file names.",
        flag="-o",
    )
    baseline: str | Path | None = option(
        None, "An earlier build with its packages, for max-slowdown.", "build.json", Path
    )
    allow_code: bool = option(False, "Execute the metrics that the file names, and reach the runners that tune.")
    dry_run: bool = option(False, "Say what would be made, and make nothing.")
    database: str | Path | bool = field(default=True, metadata=Request.__dataclass_fields__["database"].metadata)
    watch: Watching | None = option(
        None, doc="Has a method `stands(done, total, text)`, which is told how many cells are made."
    )
    progress: Progress | None = option(
        None, doc="Is told what becomes of each cell, `progress(stage, text)`; an exception from it ends the call."
    )
