"""A package run as users run it, in a worker process (worker.py): unwatched, again and again, on two inputs in turn.

It imports what a package's loader does, so that a worker is there soon.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc import runtime
from modelc.runtime import aligned, as_bits

Array = NDArray[Any]
Arrays = Mapping[str, Array]
LONG = 2.0  # seconds of processor time of a run, of which there is one in each setting
LEAST_RUNS = 3  # of shorter runs, in each setting
RESETS = (2, 8)  # runs of a handle before which its states are reset: the ninth run gives what the first one gave
GARBAGE = 0xA5  # every byte of an output's buffer before a run


class Setting(NamedTuple):
    """`threads` of a handle (0: the default); whether users' buffers begin one element behind a cache line, and are
    used again in every run, or at a line; how many `handles` run at once, in a thread each; at most so many `runs` of
    each, which end when so many `seconds` of processor time are over."""

    threads: int
    shifted: bool
    handles: int
    runs: int
    seconds: float


class Judged(NamedTuple):
    """Runs that were judged: of this `variant`, on `feeds`, with these `outputs`. `first` is the number of the first of
    them among all runs of the handle. `kept`: the variant keeps states; `grows`: one is a cache that grows, and the
    feeds are of runs one after the other; `draws`: it draws random numbers."""

    variant: int
    feeds: Sequence[Arrays]
    outputs: Sequence[Arrays]
    first: int
    kept: bool
    grows: bool
    draws: bool


class Habits:
    """A package whose handles are to give, for the same input, state and random numbers, the same bits as a run that
    was judged, or where none was, as the first handle that was opened."""

    def __init__(self, path: str, judged: Judged) -> None:
        self._path, self._judged = path, judged
        self._at_lines = [{name: shifted(x, 0) for name, x in feed.items()} for feed in judged.feeds]
        self._given = dict[int, Arrays](enumerate(judged.outputs))  # by what _same says

    def use(self, setting: Setting) -> tuple[int, str]:
        """How many runs were made, and how the first that gave something else differs; "" where none did. Raises
        ModelError where the package refuses to run."""
        judged, made = self._judged, 0
        with ExitStack() as stack:
            opened = [
                stack.enter_context(runtime.load(self._path, threads=setting.threads)) for _ in range(setting.handles)
            ]
            together = threading.Barrier(setting.handles)
            pool = stack.enter_context(ThreadPoolExecutor(setting.handles))
            handles = [_Handle(model, judged, setting.shifted, together) for model in opened]
            for model in opened if judged.draws else ():
                for _ in range(judged.first):  # what a run draws is a matter of its number
                    model.run(self._at_lines[0])
                model.reset()
            for run in numbers_of_runs(setting):
                if judged.kept and not judged.draws and self._resets(run):
                    for model in opened:
                        model.reset()
                turns = [self._turn(run, number) for number in range(setting.handles)]
                feeds = [self._at_lines[turn % len(self._at_lines)] for turn in turns]
                for turn, outputs in zip(turns, pool.map(_Handle.run, handles, feeds), strict=True):
                    made += 1
                    given = self._given.setdefault(self._same(turn), outputs)
                    if said := difference(outputs, given):
                        return made, f"{said} in run {run + 1}"
        return made, ""

    def _turn(self, run: int, handle: int) -> int:
        """Where a handle's run stands in the inputs' order: the second handle is one input ahead, unless order counts;
        after a reset it begins anew."""
        judged = self._judged
        if judged.draws:
            return run
        if judged.grows:
            return run % len(judged.feeds)
        if judged.kept:
            return run - max((reset for reset in RESETS if reset <= run), default=0)
        return run + handle

    def _resets(self, run: int) -> bool:
        """Whether states are reset before a run."""
        return run % len(self._judged.feeds) == 0 if self._judged.grows else run in RESETS

    def _same(self, turn: int) -> int:
        """What is equal for runs that are to give the same."""
        judged = self._judged
        return turn if judged.kept or judged.draws else turn % len(judged.feeds)


class _Handle:
    """A handle with a user's buffers for it."""

    def __init__(self, model: runtime.Model, judged: Judged, own: bool, together: threading.Barrier) -> None:
        self._model, self._together, self._own = model, together, own
        self._inputs: dict[tuple[str, tuple[int, ...]], Array] = {}
        self._outputs: dict[str, Array] = {}
        for tensor in model.variants[judged.variant].outputs if own else ():
            dtype = judged.outputs[0][tensor.name].dtype
            self._outputs[tensor.name] = shifted(np.zeros(tensor.shape, dtype), 1)

    def run(self, feed: Arrays) -> dict[str, Array]:
        """The outputs as bits, at the same time as the other handles."""
        if self._own:
            feed = {name: self._as_before(name, array) for name, array in feed.items()}
            for buffer in self._outputs.values():
                buffer.reshape(-1).view(np.uint8).fill(GARBAGE)
        self._together.wait()
        outputs = self._model.run(feed, self._outputs or None)
        return {name: np.array(as_bits(array), order="C") for name, array in outputs.items()}

    def _as_before(self, name: str, array: Array) -> Array:
        """The array, where one of its name and shape was before."""
        buffer = self._inputs.setdefault((name, array.shape), shifted(array, 1))
        buffer[...] = array
        return buffer


def shifted(array: Array, elements: int) -> Array:
    """A copy that begins so many elements behind a cache line."""
    copy = aligned((array.size + elements,), array.dtype)[elements:].reshape(array.shape)
    copy[...] = array
    return copy


def difference(made: Arrays, given: Arrays) -> str:
    """Which output differs in how many elements, bit by bit; "" where none does."""
    for name, array in made.items():
        if array.shape != given[name].shape:
            return f"output {name!r} has the shape {list(array.shape)} in place of {list(given[name].shape)}"
        ours, theirs = (x.reshape(-1).view(f"u{x.itemsize}") for x in (array, given[name]))
        if count := int(np.count_nonzero(ours != theirs)):
            return f"output {name!r} differs in {count:,} of {math.prod(array.shape):,} elements"
    return ""


def numbers_of_runs(setting: Setting) -> Iterator[int]:
    """The numbers of a setting's runs."""
    start = time.process_time()
    for run in range(setting.runs):
        yield run
        taken = time.process_time() - start
        least = 1 if run == 0 and taken > LONG else LEAST_RUNS
        if run + 1 >= least and taken > setting.seconds:
            return
