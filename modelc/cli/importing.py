"""Importing what takes long."""

from __future__ import annotations

import gc
import sys
from importlib import import_module


def import_quickly(module: str) -> None:
    """Imports a module, if that has not been done, while Python looks for no garbage: imports make none. What is there
    afterwards is never looked through."""
    if module in sys.modules:
        return
    gc.disable()
    try:
        import_module(module)
    finally:
        gc.freeze()
        gc.enable()
