"""From a float model to bytes: what is rounded, by which scales, and what stays in floats, is chosen by samples.

samples.py     calibration data: what is calibrated on, and what is held back to judge by
measure.py     how much worse outputs are: by themselves, or by a user's metric
trials.py      each layer by itself: the range that its output is nearest with, asymmetric weights, float16
price.py       the seconds that bytes and float16 save in each layer, by the compiler's estimate
cut.py         what goes back to float32, or first to asymmetric weights or float16, until the drop holds
decide.py      how each layer is computed
command.py     the command: a CompileRequest with samples becomes a Recipe, and a package
"""
