"""Searching for the fastest Candidates by measuring. How candidates are measured is handed in.

population.py  points of every Sketch of one Task as rows of one array: what of them is legal, and estimated
learned.py     the learned cost: trees correct the estimates, of all Tasks at once
evolve.py      explorers: evolution (Ansor, section 5.1), random
ppo.py         an explorer of actors that learn (ALT, section 5.2)
explorers.py   explorers by name
transfer_tuning.py  what was faster for one Task, for others to try
objectives.py  what is to become small (Ansor, section 6), of networks that have alternatives
scheduler.py   which Task is worth the next round (Ansor, section 6)
cross.py       the same while alternatives are judged (ALT, section 5.2)
tune.py        the loop: rounds of one Task's batch within a budget, and what it found
standing.py    how tuning stands after a round
resume.py      beginning where the records of a database end, and adding to them
"""
