"""Nest -> machine code: the only room that imports tvm.

vectors.py   small words of TIR: sequences, vectors made of scalars and taken apart
math/        scalar operations on vectors: casts, whole numbers, polynomials
intrinsics/  applications of tensor intrinsics, and testing them against their semantics
lower/       Nest -> TIR
opaque.py    opaque Blocks as C functions
kernels.py   Nest -> Kernel: an object file, or C source
llvm.py      TIR -> LLVM; llvm_check.py asks first whether it makes code for a CPU at all
lean_tvm.py  importing TVM, which nothing else does
"""
