"""Inputs that steer a model.

specialise.py free dimensions get their sizes
flags.py      what a user fixes: dimensions, constants, shapes, data
npy.py        arrays in files, looked at before they are read
uses.py       which inputs steer the model, and which become indices
declared.py   inputs and outputs before anything is fixed
flow.py       where the numbers of an input go, moved, scaled and shifted
wholes.py     how large the whole numbers of an input may be
aims.py       thresholds, ties, choices, boxes and pixels that numbers are drawn for
unread.py     rows of tables that no drawn index named
masks.py      inputs that hide positions, and lengths
states.py     inputs and outputs that look like a state
"""
