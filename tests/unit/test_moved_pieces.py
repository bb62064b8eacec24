"""What numbers of another engine say when its inputs are moved: of a smooth function, of a jump, and of neither."""

from __future__ import annotations

import numpy as np

from modelc.frontend.witness.surgery import Span
from modelc.verify.compare import BF16
from modelc.verify.kernels.reading import UNEXPLAINED, Explanation
from modelc.verify.pieces import Limits, Piece, Written, moves_on

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


def test_one_rounding_at_a_tie_moves_an_element_as_far_as_no_other_one() -> None:
    """Of a piece that rounds inside, as a quantized recurrence, where ours is right by its meaning; not elsewhere, and
    not where the mean is farther off too."""
    theirs = np.zeros((100, 100), np.float32)
    moved = theirs + np.float32(1e-4)
    ours = theirs.copy()
    ours[3, 5] = 5e-3

    def moves(ours: np.ndarray, rounds: int, explained: Explanation) -> bool:
        limits = Limits(1e-3, 1e-4, BF16, False, 32.0)
        return Piece(Written("k", ("n",), ours), "y", theirs, Span(None, rounds), limits).moves_as_far(
            [moved], explained
        )

    right = Explanation(True, None)
    assert moves(ours, 1, right)
    assert not moves(ours, 0, right) and not moves(ours, 1, UNEXPLAINED)
    assert not moves(10 * ours, 1, right)
