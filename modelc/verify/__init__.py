"""Packages against what they mean: kernels, outputs, speed. `modelc.verify` is in compile/verification.py: a package is
first read with its choices.

draw.py, check.py        inputs that a model makes sense of, and running a package on them
draw_*.py                whole numbers and indices, and real numbers, for what the model makes of them
found.py                 the sizes that runs find
ways.py                  inputs that take each way through control flow
kernels/                 every kernel by what it means
whole.py, reference.py   ONNX Runtime beside the whole
saturation.py            how far ONNX Runtime's own products of bytes saturate
witness.py, pieces.py    ONNX Runtime beside single kernels, where the whole departs
beginning.py             where a departure begins that a model amplifies
compare.py               how far two tensors are apart, and whether that is near enough
narrow.py                which outputs are computed through 16-bit floats
verdict.py, report.py    whether a package is right, and what is said of it
as_used.py, habits.py    the same bits as users run it: unwatched, on any threads, buffers and handles
engine.py, worker.py     a package, ONNX Runtime or OpenVINO in a process of its own
bench.py, profile.py     speed side by side; time by kernel
rounds.py, slower.py     whether a package, or a kernel, is slower than another
counts.py                how many instructions a run takes
run.py                   a package run once
diff.py                  what two packages differ in
"""
