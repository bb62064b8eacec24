"""A model in ONNX Runtime, on one thread."""

from __future__ import annotations

import onnx
import onnxruntime as ort


def session_of(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
