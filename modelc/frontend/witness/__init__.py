"""What ONNX Runtime is given to compare with, and what the importer's constants are compared with.

surgery.py  a model with inner values exposed, or cut there
excerpt.py  some nodes as a model of their own
restated.py a model in operators that ONNX Runtime takes
given.py    a model as a package has it, its draws as inputs
reference_evaluator.py  the reference evaluator of onnx on a part
unsigned.py signed weights stated as unsigned ones
stated.py   the constants of a file as onnx reads them
forests.py  ensembles of trees as their attributes state them
"""
