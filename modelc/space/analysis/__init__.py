"""Closed forms on Blocks and their affine accesses; operators have no names here.

loops.py       what the names of loops say: trips, values covered
access.py      strides of accesses in storage
footprint.py   bytes and lines that tiles touch, and what crosses a cache, for many tiles at once
boxes.py       which elements a part of an iteration space touches
conditions.py  what loops decide of conditions on iterators
work.py        operations of a Block, and the dtype that it computes in
words.py       what is multiplied as words of several numbers
around.py      what surrounds the one reduction of a Task
follow.py      where a map runs that reads what comes out of a register tile's epilogue
match.py       whether an intrinsic computes what a Block does (TensorIR, section 4.2)
"""
