"""TVM as far as kernels are made with it, which everything in this room imports from here.

`import tvm` takes four times as long as what kernels need of it: it imports Relax, and with that schedulers, tuners and
operators; the hooks of accelerators; and it asks its library for Disco, which answers with a stack trace that it has
none. Where this is the first import of TVM in a process, these are left out until somebody asks TVM for what it lacks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

HOOKS, HOOKS_SWITCH = "tvm.backend._autoload_backends", "TVM_DEVICE_BACKEND_AUTOLOAD"  # in the environment
RELAX, DISCO = "tvm.relax", "tvm.runtime.disco"


@contextmanager
def _left_out() -> Iterator[None]:
    """In it, the first `import tvm` of a process finds an empty Relax and no Disco, and looks for no accelerators."""
    if "tvm" in sys.modules:
        yield
        return
    switch = os.environ.get(HOOKS_SWITCH)
    os.environ[HOOKS_SWITCH] = "0"
    sys.modules[RELAX] = ModuleType(RELAX)
    sys.modules[DISCO] = None  # type: ignore[assignment]  # what Python takes for a module that cannot be imported
    try:
        yield
        del sys.modules["tvm"].relax
        sys.modules["tvm"].__getattr__ = _attribute  # type: ignore[method-assign]
    finally:
        del sys.modules[RELAX], sys.modules[DISCO], os.environ[HOOKS_SWITCH]
        if switch is not None:
            os.environ[HOOKS_SWITCH] = switch


def _attribute(name: str) -> Any:
    """What TVM has by this name when all of it has been imported: for others in this process."""
    whole = sys.modules["tvm"]
    if name.startswith("__") or "__getattr__" not in vars(whole):
        raise AttributeError(f"module 'tvm' has no attribute {name!r}")
    del whole.__getattr__
    import_module(RELAX)
    hooks: Any = import_module(HOOKS)
    hooks._AUTO_LOAD_DONE = False
    hooks._autoload_backends()
    return getattr(whole, name)


with _left_out():
    import tvm
    import tvm.target.codegen
    from tvm import tirx as tx

__all__ = ["tvm", "tx"]
