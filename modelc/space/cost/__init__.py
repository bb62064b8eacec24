"""The price of schedules in closed form: nothing is lowered and nothing is measured (docs/price.md).

work.py           what schedules do, in named quantities: what every Sketch gives
terms.py          seconds of it, by the coefficients of a machine: nothing else computes them
step.py           one reduction step of a register tile: the formula that all others share
conflicts.py      cache-set conflicts of rows that lie apart, and pages
register_tile.py  register tiles of a contraction over its whole iteration space
model.py          what the analytic cost needs to know of a tiled Task, once for all points
analytic.py       tiled Tasks: a roofline over every memory level, for a population at once
moving.py         seconds of moving what lies beyond the nearer caches
roofline.py       what no schedule of a Task is faster than
blocks.py         any Candidate, from its loops and accesses

What is fitted in them stands in the Target: CostParameters (target/cost.py).
"""
