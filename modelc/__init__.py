"""modelc: ONNX models to self-contained native packages."""
