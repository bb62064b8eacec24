"""TIR -> LLVM -> object code.

LLVM's options are those of the process: TVM sets a target's own while it makes its code, and takes them back. So who
has options is alone with LLVM; who has none shares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition

from modelc.codegen.lean_tvm import tvm, tx
from modelc.scratch import TemporaryFolder


class _Turns:
    """Threads with LLVM: one alone, or any number that share it."""

    def __init__(self) -> None:
        self.change = Condition()
        self.sharing, self.alone, self.waiting = 0, False, 0

    @contextmanager
    def turn(self, alone: bool) -> Iterator[None]:
        with self.change:
            self.waiting += alone
            self.change.wait_for(lambda: not self.alone and (not self.sharing if alone else not self.waiting))
            self.waiting -= alone
            self.alone = alone
            self.sharing += not alone
        try:
            yield
        finally:
            with self.change:
                self.alone = False
                self.sharing -= not alone
                self.change.notify_all()


_TURNS = _Turns()


def build_module(module: tvm.IRModule, machine: tvm.target.Target) -> tvm.runtime.Module:
    """TVM's lowering of intrinsics, and LLVM's IR, optimised. Indices are simplified already; TVM's own simplifier
    would take minutes over the polynomials."""
    with machine:
        lowered = tx.transform.LowerIntrin()(module)
    with _TURNS.turn(_has_options(machine)):
        return tvm.get_global_func("target.build.llvm")(lowered, machine)


def object_code(module: tvm.runtime.Module, machine: tvm.target.Target) -> bytes:
    """The object file of a module that build_module made for `machine`."""
    with TemporaryFolder("object") as folder:
        path = Path(folder) / "code.o"
        with _TURNS.turn(_has_options(machine)):
            module.write_to_file(str(path), "o")
        return path.read_bytes()


def _has_options(machine: tvm.target.Target) -> bool:
    return bool(machine.attrs.get("cl-opt"))
