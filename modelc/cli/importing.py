"""Importing what takes long."""

from __future__ import annotations

import gc
import sys
from importlib import import_module

NEW_OBJECTS = 50_000  # between looks for garbage: trees of expressions are many objects, none of which is in a cycle


def import_quickly(module: str) -> None:
    """Imports a module, if that has not been done, while Python looks for no garbage: imports make none. What is there
    afterwards is never looked through, and what is new less often than by default."""
    if module in sys.modules:
        return
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
        gc.enable()
