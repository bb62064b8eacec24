"""Consoles of stdout and stderr. rich takes long to import: who needs a console imports this file there."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH = 160  # of tables that go into a file or a pipe

out = Console(
    width=None if sys.stdout is not None and sys.stdout.isatty() else WIDTH, highlight=False, markup=False, emoji=False
)
err = Console(stderr=True, highlight=False, markup=False, emoji=False)
