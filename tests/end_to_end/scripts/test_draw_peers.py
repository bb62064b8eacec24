"""scripts/draw_peers.py: docs/peers.svg is of the table that there is."""

from __future__ import annotations

import draw_peers


def test_the_picture_of_peers_is_of_the_table() -> None:
    assert draw_peers.FILE.read_text() == draw_peers.drawn(draw_peers.rows()), "run python scripts/draw_peers.py"
