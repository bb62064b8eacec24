"""The domain ai.onnx.ml: classical models.

linear.py          linear models, encoders, scalers
support_vectors.py support vector machines
tree_tables.py     ensembles of decision trees as tables
trees.py           those that a file states
"""
