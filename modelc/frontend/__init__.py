"""ONNX models become Graphs: normalised nodes of static shapes (onnx.py), from files that others wrote.

load/        an ONNX file: checked, read, typed
steering/    inputs that steer shapes and branches, masks, states that a model carries
building/    what operators are imported with: limits, functions, folding, sizes that depend on data
operators/   operators of many forms in one, and those whose sizes or draws depend on data
control/     branches, loops and sequences
microsoft/   the domain com.microsoft: fused and quantized operators of ONNX Runtime
classical/   the domain ai.onnx.ml: linear models, trees, support vectors
quantize/    a model of float32 as one whose layers multiply bytes, from scales that are given
witness/     models, and parts of them, as ONNX Runtime is given them to compare with
"""
