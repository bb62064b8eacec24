"""Whether LLVM makes code for a CPU at all. It ends the process where a CPU that it knows is none of the triple's (a
32-bit one where that says 64), so a process of its own is asked, once: what it agreed to is remembered."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from threading import Lock
from typing import Any

from modelc.codegen.agreed import is_agreed, remember
from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.llvm import build_module, object_code
from modelc.errors import TargetError
from modelc.python_worker import worker_command
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
    command = worker_command("modelc.codegen.llvm_check")
    try:
        done = subprocess.run(command, input=options.encode(), capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"it was not done within {SECONDS} s"
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        crashed = f"it crashes (signal {-done.returncode})" if done.returncode < 0 else f"code {done.returncode}"
        return next((line[:300] for line in lines if "LLVM ERROR" in line), crashed)
    remember(KIND, options)
    return None


def make_code(options: dict[str, Any]) -> None:
    """Vectors, bytes and a loop through LLVM, to an object file that is thrown away."""
    machine = tvm.target.Target(options)
    params, body = [], []
    i = tx.Var("i", "int32")
    for dtype in ("float32", "int8"):
        pointers = [tx.Var(f"{dtype}_{name}", tvm.ir.PointerType(tvm.ir.PrimType(dtype))) for name in "ab"]
        a, b = (tx.decl_buffer((_LANES * _LANES,), dtype, f"{p.name}_", data_alignment=64) for p in pointers)
        at = tx.Ramp(i * _LANES, 1, _LANES)
        value = tx.BufferLoad(a, [at])
        store = tx.BufferStore(b, value * value + tx.BufferLoad(b, [at]), [at])
        loop = tx.For(i, 0, _LANES, tx.ForKind.SERIAL, store)
        params += pointers
        body += [tx.DeclBuffer(a, data=pointers[0]), tx.DeclBuffer(b, data=pointers[1]), loop]
    function = tx.PrimFunc(params, tx.SeqStmt(body)).with_attr("global_symbol", "ask").with_attr("target", machine)
    object_code(build_module(tvm.IRModule({"ask": function}), machine), machine)


if __name__ == "__main__":
    make_code(json.load(sys.stdin))
