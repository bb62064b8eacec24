"""Control flow.

structure.py names, order and liveness of a graph before shapes are known
sequences.py sequences of tensors
branches.py  an If that is left to a run
repeat.py    Loop and Scan that are left to a run
carried.py   what such a loop carries
unroll.py    Loop and Scan of a trip count that is known
"""
