"""What each ONNX operator becomes in the Graph, of any operator set, also where sizes depend on data.

form.py       what becomes of one operator, and what that is written with
shapes.py     operators that change shapes, or make tensors of a shape
parts.py      Slice, Split, Concat, Pad
arithmetic.py element by element, products, normalisations
sums.py       reductions, and what goes along an axis
windows.py    convolutions, pools, Resize
addressed.py  gather and scatter
finding.py    NonZero, Compress, NonMaxSuppression, Unique
random.py     random numbers
ranges.py     Range
recurrent.py  LSTM, GRU and RNN as a loop over time
table.py      the forms of all operators, and their rows
counted.py    sizes that depend on data as numbers
"""
