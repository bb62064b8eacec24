"""Whether LLVM makes code for a CPU at all. It ends the process where a CPU that it knows is none of the triple's (a
32-bit one where that says 64), so a process of its own is asked, once: what it agreed to is remembered."""

from __future__ import annotations

import json
import sys
from functools import cache
from threading import Lock
from typing import Any

from modelc.codegen.agreed import asked, is_agreed, remember
from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.llvm import build_module, object_code
from modelc.codegen.vectors import parameter
from modelc.errors import TargetError
from modelc.target import Target, llvm_target
from modelc.target.host import known_cpus

SECONDS = 60
KIND = "llvm"
_LANES = 64
_asking = Lock()


def check_llvm(target: Target) -> None:
    """Raises TargetError for a CPU that LLVM does not know, which TVM would ignore, and where LLVM makes no code for
    the target's triple, CPU and features."""
    options = llvm_target(target)
    if not tvm.target.codegen.llvm_is_valid_cpu(target.cpu, options["mtriple"]):
        raise TargetError(
            f"target {target.name}: cpu is {target.cpu!r}; expected a CPU that LLVM knows for {target.triple}"
        )
    if target.cpu in known_cpus(target.architecture):
        return
    with _asking:  # kernels are compiled in threads
        words = _refusal(json.dumps(options, sort_keys=True))
    if words is not None:
        raise TargetError(
            f"target {target.name}: LLVM makes no code for cpu {target.cpu!r} and triple {target.triple}: {words}"
        )


@cache
def _refusal(options: str) -> str | None:
    """What LLVM says against these options; None where it makes code."""
    if is_agreed(KIND, options):
        return None
    _, code, words = asked("modelc.codegen.llvm_check", options.encode(), SECONDS)
    if code:
        return words
    remember(KIND, options)
    return None


def make_code(options: dict[str, Any]) -> None:
    """Vectors, bytes and a loop through LLVM, to an object file that is thrown away."""
    machine = tvm.target.Target(options)
    params: list[Any] = []
    body: list[Any] = []
    i = tx.Var("i", "int32")
    for dtype in ("float32", "int8"):
        pointers, (a, b), declared = zip(*(parameter(f"{dtype}_{x}", dtype, _LANES**2, 64) for x in "ab"), strict=True)
        at = tx.Ramp(i * _LANES, 1, _LANES)
        value = tx.BufferLoad(a, [at])
        store = tx.BufferStore(b, value * value + tx.BufferLoad(b, [at]), [at])
        loop = tx.For(i, 0, _LANES, tx.ForKind.SERIAL, store)
        params += pointers
        body += [*declared, loop]
    function = tx.PrimFunc(params, tx.SeqStmt(body)).with_attr("global_symbol", "ask").with_attr("target", machine)
    object_code(build_module(tvm.IRModule({"ask": function}), machine), machine)


if __name__ == "__main__":
    make_code(json.load(sys.stdin))
