"""Talking to an engine in a worker process: a package, ONNX Runtime or OpenVINO."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ModelcError, PackageError, VerificationError
from modelc.package.watch import Watch, watched
from modelc.scratch import TemporaryFolder
from modelc.verify.habits import Judged, Setting
from modelc.verify.processes import Process, forked, started
from modelc.verify.worker import ENGINES, read_arrays, write_arrays

NAMES = tuple(ENGINES)
TIMEOUT = 1800.0  # seconds for one answer: a wrong kernel may never end
PIPE_BYTES = 1 << 20
MOST_WORDS = 1000  # bytes that are read of what a worker said before it died


class Engine:
    """A worker with `path` open in it: `modelc` opens packages, the others ONNX models. One that is not
    `timed` is there sooner."""

    def __init__(self, engine: str, path: str | Path, threads: int = 1, timed: bool = True) -> None:
        self.engine = engine
        self._start_worker = started if timed else forked
        self._path, self._threads = path, threads
        self._folder = TemporaryFolder("engine")
        self._said = Path(self._folder.name) / "stderr"
        self._given, self._taken = (Path(self._folder.name) / f"{name}.npy" for name in ("inputs", "outputs"))
        self._start()

    def _start(self) -> None:
        reading, writing = os.pipe()  # what a package's steps read and write
        self._watched: int | None = reading
        with suppress(AttributeError, OSError):  # another system, or a user who has many pipes: it is only slower
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with self._said.open("wb") as said:
            self._worker = self._start_worker(said, writing, self._folder.name)
        os.close(writing)
        path = str(Path(self._path).resolve())
        try:
            opened = self._ask("open", engine=self.engine, path=path, threads=self._threads)
            self.about: str = opened["about"]
            self.seconds: float = opened["seconds"]  # that it took to open
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """A new process that has run on the same inputs: how fast one is hangs on where its pages lie."""
        self._end()
        self._start()
        self._ask("run", inputs=str(self._given), outputs=str(self._taken))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs. Raises VerificationError where a package crashes or does not end, EngineError where another
        engine does, or where one refuses."""
        write_arrays(str(self._given), {name: np.asarray(array, order="C") for name, array in inputs.items()})
        self._ask("run", inputs=str(self._given), outputs=str(self._taken))
        return read_arrays(str(self._taken))

    def run_each(
        self, runs: Sequence[Sequence[Mapping[str, NDArray[Any]]]], at_once: int
    ) -> list[dict[str, NDArray[Any]]]:
        """The outputs of several runs, so many of them side by side, each on the arrays of several mappings: of what
        several runs have in common there is one file. Raises as run() does."""
        files: dict[int, str] = {}
        for arrays in (arrays for parts in runs for arrays in parts):
            if id(arrays) not in files:
                files[id(arrays)] = str(Path(self._folder.name) / f"part{len(files)}.npy")
                write_arrays(files[id(arrays)], {name: np.asarray(a, order="C") for name, a in arrays.items()})
        taken = [str(Path(self._folder.name) / f"taken{number}.npy") for number in range(len(runs))]
        given = [[files[id(arrays)] for arrays in parts] for parts in runs]
        self._ask("run each", runs=[*zip(given, taken, strict=True)], at_once=at_once)
        return [read_arrays(path) for path in taken]

    def shapes(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of every output of a run on `inputs`, as run() gives it. Raises as run() does."""
        write_arrays(str(self._given), {name: np.asarray(array, order="C") for name, array in inputs.items()})
        shapes = self._ask("shapes", inputs=str(self._given))["shapes"]
        return {name: (dtype, tuple(shape)) for name, (dtype, shape) in shapes.items()}

    def time(self, seconds: float) -> list[float]:
        """Milliseconds of runs on the inputs of the last `run`."""
        times: list[float] = self._ask("time", seconds=seconds)["ms"]
        return times

    def steps(self, seconds: float, variant: int) -> list[float]:
        """Milliseconds that each step of a package takes in a run on the inputs of the last `run`, which fit a
        variant."""
        times: list[float] = self._ask("steps", seconds=seconds, variant=variant)["ms"]
        return times

    def watch(self, inputs: Mapping[str, NDArray[Any]], watch: Watch) -> dict[str, NDArray[Any]]:
        """Runs a package while it is watched, and gives the outputs. Raises as run() does."""
        write_arrays(str(self._given), {name: np.asarray(array, order="C") for name, array in inputs.items()})
        assert self._watched is not None
        files = {"inputs": str(self._given), "outputs": str(self._taken)}
        self._tell("watch", **files, places=watch.places, fd=self._worker.pipe)
        try:
            watch.consume(watched(self._watched, watch.places, TIMEOUT))
        except PackageError as error:
            raise VerificationError(str(error)) from None
        self._answer("run")
        return read_arrays(str(self._taken))

    def keep(self, judged: Judged) -> None:
        """What a package is compared with in run_again()."""
        files: dict[str, list[str]] = {"feeds": [], "outputs": []}
        for kind, of_runs in (("feeds", judged.feeds), ("outputs", judged.outputs)):
            for number, arrays in enumerate(of_runs):
                files[kind].append(str(Path(self._folder.name) / f"{kind}{number}.npy"))
                write_arrays(files[kind][-1], arrays)
        about = {name: value for name, value in judged._asdict().items() if name not in files}
        self._ask("keep", path=str(Path(self._path).resolve()), **files, about=about)

    def run_again(self, setting: Setting) -> tuple[int, str]:
        """Runs a package as Habits.use() says. Raises as run() does."""
        answer = self._ask("run again", setting=setting)
        return answer["made"], answer["differs"]

    def reset(self) -> None:
        """What a package keeps from run to run becomes zeros."""
        self._ask("reset")

    def count(self) -> None:
        """From now on, `calls` says how often each step of a package was called."""
        self._ask("count")

    def calls(self, variant: int) -> list[int]:
        counts: list[int] = self._ask("calls", variant=variant)["calls"]
        return counts

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self._tell(command, **arguments)
        return self._answer(command)

    def _tell(self, command: str, **arguments: Any) -> None:
        with suppress(BrokenPipeError):  # then there is no answer either
            self._worker.stdin.write(json.dumps({command: arguments}).encode() + b"\n")
            self._worker.stdin.flush()

    def _answer(self, command: str) -> dict[str, Any]:
        worker = self._worker
        try:
            if not select.select([worker.stdout], [], [], TIMEOUT)[0]:
                raise self._died(f"did not finish within {TIMEOUT:g} s when it was asked to {command}")
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            raise self._died(f"{_end_of(worker)} when it was asked to {command}", self._last_words())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.engine} cannot {command}: {answer['error']}")
        return answer

    def _died(self, how: str, words: str = "") -> ModelcError:
        """A package that dies is wrong; of another engine that dies nothing follows for the package."""
        if self.engine == "modelc":
            return VerificationError(f"{self.engine} {how}{words}")
        return EngineError(f"{self.engine} {how} {self._path}{words}: there is nothing to compare the package with")

    def _last_words(self) -> str:
        with self._said.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MOST_WORDS, 0))
            lines = file.read().decode(errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({words})" if words else ""

    def close(self) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        """Whatever it was doing; once more is no mistake, for a signal may come while another process starts."""
        self._worker.kill()
        self._worker.wait()
        if self._watched is not None:
            watched, self._watched = self._watched, None
            os.close(watched)
        for pipe in (self._worker.stdin, self._worker.stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class EngineError(ModelcError):
    """An engine said no: a missing module, an operator it lacks, inputs it does not take; or it died."""


def _end_of(worker: Process) -> str:
    code = worker.wait()
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"crashed ({name}{', as it does where memory is out' * (-code == signal.SIGKILL)})"
    return f"ended with code {code}"
