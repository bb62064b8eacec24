"""What bench compares has all cores to itself."""

from __future__ import annotations

import pytest

from modelc.verify import worker


class Clock:
    """A process whose threads compute until `busy` seconds, by clocks that sleep() alone advances."""

    def __init__(self, busy: float) -> None:
        self.now, self.busy = 0.0, busy

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return min(self.now, self.busy)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("busy", "longest"), [(0.0, 0.01), (0.04, 0.05), (0.1, 0.11), (60.0, 0.51)])
def test_an_engine_is_at_rest_when_its_times_are_told(
    busy: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's threads ask for work for 40 ms after a run, and the next engine had a core too few: with two
    threads, ours were timed at half their speed. Threads that compute for ever are not waited for."""
    clock = Clock(busy)
    monkeypatch.setattr(worker, "time", clock)
    worker.rest()
    assert min(busy, worker.LONGEST_REST) <= clock.now <= longest
