"""Drawn lifetimes of buffers, for the plan of memory."""

from __future__ import annotations

from hypothesis import strategies as st

from modelc.plan.memory import Lifetime

LIVES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20), st.integers(0, 6)), max_size=24).map(
    lambda rows: [Lifetime(f"v{k}", size, first, first + length) for k, (size, first, length) in enumerate(rows)]
)
