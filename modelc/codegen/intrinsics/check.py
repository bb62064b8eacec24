"""Intrinsics tested against their own semantics: a kernel of one application, on random operands, here or under qemu.
checked.py starts the processes that do it.
"""

from __future__ import annotations

import json
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.codegen.intrinsics import lowering as code
from modelc.codegen.intrinsics.checked import NOT_RUN, RIGHT, WRONG, Outcome, check_intrinsics
from modelc.codegen.intrinsics.lowering import Place
from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.llvm import build_module, object_code
from modelc.codegen.llvm_check import check_llvm
from modelc.codegen.vectors import parameter
from modelc.errors import TargetError, ToolchainError
from modelc.ir.block import compact_strides
from modelc.ir.expr import DTYPES, FLOATS
from modelc.ir.interpret import run_block
from modelc.package.emulators import emulator, lacking
from modelc.package.toolchain import find_toolchain
from modelc.scratch import TemporaryFolder
from modelc.target import Intrinsic, Target, read_intrinsics, read_target
from modelc.target.intrinsic_code import calls
from modelc.target.isa import architecture
from modelc.target.section import parse_yaml, read_text

TRIALS = 32
SECONDS = 60  # to run them under emulation
_MACHINES = {  # the triple and the CPU that an application is compiled for
    "x86_64": ("x86_64-linux-gnu", "x86-64"),
    "aarch64": ("aarch64-linux-gnu", "generic"),
    "armv7": ("armv7l-linux-gnueabihf", "generic"),
    "riscv64": ("riscv64-linux-gnu", "generic-rv64"),
    "wasm32": ("wasm32-wasi", "generic"),
}

Array = NDArray[Any]


def check_file(path: Path, check_target: Callable[[Target, str], None]) -> Iterator[Outcome]:
    """Validates a target, also by `check_target(target, path)`, or a file of intrinsics, and checks every intrinsic
    that it has. Raises TargetError."""
    tree = parse_yaml(read_text(path, "a target file or a file of intrinsics"), str(path))
    if isinstance(tree, dict) and "intrinsics" in tree and "triple" not in tree:
        return check_intrinsics(read_intrinsics(path))
    target = read_target(path)
    check_target(target, str(path))
    check_llvm(target)
    return check_intrinsics((*target.unimplemented, *target.available_intrinsics))


