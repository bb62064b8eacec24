"""The stages of a compilation: their order, how long each took, and the text of the IR after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from modelc.errors import ConfigError, blaming
from modelc.verb import Progress

STAGES = ("import", "simplify", "partition", "schedule", "codegen", "package", "verify")


class Stopped(Exception):
    """The stage that was to be the last is over."""


@dataclass
class Stages:
    """What is asked of the stages of one compilation, and how long they took."""

    last: str = STAGES[-1]
    dump_dir: Path | None = None
    progress: Progress = lambda stage, text: None
    seconds: dict[str, float] = field(default_factory=dict)

    def reach(self, name: str) -> bool:
        return STAGES.index(self.last) >= STAGES.index(name)

    @property
    def dumping(self) -> bool:
        return self.dump_dir is not None

    @contextmanager
    def stage(self, name: str, text: str = "") -> Iterator[Callable[[str], None]]:
        """Times a stage; yields what takes the text of the IR after it. An error that escapes
        names the stage. Raises Stopped where nothing follows that is asked for; a package that is begun is finished."""
        self.progress(name, text)
        dumped: list[str] = []
        start = time.perf_counter()
        with blaming(f"stage {name}"):
            yield dumped.append
        self.took(name, time.perf_counter() - start)
        if dumped:
            self._dump(name, "\n".join(dumped))
        if name == self.last and not self.reach("package"):
            raise Stopped

    def took(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _dump(self, name: str, text: str) -> None:
        if self.dump_dir is None:
            return
        try:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
            (self.dump_dir / f"{STAGES.index(name) + 1:02}-{name}.txt").write_text(text.rstrip() + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write to the dump folder {self.dump_dir}: {error.strerror}") from None
