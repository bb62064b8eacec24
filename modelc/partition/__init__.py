"""Graph -> Tasks.

pieces.py           the meaning of every node as Blocks over the Graph's value names
sink.py             moves go below the maps that read them
views.py            which values are Regions of others, and need no Task
groups.py           groups of Pieces that become Tasks, and an order in which they can run
attention.py        attention as one Task
fuse.py             which Pieces make one Task
stored_bytes.py     what Tasks write for others, as the bytes that it was rounded to
tasks.py            groups -> Tasks and the Program: names, buffers, storage
chains.py           Tasks of a Program of which one reads what another writes, as one
draft.py            all of it: Graph -> Draft
precision.py        Program -> Program: contractions in bfloat16 with sums in float32, or in float16
narrow_products.py  which contractions are worth it, how far sums go in float16, which targets have instructions for it
narrow_task.py      one Task with buffers in fewer bits
half_sums.py        long sums in float16 in parts
"""
