"""An ONNX file: checked, read, typed.

given.py      models as users give them: files, or what is in memory
check.py      whether a model is one by ONNX's own schemas
read.py       the protobuf, its versions and the data of its tensors
attributes.py attributes as Python values
outline.py    a model but for its large tensors
origin.py     what a model says of itself
importing.py  the state of one import
types.py      what ONNX's inference says of a node
"""
