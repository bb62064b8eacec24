"""Task -> Candidates -> Nest: every way to compute a Task, what it costs, and the loops that it becomes.

rules/        Task -> Task: the derivation rules (Ansor, table 1), and the registry for users' own
analysis/     closed forms on Blocks: accesses, footprints, boxes, conditions, loops, matching of intrinsics
tiling/       the facts of a tiled Task: register tiles in macro loops, parallel loops, operations
sketches/     the ways to compute each kind of Task: contractions, Winograd, attention, rows, reductions, maps
cost/         seconds of schedules, from footprints, micro-kernel and Target
construct.py  Gensor's walks: good schedules without measuring
check.py      whether a Candidate is a schedule of its Task at all: one sentence says what is not
choose.py     candidates by estimated time; the first that its Nest's verifier accepts
carry.py      what was measured on a machine of the family for equal and near Tasks, where the price allows
nest/         Candidate -> Nest; software prefetch
passes/       the passes over Blocks that a target lists: tensorize, autotile
"""