def check_intrinsic(intrinsic: Intrinsic) -> Outcome:
    """Compiles one application here, and runs it where that is possible."""
    try:
        obj, assembly = compile_application(intrinsic)
    except (TargetError, tvm.error.InternalError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(intrinsic.name, WRONG, f"it cannot be compiled: {' '.join(lines[:4])}")
    if f"\t{intrinsic.instruction}" not in assembly.replace("{vex}\t", "\t"):
        return Outcome(intrinsic.name, WRONG, f"its code has no {intrinsic.instruction}")
    try:
        program = _program(intrinsic)
        applications = _run(intrinsic, obj, program, [random_operands(intrinsic, seed) for seed in range(TRIALS)])
    except TargetError as error:
        return Outcome(intrinsic.name, WRONG, str(error))
    except ToolchainError as error:
        return Outcome(intrinsic.name, NOT_RUN, f"{intrinsic.instruction} is in its code; not run: {error}")
    for operands, result in applications:
        if said := difference(intrinsic, operands, result):
            return Outcome(intrinsic.name, WRONG, said)
    place = "under emulation" if program else "on this machine"
    return Outcome(intrinsic.name, RIGHT, f"{intrinsic.instruction} computes its semantics {place}")


def random_operands(intrinsic: Intrinsic, seed: int) -> dict[str, Array]:
    """Values for every operand: whole numbers from end to end, floats around one."""
    rng = np.random.default_rng(seed)
    result = {}
    for operand in intrinsic.operands:
        dtype = DTYPES[operand.dtype]
        if operand.dtype in FLOATS:
            result[operand.name] = rng.standard_normal(operand.shape).astype(dtype)
        else:
            least, largest = operand.within or (np.iinfo(dtype).min, np.iinfo(dtype).max)
            values = rng.integers(least, largest, operand.shape, dtype, endpoint=True)
            ends = rng.choice(np.array([least, largest], dtype), operand.shape)
            result[operand.name] = np.where(rng.random(operand.shape) < 0.25, ends, values).astype(dtype)
    return result


def difference(intrinsic: Intrinsic, operands: dict[str, Array], result: Array) -> str | None:
    """The first element that is not what the semantics give; None if there is none."""
    name = intrinsic.accumulator.name
    exact = intrinsic.accumulator.dtype not in FLOATS
    wide = {k: v if exact or _is_cast(intrinsic, k) else v.astype(np.float64) for k, v in operands.items()}
    added = {**wide, name: np.zeros(result.shape, result.dtype if exact else np.float64)}
    run_block(intrinsic.semantics, added)
    with np.errstate(over="ignore"):
        expected = wide[name] + added[name]
    if exact and intrinsic.roundings == 0:
        wrong = result != expected
    else:
        sizes = {k: np.abs(v) for k, v in wide.items()} | {name: np.zeros(result.shape, added[name].dtype)}
        run_block(intrinsic.semantics, sizes)
        ulp = 2.0 ** -{"float32": 24, "float64": 53, "float16": 11, "bfloat16": 8}.get(intrinsic.accumulator.dtype, 0)
        room = intrinsic.roundings * ulp * (np.abs(wide[name]) + sizes[name])
        wrong = ~(np.abs(result.astype(np.float64) - expected) <= room)
    if not np.any(wrong):
        return None
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    place = f"[{', '.join(map(str, at))}]" if at else ""
    return f"{name}{place} is {result[at]}; its semantics give {expected[at]}"


def _is_cast(intrinsic: Intrinsic, operand: str) -> bool:
    """Whether the semantics cast an operand to the accumulator's dtype, from fewer bits."""
    dtype = intrinsic.operand(operand).dtype
    return dtype != intrinsic.accumulator.dtype and DTYPES[dtype].itemsize < 4


# --- the kernel -----------------------------------------------------------------------------------------------------


def compile_application(intrinsic: Intrinsic) -> tuple[bytes, str]:
    """Object file and assembly of `void apply(T* operand...)`: one application. With tiles there is one more
    argument, which receives the accumulator after an application on zeros. Raises TargetError where LLVM says that a
    call on vectors has other effects than its result."""
    params, declared, places = [], [], {}
    names = [(o.name, o) for o in intrinsic.operands]
    if intrinsic.tiles is not None:
        names.append(("zeros", intrinsic.accumulator))
    for name, operand in names:
        dtype = "uint16" if operand.dtype == "bfloat16" else operand.dtype
        pointer, buffer, said = parameter(name, dtype, prod(operand.shape), DTYPES[operand.dtype].itemsize)
        declared.append(said)
        params.append(pointer)
        places[name] = Place(buffer, 0, compact_strides(operand.shape))
    if intrinsic.tiles:
        body = _on_tiles(intrinsic, places)
    else:
        accumulator = intrinsic.accumulator
        body = code.store(accumulator, places[accumulator.name], code.emit(intrinsic, places))
    triple, cpu = _MACHINES[intrinsic.architecture]
    arch = architecture(triple)
    assert arch is not None
    machine = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": triple,
            "mcpu": cpu,
            "mattr": [f"+{feature}" for feature in (*arch.baseline, *intrinsic.features)],
            **({"mfloat-abi": "hard"} if arch.float_abis else {}),
            **({"mabi": arch.c_abi} if arch.c_abi else {}),
        }
    )
    function = tx.PrimFunc(params, code.imported([intrinsic], tx.SeqStmt([*declared, *body])))
    function = function.with_attr("global_symbol", "apply").with_attr("tirx.noalias", True).with_attr("target", machine)
    module = build_module(tvm.IRModule({"apply": function}), machine)
    if intrinsic.tiles is None:
        _require_no_effects(module.inspect_source("ll"), [call.llvm for call in calls(intrinsic.code)])
    return object_code(module, machine), module.inspect_source("s")


def _require_no_effects(text: str, called: Sequence[str]) -> None:
    """Raises TargetError where one of the intrinsics that an LLVM module calls reaches memory, by LLVM's attributes."""
    attributes = dict(re.findall(r"^attributes (#\d+) = \{(.*)\}$", text, re.MULTILINE))
    for name, group in re.findall(r"^declare .*@(llvm[\w.]+)\(.*?(#\d+)?$", text, re.MULTILINE):
        ours = any(name.startswith(llvm) or llvm.startswith(name) for llvm in called)
        if ours and "memory(none)" not in attributes.get(group, ""):
            raise TargetError(f"LLVM says that {name} reaches memory, or has another effect than its result")


def _on_tiles(intrinsic: Intrinsic, places: dict[str, Place]) -> list[Any]:
    """The accumulator is tile 0, or 1 for the application on zeros; the other operands are the tiles from 2 on, loaded
    once more for it."""
    accumulator = intrinsic.accumulator
    others = [o for o in intrinsic.operands if o != accumulator]
    tiles = {accumulator.name: 0} | {o.name: 2 + k for k, o in enumerate(others)}
    shapes = {}
    for operand in intrinsic.operands:
        row_bytes = prod(operand.shape[1:]) * DTYPES[operand.dtype].itemsize
        shapes[tiles[operand.name]] = (operand.shape[0], row_bytes)
    shapes[1] = shapes[0]
    return [
        *code.set_up(intrinsic, shapes),
        *(code.load_tile(intrinsic, o, tiles[o.name], places[o.name]) for o in intrinsic.operands),
        code.multiply(intrinsic, tiles),
        code.zero(intrinsic, 1),
        *(code.load_tile(intrinsic, o, tiles[o.name], places[o.name], once=True) for o in others),
        code.multiply(intrinsic, {**tiles, accumulator.name: 1}),
        code.store_tile(intrinsic, accumulator, 0, places[accumulator.name]),
        code.store_tile(intrinsic, accumulator, 1, places["zeros"]),
        code.release(intrinsic),
    ]


