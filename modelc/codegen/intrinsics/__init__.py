"""Tensor intrinsics as TIR (TensorIR, section 4.1).

lowering.py      what lowering needs for one leaf: loads, products, stores, set-up
applications.py  loops tagged `intrin:NAME`
check.py         intrinsics run against their own semantics
checked.py       the processes that do so; a user's intrinsics before they are compiled with
"""
