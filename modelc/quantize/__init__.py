"""From a float model to bytes: what is rounded, by which scales, and what stays in floats, is chosen by samples.

samples.py     calibration data: what is calibrated on, and what is held back to judge by
running.py     models on samples, several side by side
drop.py        what a drop is; relative errors
measure.py     how much worse outputs are, by what they look like: class scores, embeddings, detections (boxes.py)
by_metric.py   the same by a user's metric
statistics.py  what activations are: the ranges that each may be rounded by, and what channels are divided by
trials.py      each layer by itself: the range that its output is nearest with, asymmetric weights, float16
smoothing.py   the values whose channels are divided
network.py     what layers in bytes or float16 add to the outputs of the network
price.py       the seconds that bytes and float16 save in each layer, by the compiler's estimate
tables.py      the tables whose rows are bytes
cut.py         what goes back to float32, or first to other forms of bytes or float16, until the drop holds
subject.py     a model, its samples and what is known of both before anything is decided
decide.py      how each layer is computed
trade_off.py   what fewer layers in bytes take and lose
dynamic.py     bytes without samples: rounding by row
packed.py      weights and tables of few bits: rounded by samples, and wider until the drop holds
command.py     the command: a CompileRequest with samples becomes a Recipe, and a package
"""
