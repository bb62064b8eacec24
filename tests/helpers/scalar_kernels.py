"""Scalar operations as functions of machine code over arrays, compiled and called, and whole numbers at their
limits."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import tvm
from tvm import tirx as tx
from tvm.target import codegen as llvm

from modelc.codegen.math.llvm_text import importing, with_texts
from modelc.codegen.math.operations import lower_op
from modelc.ir.expr import DTYPES
from modelc.ir.scalar import OPERATIONS

NATIVE = {"kind": "llvm", "mcpu": llvm.llvm_get_system_cpu()}
UNARY_FLOAT = [
    name
    for name, operation in OPERATIONS.items()
    if operation.arity == 1 and name not in ("not", "bitnot", "cast", "bits")
]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
ARITHMETIC = ["add", "sub", "mul", "fmod", "floordiv", "mod", "max", "min", *COMPARISONS]
BINARY_INTEGER = [*ARITHMETIC, "truncdiv", "bitand", "bitor", "bitxor"]


def stored(dtype):
    return {"bool": "uint8", "bfloat16": "uint16"}.get(dtype, dtype)


def function(name, build, inputs, output, lanes, target):
    """void NAME(const T* in..., T* out, int32_t vectors), applying `build` to a vector of each input."""

    def number(value):
        return tx.IntImm("int32", value)

    def pointer(label, dtype):
        return tx.Var(label, tvm.ir.PointerType(tvm.ir.PrimType(stored(dtype))))

    def wide(value, dtype):
        scalar = tx.IntImm(dtype, value)
        return scalar if lanes == 1 else tx.Broadcast(scalar, lanes)

    pointers = [pointer(f"p{k}", d) for k, d in enumerate([*inputs, output])]
    buffers = [tx.decl_buffer((1 << 24,), stored(d), f"B{k}") for k, d in enumerate([*inputs, output])]
    count, i = tx.Var("count", "int32"), tx.Var("i", "int32")
    at = i if lanes == 1 else tx.Ramp(i * number(lanes), number(1), lanes)
    loads = [tx.BufferLoad(b, [at]) for b in buffers[:-1]]
    loads = [tx.NE(v, wide(0, "uint8")) if d == "bool" else v for v, d in zip(loads, inputs, strict=True)]
    with tvm.target.Target(target), importing() as functions:
        value = build(*loads)
    if output == "bool":
        value = tx.Select(value, wide(1, "uint8"), wide(0, "uint8"))
    body = []
    while isinstance(value, tx.Let):  # each into a slot of its own
        kind = str(value.var.ty.dtype if not hasattr(value.var, "dtype") else value.var.dtype).partition("x")[0]
        slot = tx.decl_buffer((lanes,), kind, "slot", scope="local")
        all_of_it = [tx.Ramp(number(0), number(1), lanes) if lanes > 1 else number(0)]
        body += [tx.AllocBuffer(slot), tx.BufferStore(slot, value.value, all_of_it)]
        body += [tx.Bind(value.var, tx.BufferLoad(slot, all_of_it))]
        value = value.body
    body += [tx.BufferStore(buffers[-1], value, [at])]
    loop = tx.For(i, number(0), count, tx.ForKind.SERIAL, tx.SeqStmt(body) if len(body) > 1 else body[0])
    views = [tx.DeclBuffer(b, data=p) for b, p in zip(buffers, pointers, strict=True)]
    made = tx.PrimFunc([*pointers, count], with_texts(functions, tx.SeqStmt([*views, loop])), ret_type=None)
    return made.with_attr("global_symbol", name).with_attr("tirx.noalias", True)


def compiled(functions, target):
    machine = tvm.target.Target(target)
    passes = [
        tx.transform.FlattenBuffer(),
        tx.transform.StmtSimplify(),
        tx.transform.RemoveNoOp(),
        tx.transform.LowerIntrin(),
    ]
    module = tvm.IRModule({name: f.with_attr("target", machine) for name, f in functions.items()})
    with machine:
        module = tvm.ir.transform.Sequential(passes)(module)
    return tvm.get_global_func("target.build.llvm")(module, machine)


def operation(name, dtype, lanes, target=NATIVE, **how):
    """The function `NAME_DTYPE` of one operation, its inputs' dtypes and its output's."""
    inputs = [dtype] * OPERATIONS[name].arity
    output = "bool" if OPERATIONS[name].result == "bool" else dtype

    def build(*args):
        return lower_op(name, list(args), dtype, lanes, **how)

    made = function(f"{name}_{dtype}", build, inputs, output, lanes, target)
    return made, inputs, output


def library(functions, folder, target=NATIVE):
    name = f"k{len(list(folder.iterdir()))}"  # a library of the same name would not be loaded again
    compiled(functions, target).write_to_file(str(folder / f"{name}.o"), "o")
    subprocess.run(["cc", "-shared", "-o", f"{name}.so", f"{name}.o", "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / f"{name}.so"))


def call(lib, name, arrays, output, lanes):
    arrays = [np.ascontiguousarray(a) for a in arrays]
    assert arrays[0].size % lanes == 0
    out = np.zeros(arrays[0].shape, DTYPES[output])
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
    lib[name](*pointers, ctypes.c_int32(arrays[0].size // lanes))
    return out


def multiple(x, lanes=240):
    return np.resize(x, -(-x.size // lanes) * lanes)


WITHOUT_FMA = {"kind": "llvm", "mcpu": "x86-64-v2"}


def edges(dtype: str) -> np.ndarray:
    limits, rng = np.iinfo(dtype), np.random.default_rng(1)
    bits = limits.bits
    near = [limits.min, limits.min + 1, -2, -1, 0, 1, 2, 3, 7, bits - 1, bits, bits + 1, limits.max - 1, limits.max]
    drawn = rng.integers(limits.min, limits.max, 18, dtype, endpoint=True)
    return np.concatenate([np.array([n for n in near if limits.min <= n <= limits.max], dtype), drawn])
