"""TIR -> LLVM -> object code."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import tvm
from tvm import tirx as tx

from modelc.scratch import TemporaryFolder

_ALONE = Lock()  # a target's LLVM options are set for the whole process, and taken back when its code is generated


def build_module(module: tvm.IRModule, machine: tvm.target.Target) -> tvm.runtime.Module:
    """TVM's lowering of intrinsics, and LLVM's IR, optimised. Indices are simplified already; TVM's own simplifier
    would take minutes over the polynomials."""
    with machine:
        lowered = tx.transform.LowerIntrin()(module)
    with _ALONE:
        return tvm.get_global_func("target.build.llvm")(lowered, machine)


def object_code(module: tvm.runtime.Module) -> bytes:
    """The object file of a module that build_module made."""
    with TemporaryFolder("object") as folder:
        path = Path(folder) / "code.o"
        with _ALONE:
            module.write_to_file(str(path), "o")
        return path.read_bytes()
