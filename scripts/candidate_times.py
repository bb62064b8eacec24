"""Compiles many schedules of one Task and times them against one another, one thread each."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from modelc.codegen.kernels import Kernel, compile_nest
from modelc.errors import ModelcError
from modelc.ir.nest import Nest
from modelc.target import Target

RUNNER = Path(__file__).with_name("run_kernels.py")
LIMIT_SECONDS = 900  # that all kernels of a Task may run


def processors() -> tuple[list[int], int]:
    """(those that compile, the one that measures): of several the last one is kept for measuring."""
    every = sorted(os.sched_getaffinity(0))
    return every[:-1] or every, every[-1]


def compile_all(nests: Sequence[Nest], target: Target, threads: int) -> list[Kernel]:
    """Machine code for each Nest; LLVM releases the interpreter."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda k: compile_nest(nests[k], f"k{k}", target), range(len(nests))))


def times_of(
    nests: Sequence[Nest],
    kernels: Sequence[Kernel],
    constants: Collection[str],
    copies: int,
    always: Sequence[int],
    rounds: int,
    lock: Path | None,
) -> list[list[float]]:
    """Seconds of a call, several samples for each kernel (run_kernels.py). The buffers `constants` are there in
    `copies`; the kernels `always` run all rounds. Measures while it holds `lock`."""
    sizes: dict[str, int] = {}
    for nest, kernel in zip(nests, kernels, strict=True):
        for name, size in [*((r.name, r.bytes) for r in nest.params), *kernel.temporaries]:
            sizes[name] = max(sizes.get(name, 0), size)
    job = {
        "cpu": processors()[1],
        "copies": copies,
        "constants": {name: size for name, size in sizes.items() if name in constants},
        "buffers": {name: size for name, size in sizes.items() if name not in constants},
        "scratch_bytes": max(s.scratch_bytes for k in kernels for s in k.steps),
        "kernels": [[{n: getattr(s, n) for n in ("symbol", "args", "extent")} for s in k.steps] for k in kernels],
        "always": list(always),
        "rounds": rounds,
    }
    with tempfile.TemporaryDirectory(prefix="modelc-compare-") as name:
        folder = Path(name)
        link(kernels, folder)
        (folder / "job.json").write_text(json.dumps(job))
        with held(lock):
            return run(folder)


def link(kernels: Sequence[Kernel], folder: Path) -> None:
    names = [f"k{k}.o" for k in range(len(kernels))]
    for name, kernel in zip(names, kernels, strict=True):
        assert kernel.object is not None
        (folder / name).write_bytes(kernel.object)
    command = ["cc", "-shared", "-nostartfiles", "-o", "kernels.so", *names, "-lm"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def run(folder: Path) -> list[list[float]]:
    """A process of its own: without huge pages, as parameters that are mapped from a file have none."""
    env = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(RUNNER), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=env)
    except subprocess.TimeoutExpired:
        raise ModelcError(f"the kernels did not end in {LIMIT_SECONDS} s") from None
    if done.returncode:
        raise ModelcError(f"the kernels did not run (exit code {done.returncode}): {done.stderr.strip()[-500:]}")
    samples: list[list[float]] = json.loads(done.stdout)
    return samples


@contextmanager
def held(lock: Path | None) -> Iterator[None]:
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
