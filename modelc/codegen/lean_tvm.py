"""TVM as far as kernels are made with it, which everything in this room imports from here.

`import tvm` takes four times as long as what kernels need of it: it imports Relax, and with that schedulers, tuners and
operators; the hooks of accelerators; and it asks its library for Disco, which answers with a stack trace that it has
none. In a process of modelc's own these are left out. Who needs them there imports tvm.relax. In any other process
there may be others who use TVM, and all of it is imported, but for an extension that hands over PyTorch's tensors:
where PyTorch is installed, TVM would compile it in C++ first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from modelc.errors import ToolchainError
from modelc.python_worker import is_own_process

HOOKS = ("TVM_DEVICE_BACKEND_AUTOLOAD", "0")  # TVM's own switches, in the environment
TORCH = ("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
RELAX, DISCO = "tvm.relax", "tvm.runtime.disco"


@contextmanager
def _switched(name: str, value: str) -> Iterator[None]:
    """While a variable of the environment has this value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _left_out() -> Iterator[None]:
    """In it, the first `import tvm` of a process finds an empty Relax and no Disco, and looks for no accelerators."""
    if "tvm" in sys.modules or not is_own_process():
        yield
        return
    sys.modules[RELAX] = ModuleType(RELAX)
    sys.modules[DISCO] = None  # type: ignore[assignment]  # what Python takes for a module that cannot be imported
    try:
        with _switched(*HOOKS):
            yield
        del sys.modules["tvm"].relax
    finally:
        del sys.modules[RELAX], sys.modules[DISCO]


try:
    with _switched(*TORCH), _left_out():
        import tvm

        if tvm.base._RUNTIME_ONLY:  # which TVM makes of every reason why its compiler is not there: ask for this one
            paths = tvm.libinfo.package_lib_paths()
            tvm.base.load_lib_ctypes("tvm", "tvm_compiler", "RTLD_LOCAL", extra_lib_paths=paths)
            raise OSError("only its runtime is wanted (TVM_USE_RUNTIME_LIB)")
        import tvm.target.codegen
        from tvm import tirx as tx
except (OSError, RuntimeError) as error:
    raise ToolchainError(
        f"TVM, which makes the kernels, cannot be loaded: {error}; where memory is limited (ulimit -v), allow 2 GB, "
        "and else install apache-tvm again"
    ) from None

__all__ = ["tvm", "tx"]
