"""Derivation rules: Task -> Task (Ansor, table 1). Each application is a stage of a Candidate.

rule.py          what they have in common
caching.py       inline, pad, cache_read, cache_write, stage_write: a copy before or after a Block, or none
dimensions.py    collapse, factor, expose: one dimension of two, two of one
fuse.py          two reductions as one, and the constant that they index with it
rfactor.py       a reduction into partial results, then of these
online.py        the same of a row's maximum, its sums and what it weighs together: attention over keys in parts
deinterleave.py  a copy in which every so many elements lie side by side
strassen.py      products of matrices by fewer products of their parts
winograd.py      minimal filtering F(m x m, r x r); filters.py: its matrices; windows.py: what it is for
sums.py          several sums of the same values (of these two rules): what they share is computed once
defer.py         a factor that all terms of a sum have in common is multiplied in after it
widen.py         a local in the wider dtype that it is read as
extend.py        zeros behind what a map writes, and a reduction over them
derivation.py    the registry: rules by name, users' own among them
"""
