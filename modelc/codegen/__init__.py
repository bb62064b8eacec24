"""Nest -> machine code: the only room that imports tvm.

math/        scalar operations on vectors: casts, whole numbers, polynomials
intrinsics/  applications of tensor intrinsics, and testing them against their semantics
lower/       Nest -> TIR
opaque.py    opaque Blocks as C functions
kernels.py   TIR -> object file
pack.py      constants as kernels read them
"""
