"""Seconds of schedules in closed form: nothing is lowered and nothing is measured.

model.py     what the cost of a tiled Task is computed from, once for all points
analytic.py  tiled Tasks: a roofline over every memory level, for a population of knob vectors at once
overlap.py   what goes on at once: computing, and fetching constants ahead
apart.py     rows that lie apart: cache-set conflicts, pages
seconds.py   any Candidate, from its loops and accesses
"""
