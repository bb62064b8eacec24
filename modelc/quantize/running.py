"""A model on samples, in ONNX Runtime: one thread for each run, and as many runs side by side as there are cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from modelc.quantize.samples import Arrays
from modelc.verify.engine import Engine

ENGINE = "ort-real"  # computes in float32 between what is rounded
TOGETHER = 2  # runs for each thread that are asked for at once

Say = Callable[[str], None]


class Runner:
    """A model that is open for runs. One that draws numbers (`drawing`) is run on one sample after another, so that
    each gets the same numbers every time."""

    def __init__(self, model: Path, threads: int, drawing: bool = False) -> None:
        self.at_once, within = (1, threads) if drawing else (threads, 1)
        self.engine = Engine(ENGINE, model, within, timed=False)

    def outputs(self, runs: Sequence[Sequence[Arrays]], say: Say = lambda said: None) -> Iterator[Arrays]:
        """The outputs of each run, on the arrays of its parts together; `say` is told how many have been asked for."""
        together = TOGETHER * self.at_once
        for first in range(0, len(runs), together):
            asked = runs[first : first + together]
            say(f"{first + len(asked)} of {len(runs)}")
            yield from self.engine.run_each(asked, self.at_once)

    def close(self) -> None:
        self.engine.close()


def runs(
    model: Path, samples: Sequence[Arrays], threads: int, say: Say = lambda said: None, drawing: bool = False
) -> Iterator[Arrays]:
    with closing(Runner(model, threads, drawing)) as runner:
        yield from runner.outputs([(sample,) for sample in samples], lambda said: say(f"sample {said}"))


def spread(samples: Sequence[Arrays], most: int) -> list[Arrays]:
    """At most so many of the samples, from all over them."""
    count = min(len(samples), most)
    return [samples[k * len(samples) // count] for k in range(count)]
