"""The plan of a package: every buffer's place, constants packed once, kernels in order (program.py, memory.py); steps
that repeat become loops (roll.py), and control flow's steps lie among the others (structure.py)."""
