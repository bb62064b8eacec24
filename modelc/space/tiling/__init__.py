"""The facts of a tiled Task and the loops that knobs make of it, for the Sketches and for their price.

tiled.py       contractions and windows: a register tile of units inside macro loops; what a unit is asked
parallel.py    which loop goes to threads, and how much of it the busiest core has
operations.py  vector operations of what a Block computes at one point
"""
