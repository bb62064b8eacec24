"""A model of float32 as one whose layers multiply bytes: QuantizeLinear and DequantizeLinear around them.

recipe.py      what is rounded to bytes, and by which scales: with the float model it makes the other again
floats.py      the float model that a Recipe is about: named nodes, batch norms folded
layers.py      which nodes can multiply bytes, and where what they read is rounded
scores.py      which outputs look like class scores
equalise.py    channels scaled up in one layer and down in the next, so that one scale fits them
weights.py     weights as bytes, a scale for each output channel
write.py       the quantized model of a Recipe
statistics.py  a model that says what ranges the activations have
trials.py      a model that says what each way to round adds to its layer
switched.py    a model in which each layer multiplies bytes or not, as inputs say
"""
