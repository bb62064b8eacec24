"""Nest -> TIR.

leaves.py       what lowering asks of a Leaf: how accesses move from lane to lane, conditions
places.py       where Regions are: in memory, in registers, in what an intrinsic accumulates in
expressions.py  expressions and accesses, on scalars and on the lanes of a vector loop
transpose.py    rectangles of moves, transposed in registers
pipelining.py   loops tagged `pipeline`: one iteration's epilogue beside the next one's reduction
in_place.py     outputs that may lie where an input was
nest.py         one plain C function for each phase of a Nest
"""
