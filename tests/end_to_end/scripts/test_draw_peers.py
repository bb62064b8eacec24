"""scripts/draw_peers.py: docs/peers.svg is of the table that there is."""

from __future__ import annotations

import re

import draw_peers

BAR = re.compile(r'aria-label="(ratio: [^"]+)" role="graphics-symbol" aria-roledescription="bar"')


def test_the_picture_of_peers_is_of_the_table() -> None:
    bars = BAR.findall(draw_peers.drawn(draw_peers.rows()))
    assert len(bars) >= 20 and bars == BAR.findall(draw_peers.FILE.read_text()), "run python scripts/draw_peers.py"
