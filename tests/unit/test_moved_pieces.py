"""What numbers of another engine say when its inputs are moved: of a smooth function, of a jump, and of neither."""

from __future__ import annotations

import numpy as np

from modelc.verify.pieces import moves_on

THEIRS = np.linspace(-2, 2, 9, dtype=np.float32)
JUMP = np.float32(1)


def test_a_smooth_function_moves_on_and_a_jump_does_not() -> None:
    assert moves_on(THEIRS, [THEIRS + np.float32(1e-4)], [THEIRS + np.float32(16e-4)])
    assert not moves_on(THEIRS, [THEIRS + JUMP], [THEIRS + JUMP])


def test_a_saturated_function_does_not_jump() -> None:
    assert moves_on(THEIRS, [THEIRS + np.float32(1e-7)], [THEIRS + np.float32(1e-7)])


def test_runs_that_cannot_be_compared_excuse_nothing() -> None:
    assert not moves_on(THEIRS, [THEIRS + JUMP], [])  # ONNX Runtime refuses the moved constants
    assert not moves_on(THEIRS, [THEIRS + JUMP], [THEIRS[:-1]])  # the moved data decide the count
