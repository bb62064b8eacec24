"""Every kernel by itself: are its constants the model's, is its schedule the model, is the machine code the schedule?

calls.py     which Task each step of a package is of, and where what it reads and writes lies
stored.py    values as kernels store them, and as the model has them
samples.py   which elements are looked at
meaning.py   what they should be: by the imported nodes, or by the Task's Blocks
rounding.py  numbers with what rounding may have done to them
machine.py   the arithmetic of a kernel: each result rounded, sums in the order of its loops
elements.py  elements that were computed, and points that they are computed at
inverse.py   which points of a Block write an element
products.py  contractions of scattered samples
definitions.py where numbers of buffers come from
demand.py    some elements of what Blocks compute, by one of these arithmetics
blueprint.py how a variant of a package was made; in which order its kernels add up
imported.py  its constants beside those of the ONNX file
constants.py params.bin, unpacked, beside the model's constants
schedule.py  what Tasks mean beside the imported nodes, in float64
computed.py  what a kernel wrote beside what its arithmetic makes of what it read
reading.py   numbers beside what is expected, and the verdict
memory.py    what was written so far: what is read has to be that
room.py      how much of it is remembered
judge.py     the verdict on every call
report.py    what was found
"""
