"""The command line in a process of its own, as somebody at a terminal starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repository import ROOT

from modelc.signals import ENDING


def as_from_a_terminal() -> None:
    """In a child: no signal is ignored, whatever whoever started the tests (nohup, &) ignores."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def modelc(
    folder: Path, *arguments: object, until: str = "", before: object = as_from_a_terminal, path: str = str(ROOT)
) -> Iterator[subprocess.Popen[str]]:
    """The command in a process, in `folder`, with a $TMPDIR of its own there; what it says up to `until` is read."""
    (folder / "tmp").mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "tmp")}
    command = [sys.executable, "-m", "modelc", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder, preexec_fn=before
    ) as process:
        assert process.stderr is not None
        while until and not process.stderr.readline().startswith(until):
            assert process.poll() is None, process.stderr.read()
        try:
            yield process
        finally:
            process.kill()
