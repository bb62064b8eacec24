"""A model of float32 as one whose layers multiply bytes, QuantizeLinear and DequantizeLinear around them; or as one
whose weights have four bits.

recipe.py    what is rounded to bytes, and by which scales: with the float model it makes the other again
floats.py    the float model that a Recipe is about: named nodes, batch norms folded
layers.py    which nodes can multiply bytes, and where what they read is rounded
outputs.py   which outputs look like class scores or embeddings
equalise.py  channels scaled up in one layer and down in the next, so that one scale fits them
weights.py   weights as bytes, a scale for each output channel, or as numbers of four bits, one for each block of them
packing.py   which products have weights of four bits, and the model in which they are MatMulNBits
dynamic.py   products of activations that are rounded by row as they are computed, and tables of bytes
write.py     the quantized model of a Recipe or Packing, and what stands for layers in float16
trials.py    models that say what activations are, and what each way to round adds to its layer
switched.py  a model in which each layer multiplies bytes, float16 or float32, as inputs say
"""
