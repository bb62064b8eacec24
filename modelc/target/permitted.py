"""Which of LLVM's intrinsics the YAML of a tensor intrinsic may call.

Those on vectors compute a vector from vectors: they reach no memory and have no other effect (`memory(none)` among
LLVM's attributes, which `modelc targets check` asks LLVM for once more). Families of names say which they are, for a
file is read without LLVM. What moves tile registers reaches memory, so only shipped files say it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TYPES = r"(\.[a-z0-9]+)*"  # what names end with: .512, .v4i32.v16i8


def _of(prefix: str, *families: str) -> str:
    return rf"{prefix}({'|'.join(families)}){_TYPES}"


_ANY_MACHINE = _of(r"llvm\.", "fma", "fmuladd", r"vector\.(de)?interleave[2-8]?")
_X86 = _of(
    r"llvm\.x86\.(sse[23]?|sse41|ssse3|fma|xop|avx|avx2|avx10|avx512|avx512bf16|avx512fp16)\.",
    r"v?pmadd(\.wd|w\.d|ubs\.w|\.ub\.sw|52[hl]\.uq)",  # products, and their sums
    r"vpdp[bw][su][su]ds?(\.)?",
    r"vpdpwssds?",
    "vdpphps",
    "dpbf16ps",
    r"dpp[sd]|dp\.ps",
    r"pmul(hu?|\.hr)\.s?w",
    r"psad\.bw|dbpsadbw|v?mpsadbw",
    r"vpmac\w+|vpmadcs\w+",
    r"vfn?m(add|sub|addsub)\w*",
    r"(add|sub|mul|min|max|addsub|hadd|hsub)\.p[hsd]",  # sums
    r"v(add|sub|mul|min|max)(p[hsd]|bf16)\d+",
    r"ph(add|sub)\.(s?w|d)|pavg\.[bw]|psign\.[bwd]|pabs\.[bwd]|vph(add|sub)\w+",
    r"pack[su]s(wb|dw)",  # conversions
    r"v?cvt\w+",
    r"ps(ll|ra|rl)[iv]?\.[wdq]",  # shifts
    r"pshuf\.b|permvar|permd|permps|vpermi2var|vpermilvar|vpperm|pmultishift\.qb|p?blendv\w*",  # shuffles
)
_AARCH64 = _of(
    r"llvm\.aarch64\.neon\.",
    r"([su]|us)dot|([su]|us|bf|f)mmla|bfdot|bfmlal[bt]|fml[as]l2?",
    r"[su]mull|pmull?|sqdmull|sqr?dmulh(\.laneq?)?|sqrdml[as]h|fmulx",
    r"f?addp|f?addv|[su]addl?[pv]|[su]r?h(add|sub)|[su]q(add|sub)|suqadd|usqadd|r?(add|sub)hn",
    r"[su]abd|fabd|abs|sqabs|sqneg|[suf](max|min)(nm)?[pv]?",
    r"[su]qxtn|sqxtun|fcvt\w+|vcvt\w+",
    r"[su]q?r?shl|sqshlu|[su]?shll|r?shrn|[su]qr?shrn|sqr?shrun|vs[lr]i",
    r"tb[lx][1-4]",
)
_ARM = _of(
    r"llvm\.arm\.neon\.",
    r"([su]|us)dot|([su]|us|bf)mmla|bfdot|bfmlal[bt]",
    r"vmull[sup]|vmulp|vqdmull|vqr?dmulh|vqrdml[as]h",
    r"vpadd|vpadd?l[su]|vpadal[su]|vr?hadd[su]|vhsub[su]|vr(add|sub)hn",
    r"vabd[su]|vabs|vqabs|vqneg|vp?(max|min)[su]|v(max|min)nm",
    r"vqmovn(s|u|su)|vcvt\w+",
    r"vq?r?shift(s|u|su|n|ns|nu|nsu|ins)",
    r"vtb[lx][1-4]|vbsl",
)
_WASM = _of(
    r"llvm\.wasm\.",
    r"dot|q15mulr\.sat\.signed|extadd\.pairwise\.(un)?signed|avgr\.unsigned|p(min|max)",
    r"narrow\.(un)?signed|trunc(\.saturate)?\.(un)?signed",
    r"swizzle|shuffle|bitselect",
    r"relaxed\.(dot|n?madd|min|max|q15mulr|swizzle|laneselect|trunc)",
)


@dataclass(frozen=True)
class Permitted:
    """The intrinsics that some code may call; `what` says for people what they are."""

    names: re.Pattern[str]
    what: str


_KINDS = "products, sums, conversions, shifts and shuffles of vectors, which reach no memory"
_OWN = {"x86_64": _X86, "aarch64": _AARCH64, "armv7": _ARM, "wasm32": _WASM}
_TILE_PRODUCTS = r"llvm\.x86\.tdp(b[su][su]d|bf16ps|fp16ps)"
_TILE_MOVES = r"llvm\.x86\.(ldtilecfg|tilerelease|tilezero|tileloadd64|tileloaddt164|tilestored64)"


def _permitted(what: str, *patterns: str) -> Permitted:
    return Permitted(re.compile("|".join(f"(?:{pattern})" for pattern in patterns)), what)


VECTORS: Mapping[str, Permitted] = {
    name: _permitted(f"{_KINDS}, of {name}", _ANY_MACHINE, *filter(None, [_OWN.get(name)]))
    for name in ("x86_64", "aarch64", "armv7", "riscv64", "wasm32")
}
TILE_PRODUCTS = _permitted("the products of tile registers of x86_64", _TILE_PRODUCTS)
TILE_MOVES = _permitted("what sets tile registers of x86_64 up, loads and stores them", _TILE_MOVES)
