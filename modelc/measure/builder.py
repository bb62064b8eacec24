"""What a builder does: it answers requests, one at a time, and dies alone.

It reads and writes files of a folder: what is large goes through these.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modelc.errors import InvalidIR
from modelc.ir.block import Buffer, Task
from modelc.ir.candidate import Candidate
from modelc.ir.expr import DTYPES
from modelc.measure.build import Scheduled, build, schedule
from modelc.measure.data import Array, Arrays, draw, run_task, to_storage
from modelc.measure.measurement import Limits
from modelc.plan.program import Compiled, is_serial
from modelc.target import Target

if TYPE_CHECKING:
    from modelc.codegen.kernel import Kernel

PR_SET_PDEATHSIG = 1
GARBAGE = 100_000  # objects more than before, when cycles are looked for: a kernel makes as many, and few cycles
LEAST_ROOM = 1 << 20  # bytes of disk, below which it is not a candidate's fault that it was not built


@dataclass(frozen=True)
class Prepare:
    """Draws the inputs of a Task and computes its outputs: files input_file(), as buffers store them (constants, which
    have no storage but the candidates', as they are), and wanted_file(), as they are."""

    key: str
    task: Task
    seed: int


@dataclass(frozen=True)
class Build:
    """Builds one candidate of a Task that is prepared: files NAME.so, and input_file() for each constant. `scheduled`
    where whoever asks knows derivation rules that a builder does not. Without `verify`, its Nest is not verified."""

    name: str
    key: str
    task: Task
    candidate: Candidate
    target: Target
    limits: Limits
    verify: bool
    scheduled: Scheduled | None = None


@dataclass(frozen=True)
class BuiltFiles:
    """What a builder says of the files that it wrote. `sizes` are bytes of the constants; `dtypes` are those that
    values pass through; `serial` says which steps are not worth sharing among threads; `verified`, whether the Nest
    is."""

    kernel: Kernel
    sizes: dict[str, int]
    dtypes: tuple[str, ...]
    filtered: bool
    serial: tuple[bool, ...]
    verified: bool
    seconds: float


def input_file(key: str, task: Task, name: str) -> str:
    """The name of a file for one input of `task`: buffers may be called anything."""
    return f"{key}.{task.inputs.index(name)}"


def wanted_file(key: str, task: Task, name: str) -> str:
    return f"{key}.wanted{task.outputs.index(name)}"


def serve(inherited: int, folder: Path) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(folder / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)  # what LLVM says before it ends the process
    connection = Connection(inherited)
    gc.set_threshold(GARBAGE)
    try:
        while True:
            connection.send(_answer(connection.recv(), folder))
    except (EOFError, ConnectionError):
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _answer(request: Prepare | Build, folder: Path) -> tuple[str, Any]:
    """("done", what it gives), or the outcome and what is wrong; ("no-room", where) where the disk is full."""
    try:
        if isinstance(request, Prepare):
            return "done", prepare(request, folder)
        limit_memory(request.limits.build_bytes)
        return "done", build_files(request, folder)
    except InvalidIR as error:
        return "invalid", str(error)
    except MemoryError:
        return "build-failed", "it takes more memory to build than it may"
    except Exception as error:
        if shutil.disk_usage(folder).free < LEAST_ROOM:
            return "no-room", str(folder.parent)
        return "build-failed", f"{type(error).__name__}: {error}"


@cache
def limit_memory(beyond: int) -> None:
    """Of this process, `beyond` what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data
    most = pages * resource.getpagesize() + beyond
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def prepare(request: Prepare, folder: Path) -> dict[str, int]:
    """Bytes of each input's file."""
    task, sizes = request.task, {}
    inputs = draw(task, request.seed)
    for name, data in inputs.items():
        raw = data if name in task.constants else to_storage(data, task.buffer(name))
        np.ascontiguousarray(raw).reshape(-1).view(np.uint8).tofile(folder / input_file(request.key, task, name))
        sizes[name] = raw.nbytes
    for name, data in run_task(task, inputs).items():
        np.ascontiguousarray(data).reshape(-1).view(np.uint8).tofile(folder / wanted_file(request.key, task, name))
    return sizes


def read_logical(path: Path, buffer: Buffer) -> Array:
    """What prepare() wrote of a constant or an output."""
    return np.fromfile(path, np.uint8).view(DTYPES[buffer.dtype]).reshape(buffer.shape)


def constants_of(task: Task, key: str, folder: Path) -> Arrays:
    names = sorted(task.constants)
    return {name: read_logical(folder / input_file(key, task, name), task.buffer(name)) for name in names}


def wanted_of(task: Task, key: str, folder: Path) -> Arrays:
    return {name: read_logical(folder / wanted_file(key, task, name), task.buffer(name)) for name in task.outputs}


def build_files(request: Build, folder: Path) -> BuiltFiles:
    start = time.perf_counter()
    task, candidate = request.task, request.candidate
    scheduled = request.scheduled
    if scheduled is None:
        constants = constants_of(task, request.key, folder)
        scheduled = schedule(task, candidate, request.target, constants, request.limits, request.verify)
    built = build(scheduled.nest, request.target)
    (folder / f"{request.name}.so").write_bytes(built.library)
    for name, data in scheduled.constants.items():
        data.tofile(folder / input_file(request.name, task, name))
    compiled = Compiled(task, candidate, scheduled.derived, scheduled.nest, built.kernel)
    return BuiltFiles(
        kernel=built.kernel,
        sizes={name: data.nbytes for name, data in scheduled.constants.items()},
        dtypes=tuple(dict.fromkeys(b.dtype for b in scheduled.derived.buffers)),
        filtered=scheduled.filtered,
        serial=tuple(map(is_serial, compiled.works)),
        verified=request.verify or request.scheduled is not None,
        seconds=time.perf_counter() - start,
    )
