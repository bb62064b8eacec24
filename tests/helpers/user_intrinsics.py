"""Intrinsics as users describe them in YAML."""

from __future__ import annotations

# Products of 16-bit numbers, by which a target can do without those of the shipped file.
PAIRS = """
intrinsics:
  - name: pairs
    architecture: x86_64
    features: [avx512f, avx512bw]
    instruction: vpmaddwd
    operands:
      C: {dtype: int32, shape: [16], lies: vector}
      A: {dtype: int16, shape: [2], lies: memory}
      B: {dtype: int16, shape: [16, 2], lies: vector}
    semantics: |
      block dot [i:16 | k:2] add
        C[i] += int32(A[k]) * int32(B[i, k])
    implementation: >-
      C + call("llvm.x86.avx512.pmaddw.d.512", int32x16, bitcast(int16x32, broadcast(bitcast(int32, A), 16)), B)
    roundings: 0
    throughput: 2.0
    latency: 6
    temporaries: 2
"""
