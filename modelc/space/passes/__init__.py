"""Passes over the Blocks of a Task, which a target's YAML lists with their options (Stripe, sections 1.3 and 3.3).
They make the Task's Candidate: nothing is searched.

scheduling.py  a Task on its way through the passes, and the Candidate that it leads to
tensorize.py   the innermost tile of a Block is one application of an intrinsic
autotile.py    a Block is cut into the tiles of least cost among those that fit into a memory
listed.py      the passes by name, and a list of them applied to a Task
"""
