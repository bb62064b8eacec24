"""How values are stored, over the whole Graph (ALT, sections 4 to 6).

rules.py        by rule: channels last where windows slide
classes.py      which values share a layout, and the Layouts that they may have
elimination.py  least sums of tables over few-valued variables
costs.py        tables of Tasks' seconds, optimistic until they matter
choice.py       by cost: the least sum of what every Task's schedule costs in the layouts around it
convert.py      a choice of layouts, and its conversion operators
program.py      Graph -> Program
"""
