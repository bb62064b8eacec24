"""Runs the kernels of a library in turns and prints what each took; candidate_times.py measures in this process.

    python scripts/run_kernels.py FOLDER    FOLDER has kernels.so and job.json; prints a list of samples for each kernel

A sample is the processor time of one call, the mean of several. Constants lie there in several copies, and each call
reads the next one.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_SECONDS = 2e-3  # a sample calls a kernel as often as this takes
FIRST_ROUNDS = 4  # that all kernels run, so that none is unlucky in all; then those DROPPED times slower fall out
DROPPED = 1.5  # than the fastest
CLOSE = 1.1  # to the fastest: those run as many rounds again
PAGE = 4096


def race(call: Callable[[int, int], float], count: int, always: Collection[int], rounds: int) -> list[list[float]]:
    """The samples of `count` contestants, of which `always` stay to the end. `call(k, n)` gives seconds of one of n
    calls."""
    samples: list[list[float]] = [[] for _ in range(count)]
    warm = [call(k, 1) for k in range(count)]  # pages and code are there after this
    times = [max(1, int(SAMPLE_SECONDS / max(call(k, 1), 1e-7))) for k in range(len(warm))]

    def run(slower: float, rounds: int) -> None:
        best = min((min(s) for s in samples if s), default=0.0)
        who = [k for k in range(count) if not samples[k] or k in always or min(samples[k]) <= slower * best]
        for _ in range(rounds):
            for k in who:
                samples[k].append(call(k, times[k]))

    run(0.0, FIRST_ROUNDS)
    run(DROPPED, max(0, rounds - FIRST_ROUNDS))
    run(CLOSE, rounds)
    return samples


def contestants(job: dict[str, Any], library: ctypes.CDLL) -> Callable[[int, int], float]:
    """`call` of race(): each kernel with its storage."""
    copies = job["copies"]
    constants = {name: storage(size, copies) for name, size in job["constants"].items()}
    others = {name: storage(size, 1)[0] for name, size in {**job["buffers"], "": job["scratch_bytes"]}.items()}
    kernels = []
    for steps in job["kernels"]:
        bound = []
        for step in steps:
            function = library[step["symbol"]]
            function.restype = None
            turning = [(k, constants[a]) for k, a in enumerate(step["args"]) if a in constants]
            pointers = [constants[a][0] if a in constants else others[a] for a in step["args"]]
            bound.append((function, [*pointers, others[""], ctypes.c_int(0), ctypes.c_int(step["extent"])], turning))
        kernels.append(bound)
    turn = 0

    def call(k: int, times: int) -> float:
        nonlocal turn
        steps = kernels[k]
        start = time.thread_time()  # not what others do with the processor meanwhile
        for _ in range(times):
            turn = (turn + 1) % copies
            for function, args, turning in steps:
                for place, pointers in turning:
                    args[place] = pointers[turn]
                function(*args)
        return (time.thread_time() - start) / times

    return call


_memory: list[Any] = []


def storage(size: int, copies: int) -> list[ctypes.c_void_p]:
    """Where `copies` of `size` bytes of random floats begin, each at a cache line."""
    step = -(-size // 64) * 64 + 64
    block = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)
    whole = np.resize(block, (step * copies + PAGE) // 4)
    _memory.append(whole)
    start = whole.ctypes.data + -whole.ctypes.data % PAGE
    return [ctypes.c_void_p(start + k * step) for k in range(copies)]


def main() -> None:
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    os.sched_setaffinity(0, {job["cpu"]})
    call = contestants(job, ctypes.CDLL(str(folder / "kernels.so")))
    json.dump(race(call, len(job["kernels"]), set(job["always"]), job["rounds"]), sys.stdout)


if __name__ == "__main__":
    main()
