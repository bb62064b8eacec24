"""What a fixed loop says of a machine's stillness."""

from __future__ import annotations

import pytest

from modelc.verify.noise import FixedLoop, Noise, noise_of


@pytest.mark.parametrize(
    ("looks", "busy"),
    [
        ([[1.0, 1.01, 1.02]] * 5, False),
        ([[1.0, 1.0, 3.0]] * 5, True),  # other processes
        ([[1.0, 1.0, 1.0]] * 4 + [[1.2, 1.2, 1.2]], True),  # the clock
    ],
)
def test_a_busy_machine_is_said(looks: list[list[float]], busy: bool) -> None:
    noise = noise_of(looks)
    assert noise.busy == busy == ("too busy to tell" in noise.sentence())
    assert Noise.of(noise.to_json()) == noise


def test_the_loop_takes_little() -> None:
    times = FixedLoop().time(5.0)
    assert all(time > 0 for time in times) and sum(times) < 1000
