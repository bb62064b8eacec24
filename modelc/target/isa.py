"""Instruction sets: one row per architecture, one per feature. Everything else about a machine is in its YAML."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """An instruction-set extension that kernels may use, and that a package's `open()` looks for under this name."""

    llvm: str  # LLVM's spelling: what stands in a target file and in a manifest
    cpuinfo: str  # the word in /proc/cpuinfo


@dataclass(frozen=True)
class Architecture:
    """What the first part of a triple decides."""

    name: str
    triples: tuple[str, ...]  # the first parts of triples that mean it
    elf_machine: int  # e_machine of its objects; 0: they are no ELF files
    features: tuple[Feature, ...]
    environments: tuple[str, ...] = ("gnu",)  # the last parts of triples: packages are linked with glibc
    float_abis: tuple[str, ...] = ()  # only where there is a choice
    baseline: tuple[str, ...] = ()  # features that every Linux of this architecture asks for
    c_abi: str | None = None  # LLVM's name of the calling convention, where it must be told
    memory_operands: bool = False  # arithmetic takes an operand out of memory
    address_bits: int = 64

    def feature(self, llvm: str) -> Feature | None:
        return next((feature for feature in self.features if feature.llvm == llvm), None)

    def widest_vector(self, features: Collection[str]) -> int:
        """Bits of the widest vector register that these features give."""
        if self.name == "x86_64":
            return 512 if "avx512f" in features else 256 if "avx2" in features else 128
        return 128 if not {"neon", "v", "simd128"}.isdisjoint(features) else 64

    def vector_registers(self, features: Collection[str]) -> int:
        """How many vector registers the instruction set can name."""
        if self.name == "x86_64":
            return 32 if "avx512f" in features else 16
        return 16 if self.name in ("armv7", "wasm32") else 32  # WebAssembly names none: those of its hosts


X86_64 = Architecture(
    "x86_64",
    ("x86_64",),
    62,
    (
        Feature("cx16", "cx16"),
        Feature("sahf", "lahf_lm"),
        Feature("popcnt", "popcnt"),
        Feature("ssse3", "ssse3"),
        Feature("sse4.1", "sse4_1"),
        Feature("sse4.2", "sse4_2"),
        Feature("bmi", "bmi1"),
        Feature("bmi2", "bmi2"),
        Feature("lzcnt", "abm"),
        Feature("movbe", "movbe"),
        Feature("avx", "avx"),
        Feature("avx2", "avx2"),
        Feature("fma", "fma"),
        Feature("f16c", "f16c"),
        Feature("avx512f", "avx512f"),
        Feature("avx512bw", "avx512bw"),
        Feature("avx512cd", "avx512cd"),
        Feature("avx512dq", "avx512dq"),
        Feature("avx512vl", "avx512vl"),
        Feature("avx512vnni", "avx512_vnni"),
        Feature("avx512bf16", "avx512_bf16"),
        Feature("avx512fp16", "avx512_fp16"),
        Feature("avxvnni", "avx_vnni"),
        Feature("amx-tile", "amx_tile"),
        Feature("amx-int8", "amx_int8"),
        Feature("amx-bf16", "amx_bf16"),
    ),
    memory_operands=True,
)
# The x86-64 levels by LLVM's name: what each lets LLVM use beyond the level before it.
X86_64_LEVELS = {
    "x86-64": (),
    "x86-64-v2": ("cx16", "sahf", "popcnt", "ssse3", "sse4.1", "sse4.2"),
    "x86-64-v3": ("bmi", "bmi2", "lzcnt", "movbe", "avx", "avx2", "fma", "f16c"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
AARCH64 = Architecture(
    "aarch64",
    ("aarch64",),
    183,
    (
        Feature("neon", "asimd"),
        Feature("dotprod", "asimddp"),
        Feature("fullfp16", "asimdhp"),
        Feature("bf16", "bf16"),
        Feature("i8mm", "i8mm"),
    ),
)
ARMV7 = Architecture(
    "armv7",
    ("armv7l", "armv7a", "armv7"),
    40,
    (Feature("neon", "neon"), Feature("vfp4", "vfpv4")),
    environments=("gnueabihf", "gnueabi"),
    float_abis=("hard", "soft"),
    address_bits=32,
)
# Kernels use vectors of 128 bits, which every CPU with V has (its Zvl128b), however long its registers are.
RISCV64 = Architecture(
    "riscv64",
    ("riscv64",),
    243,
    tuple(Feature(letter, letter) for letter in "mafdcv"),
    baseline=("m", "a", "f", "d", "c"),
    c_abi="lp64d",
)
WASM32 = Architecture(
    "wasm32",
    ("wasm32",),
    0,
    (Feature("simd128", "simd128"), Feature("relaxed-simd", "relaxed_simd")),
    environments=(),
    address_bits=32,
)
ARCHITECTURES = (X86_64, AARCH64, ARMV7, RISCV64, WASM32)


def architecture(triple: str) -> Architecture | None:
    """The architecture of a triple, or None if modelc does not know it."""
    first = triple.split("-")[0]
    return next((arch for arch in ARCHITECTURES if first in arch.triples), None)


def implied_features(cpu: str) -> tuple[str, ...]:
    """What an x86-64 level includes. LLVM's other CPU names imply features too, which modelc does not know."""
    levels = tuple(X86_64_LEVELS)
    included = levels[: levels.index(cpu) + 1] if cpu in levels else ()
    return tuple(feature for level in included for feature in X86_64_LEVELS[level])
