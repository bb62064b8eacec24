"""Every kernel by itself, on samples, in float64.

calls.py     which Task each step of a package is of, and where what it reads and writes lies
stored.py    values as kernels store them, and as the model has them
samples.py   which elements are looked at
meaning.py   what they should be: by the imported nodes, or by the Task's Blocks
demand.py    some elements of what Blocks compute
rounding.py  numbers with what rounding may have done to them
judge.py     the verdict on every call
report.py    what was found
"""
