"""Dot products of bytes in each lane of 32 bits, four of each pair of words: by the CPU's instructions, or by shifts.

x86           vpmaddubsw, added up in 16 bits, then vpmaddwd with ones: exact, for no byte of a pair's first word is
              above 15 (eight pairs are at most 8 * 2 * 15 * 128 < 2^15)
x86, VNNI     vpdpbusd
AArch64       sdot
"""

from __future__ import annotations

from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.math.code import Code, Expr, target_arch
from modelc.codegen.math.llvm_text import call

# LLVM's intrinsics: one that adds products of bytes to words, or two, that add products up by twos, and by twos again.
INSTRUCTIONS: tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...] = (  # arch, lanes, features, intrinsics
    ("aarch64", 4, ("dotprod",), ("llvm.aarch64.neon.sdot.v4i32.v16i8",)),
    ("x86_64", 16, ("avx512vnni",), ("llvm.x86.avx512.vpdpbusd.512",)),
    ("x86_64", 8, ("avx512vnni", "avx512vl"), ("llvm.x86.avx512.vpdpbusd.256",)),
    ("x86_64", 16, ("avx512bw",), ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")),
    ("x86_64", 8, ("avx2",), ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")),
    ("x86_64", 4, ("avx2",), ("llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd")),
)


def dot_of_bytes(code: Code, *words: Expr) -> Expr:
    """Of int32."""
    if intrinsics := _intrinsics(code.lanes):
        name, write = f"modelc_dot{2 * len(words)}_x{code.lanes}", _added if len(intrinsics) == 1 else _paired
        return call(code.type(), name, write(name, code.lanes, len(words) // 2, *intrinsics), *words)
    eight, low, total = code.const(24), code.const(255), None
    for a, b in zip(words[::2], words[1::2], strict=True):
        a, b = code.let(a), code.let(b)
        for shift in range(0, 32, 8):
            left = tx.bitwise_and(a >> code.const(shift), low)
            product = left * ((b << code.const(24 - shift)) >> eight)
            total = product if total is None else total + product
    return total


def _intrinsics(lanes: int) -> tuple[str, ...]:
    """What the current target has for so many lanes; empty where it has none."""
    if tvm.target.Target.current(allow_none=True) is None:
        return ()
    has, arch = tvm.target.codegen.llvm_cpu_has_features, target_arch()
    return next((row[3] for row in INSTRUCTIONS if row[:2] == (arch, lanes) and all(map(has, row[2]))), ())


def _added(name: str, n: int, pairs: int, intrinsic: str) -> str:
    """Each pair is added to the sum of those before it, of two sums where there are many."""
    words = f"<{n} x i32>"
    lines, sums = _bytes(n, pairs), list[str]()
    for k in range(pairs):
        before = sums[k - 2] if pairs > 2 and k > 1 else sums[k - 1] if pairs <= 2 and k else "zeroinitializer"
        sums.append(f"%s{k}")
        lines.append(f"%s{k} = call {words} @{intrinsic}({words} {before}, {_two(n, k)})")
    result = sums[-1]
    if pairs > 2:
        lines.append(f"%r = add {words} {sums[-2]}, {sums[-1]}")
        result = "%r"
    return _function(name, n, pairs, [*lines, f"ret {words} {result}"], [f"{words} @{intrinsic}({words}, {_types(n)})"])


def _paired(name: str, n: int, pairs: int, of_bytes: str, of_halves: str) -> str:
    """What pairs give is added up in 16 bits, a tree of sums, and widened at last."""
    words, halves = f"<{n} x i32>", f"<{2 * n} x i16>"
    lines, sums = _bytes(n, pairs), [f"%p{k}" for k in range(pairs)]
    lines += [f"{p} = call {halves} @{of_bytes}({_two(n, k)})" for k, p in enumerate(sums)]
    while len(sums) > 1:
        lines += [f"{a}x = add {halves} {a}, {b}" for a, b in zip(sums[::2], sums[1::2], strict=True)]
        sums = [f"{a}x" for a in sums[::2]]
    lines.append(f"%r = call {words} @{of_halves}({halves} {sums[0]}, {halves} splat (i16 1))")
    declared = [f"{halves} @{of_bytes}({_types(n)})", f"{words} @{of_halves}({halves}, {halves})"]
    return _function(name, n, pairs, [*lines, f"ret {words} %r"], declared)


def _bytes(n: int, pairs: int) -> list[str]:
    casts = "bitcast <{n} x i32> %{x}{k} to <{m} x i8>"
    return [f"%{x}b{k} = " + casts.format(x=x, k=k, n=n, m=4 * n) for k in range(pairs) for x in "wa"]


def _two(n: int, k: int) -> str:
    return f"<{4 * n} x i8> %wb{k}, <{4 * n} x i8> %ab{k}"


def _types(n: int) -> str:
    return f"<{4 * n} x i8>, <{4 * n} x i8>"


def _function(name: str, n: int, pairs: int, lines: list[str], declared: list[str]) -> str:
    operands = ", ".join(f"<{n} x i32> %{x}{k}" for k in range(pairs) for x in "wa")
    body = "\n  ".join(lines)
    return f"define <{n} x i32> @{name}({operands}) {{\n  {body}\n}}\n" + "\n".join(f"declare {d}" for d in declared)
