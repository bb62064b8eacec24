"""What operators are imported with.

limits.py    how large what a model holds may be
trips.py     how often loops run, at several sizes
functions.py domains, operator sets, schemas; functions by which operators are defined
build.py     the Graph while nodes go in one by one
fold.py      nodes whose inputs are all constant, computed while importing
rooms.py     how much room there is behind a node for what it found
sizes.py     what is said of sizes that depend on data
intervals.py where the numbers of a value lie, whatever the data
formula.py   one ONNX node, written operator by operator
bounded.py   sizes that are computed from data, and their bounds
bodies.py    bodies of branches and loops
merged.py    what branches give in one shape
composed.py  operators that are several others
sliding.py   parts that begin where data says
"""
