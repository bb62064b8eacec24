"""What bench compares has all cores to itself."""

from __future__ import annotations

import time
from threading import Thread

from modelc.verify.worker import rest


def test_an_engine_is_at_rest_when_its_times_are_told() -> None:
    """ONNX Runtime's threads ask for work for 40 ms after a run, and the next engine had a core too few: with two
    threads, ours were timed at half their speed."""
    stop = time.perf_counter() + 0.1

    def ask() -> None:
        while time.perf_counter() < stop:
            pass

    Thread(target=ask).start()
    rest()
    assert time.perf_counter() >= stop