# --- running it -----------------------------------------------------------------------------------------------------

_DRIVER = """
#include <stdio.h>
#include <stdlib.h>
long syscall(long, ...);
void apply(%(types)s);
int main(int argc, char** argv) {
  static const size_t sizes[] = {%(sizes)s};
  void* data[%(count)d];
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (!in || !out || argc != 3) return 2;
  if (%(refused)s) return 3;
  for (int k = 0; k < %(count)d; ++k) data[k] = aligned_alloc(64, (sizes[k] + 63) / 64 * 64);
  for (int trial = 0; trial < %(trials)d; ++trial) {
    for (int k = 0; k < %(given)d; ++k)
      if (fread(data[k], 1, sizes[k], in) != sizes[k]) return 4;
    apply(%(args)s);
    fwrite(data[%(result)d], 1, sizes[%(result)d], out);
    for (int k = %(given)d; k < %(count)d; ++k) fwrite(data[k], 1, sizes[k], out);
  }
  return fclose(out) ? 5 : 0;
}
"""


def _program(intrinsic: Intrinsic) -> tuple[str, ...]:
    """What to put before a program that applies the intrinsic. Raises ToolchainError if nothing here runs it."""
    if intrinsic.architecture == "wasm32":
        raise ToolchainError("an application by itself has no host that gives it files; packages are run by Node.js")
    program = emulator(_MACHINES[intrinsic.architecture][0], intrinsic.features)
    if not program and (missing := lacking(intrinsic.features)):
        raise ToolchainError(f"this machine lacks {missing[0]}")
    return program


def _run(
    intrinsic: Intrinsic, obj: bytes, program: Sequence[str], trials: Sequence[dict[str, Array]]
) -> list[tuple[dict[str, Array], Array]]:
    """Operands and what the accumulator was after them, for each application. Raises TargetError where the program
    crashes, ToolchainError where it cannot run here."""
    operands, accumulator = intrinsic.operands, intrinsic.accumulator
    sizes = [o.type.bits // 8 for o in operands]
    if intrinsic.tiles is not None:
        sizes.append(accumulator.type.bits // 8)
    permission = None if intrinsic.tiles is None or program else intrinsic.tiles.permission
    driver = _DRIVER % {
        "types": ", ".join(["void*"] * len(sizes)),
        "sizes": ", ".join(map(str, sizes)),
        "count": len(sizes),
        "given": len(operands),
        "refused": "0" if permission is None else f"syscall(158, 0x1023, {permission})",
        "trials": len(trials),
        "args": ", ".join(f"data[{k}]" for k in range(len(sizes))),
        "result": operands.index(accumulator),
    }
    with TemporaryFolder("intrinsic") as name:
        folder = Path(name)
        (folder / "driver.c").write_text(driver)
        (folder / "apply.o").write_bytes(obj)
        (folder / "given").write_bytes(b"".join(trial[o.name].tobytes() for trial in trials for o in operands))
        flags = ["-std=gnu11", "-O1", "driver.c", "apply.o", "-o", "driver", "-lm"]
        find_toolchain(_MACHINES[intrinsic.architecture][0]).compile(flags, folder)
        try:
            command = [*program, str(folder / "driver"), str(folder / "given"), str(folder / "taken")]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"it did not end within {SECONDS} s") from None
        if done.returncode in (-signal.SIGILL, 128 + signal.SIGILL):
            who = "the emulator" if program else "this machine"
            raise ToolchainError(f"{who} does not know {intrinsic.instruction}")
        if done.returncode < 0 or done.returncode > 128:
            raise TargetError(f"a program that applies it crashes (signal {abs(done.returncode) % 128})")
        if done.returncode:
            said = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
            raise ToolchainError(f"it ended with {said}")
        data = (folder / "taken").read_bytes()
    size = accumulator.type.bits // 8
    results = [
        np.frombuffer(data[at : at + size], DTYPES[accumulator.dtype]).reshape(accumulator.shape)
        for at in range(0, len(data), size)
    ]
    applied = [trials]
    if intrinsic.tiles is not None:
        zeros = np.zeros(accumulator.shape, DTYPES[accumulator.dtype])
        applied.append([{**trial, accumulator.name: zeros} for trial in trials])
    return list(zip([trial for group in zip(*applied, strict=True) for trial in group], results, strict=True))


if __name__ == "__main__":  # the process that compiles: a line of JSON for every intrinsic, as it is done
    for to_check in pickle.load(sys.stdin.buffer):
        print(json.dumps(asdict(check_intrinsic(to_check))), flush=True)
