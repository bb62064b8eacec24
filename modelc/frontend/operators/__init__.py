"""Operators of many forms in one, and those whose sizes or draws depend on data.

normalise.py operators of every operator set in the form of the newest
recurrent.py LSTM, GRU and RNN as a loop over time
random.py    random numbers
ranges.py    Range
finding.py   NonZero, Compress, NonMaxSuppression, Unique
windows.py   convolutions and pools over a counted dimension
counted.py   operators whose inputs are counted
addressed.py gather and scatter where something is counted
"""
