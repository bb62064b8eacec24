"""Rooms that can be called: `modelc.compile(...)` calls the library, though `modelc.compile` is a room as well."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(room: str, module: str, function: str) -> None:
    """Calls of the package `room` become calls of `function` of `module`, which is imported at the first of them."""

    class Callable(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(module), function)(*args, **kwargs)

    sys.modules[room].__class__ = Callable
