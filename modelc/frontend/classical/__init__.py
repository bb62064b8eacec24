"""The domain ai.onnx.ml: classical models.

linear.py          linear models, encoders, scalers
support_vectors.py support vector machines
trees.py           ensembles of decision trees
"""
