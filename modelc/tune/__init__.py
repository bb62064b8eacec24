"""Schedules that are measured.

search/          populations over all Sketches of a Task, explorers, the learned cost, the task scheduler, rounds
alternatives.py  layouts and cuts that are nearly as good as those that estimates like best
networks.py      the networks that are tuned, and their Tasks
joint.py         the two stages: layouts with loops, then loops alone
end_to_end.py    packages timed by turns
retiming.py      the fastest kernels of each Task timed among their neighbours in the network
selection.py     which kernels, and which package, are written
any_size.py      the same of a package of any size, in finals at three sizes
request.py       what is asked for: the table of options
command.py       the command: budget, stages, results
"""
