"""Frozen dataclasses that keep what they are asked for (cached_property), where threads and processes share them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Remembering:
    """Is pickled by its fields alone. What it keeps lies in the same dictionary, and that may grow while another thread
    pickles it, which Python ends with an error."""

    def __getstate__(self) -> dict[str, Any]:
        every: Any = self
        return {field.name: getattr(self, field.name) for field in fields(every)}
