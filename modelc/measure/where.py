"""What runs kernels: this machine, a command, a board, a cluster."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from dataclasses import dataclass

from modelc.errors import ConfigError, extra
from modelc.measure.ssh import Board


@dataclass(frozen=True)
class Where:
    """As `--runner` says it in `text`: this machine (local); `command`, to which the path of a program is appended;
    `board`; or the workers of `cluster`, which is the address of Dask's scheduler."""

    text: str = "local"
    command: tuple[str, ...] = ()
    board: Board | None = None
    cluster: str = ""

    @staticmethod
    def parse(text: str) -> Where:
        """Raises ConfigError."""
        if text == "local":
            return Where()
        if text.startswith("ssh://"):
            if shutil.which("ssh") is None:
                raise ConfigError("the runner is a board, and there is no program ssh: install Debian's openssh-client")
            return Where(text, board=Board.parse(text))
        if text.startswith("dask://"):
            return Where(text, cluster=_scheduler(text))
        try:
            words = shlex.split(text)
        except ValueError as wrong:
            raise ConfigError(f"the runner {text[:200]!r} cannot be read: {wrong}") from None
        if not words or shutil.which(words[0]) is None:
            raise ConfigError(
                f"the runner is {text[:200]!r}, and there is no such program; expected local, "
                "ssh://USER@HOST, dask://HOST:PORT, or a command that runs programs of the target, such as "
                "'qemu-aarch64-static -L /usr/aarch64-linux-gnu'"
            )
        return Where(text, command=tuple(words))

    @property
    def here(self) -> bool:
        return not self.command and not self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether kernels run on another machine."""
        return self.board is not None or bool(self.cluster)


def _scheduler(text: str) -> str:
    """The address as Dask has it. Raises ConfigError."""
    match = re.fullmatch(r"dask://([\w.-]+|\[[\w:.%]+\]):(\d{1,5})/?", text)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ConfigError(f"the runner is {text[:200]!r}; expected dask://HOST:PORT, the address of a scheduler")
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(f"the runner is a Dask cluster, and distributed is not installed: {extra('cluster')}")
    return f"tcp://{match[1]}:{match[2]}"
