"""TIR -> LLVM."""

from __future__ import annotations

import tvm
from tvm import tirx as tx


def build_module(module: tvm.IRModule, machine: tvm.target.Target) -> tvm.runtime.Module:
    """TVM's lowering of intrinsics and LLVM's code generation. Indices are simplified already; TVM's own simplifier
    would take minutes over the polynomials."""
    with machine:
        lowered = tx.transform.LowerIntrin()(module)
    return tvm.get_global_func("target.build.llvm")(lowered, machine)
