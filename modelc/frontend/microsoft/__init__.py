"""The domain com.microsoft: ONNX Runtime's own operators.

fused.py     fused operators
quantized.py what its quantizers emit
blocks.py    weights of few bits with a scale for each block
attention.py attention and what stands around it
recurrent.py DynamicQuantizeLSTM
"""
