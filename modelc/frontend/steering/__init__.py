"""Inputs that steer a model.

specialise.py free dimensions get their sizes
flags.py      what a user fixes: dimensions, constants, shapes, data
uses.py       which inputs steer the model, and which become indices
masks.py      inputs that hide positions, and lengths
states.py     inputs and outputs that look like a state
"""
