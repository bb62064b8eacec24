"""From a float model to bytes: what is rounded, by which scales, and what stays in floats, is chosen by samples.

samples.py   calibration data: what is calibrated on, and what is held back to judge by
measure.py   how much worse outputs are: by themselves, or by a user's metric
ranges.py    the ranges that an activation may be rounded by
smoothing.py what the channels of a value are divided by, so that one scale fits them
price.py     the seconds that bytes and float16 save in each layer, by the compiler's estimate
trials.py    each layer by itself: the range that its output is nearest with, and what it is off then
asymmetric.py which layers can have weights with zero points
halves.py    which layers can multiply float16, and what they are off then
network.py   the network with any choice of layers in bytes and float16
cut.py       what goes back to float32, or first to asymmetric weights or float16, until the drop holds
calibration.py what a calibration works with: samples, the float model, what the compiler estimates
decide.py    how each layer is computed
command.py   the command: a CompileRequest and a Calibration become a Recipe, and a package
"""
