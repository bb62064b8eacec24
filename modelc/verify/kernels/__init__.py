"""Every kernel by itself, on samples, in float64.

calls.py     which Task each step of a package is of, and where what it reads and writes lies
stored.py    values as kernels store them, and as the model has them
samples.py   which elements are looked at
meaning.py   what they should be: by the imported nodes, or by the Task's Blocks
rounding.py  numbers with what rounding may have done to them
inverse.py   which points of a Block write an element
products.py  contractions of scattered samples
demand.py    some elements of what Blocks compute
blueprint.py how a variant of a package was made
reading.py   what a kernel wrote beside what it means, and the verdict
shadow.py    what was written so far: what is read has to be that
judge.py     the verdict on every call
report.py    what was found
"""
