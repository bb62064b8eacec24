"""Scalar operations (ir/expr.py's table) as TIR, on scalars and on vectors.

code.py         how operations are written in TIR
llvm_text.py    functions of LLVM's own text, for what TIR cannot say
integers.py     bools and whole numbers
select.py       floats: selection, comparison, rounding
polynomials.py  functions of float32 by polynomials
periodic.py     sin and cos of float32
rounded.py      functions of what is rounded to bfloat16: half the instructions
casts.py        conversions between dtypes
floats.py       operations on floats
operations.py   the table of all of them
"""
