"""How values are stored, over the whole Graph (ALT, sections 4 to 6).

rules.py        by rule: channels last where windows slide
classes.py      which values share a layout, and the Layouts that they may have
parameters.py   which parameters of layouts a class is offered
elimination.py  least sums of tables over few-valued variables
costs.py        tables of Tasks' seconds, optimistic until they matter
restored.py     the Tasks of one draft where values are stored otherwise
propagated.py   the tables of layouts that spread through maps
separate.py     the tables of layouts at complex operators alone
choice.py       by cost: the least sum of what every Task's schedule costs in the layouts around it
marginals.py    what the best assignment costs with another value of a variable
near.py         layouts that are nearly as good by estimate, and what is best by measurements
cuts.py         where Tasks could end that go on
convert.py      a choice of layouts, and its conversion operators
program.py      Graph -> Program
chains.py       which Tasks of a Program become chains, by their price
"""
