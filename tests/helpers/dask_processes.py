"""A Dask cluster of processes on this machine, for tests."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from repository import HELPERS, ROOT

from modelc.measure.builder import PR_SET_PDEATHSIG
from modelc.measure.cluster import resource_of
from modelc.target import Target


def ending() -> None:
    """In a child: it ends with the thread that started it, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """A scheduler and workers; whatever becomes of the test, they end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.all = folder, list[subprocess.Popen[bytes]]()
        file = folder / "scheduler.json"
        self.start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        until = time.monotonic() + 240
        while not file.exists() or not file.read_text():
            assert time.monotonic() < until and self.all[0].poll() is None
            time.sleep(0.05)
        self.address: str = json.loads(file.read_text())["address"]
        self.runner = self.address.replace("tcp://", "dask://")

    def start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments]
        # functions are sent by their module
        ours = os.pathsep.join(map(str, (ROOT, HELPERS, ROOT / "tests/end_to_end")))
        env = {**os.environ, "PYTHONPATH": ours, "TMPDIR": str(self.folder)}
        env |= {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}  # after which what a dead worker had is made again
        with (self.folder / f"{len(self.all)}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, preexec_fn=ending
            )
        self.all.append(process)
        return process

    def worker(self, target: Target | None = None) -> subprocess.Popen[bytes]:
        """One that measures for `target`, or only builds."""
        resources = [] if target is None else ["--resources", f"{resource_of(target)}=1"]
        place = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(self.folder)]
        return self.start("worker", self.address, *place, *resources)

    def there(self, count: int) -> None:
        """Waits for so many workers."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=240)

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.wait()
