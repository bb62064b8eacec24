"""The C runtime that goes into every package, and the Python loader. Imports the standard library and numpy alone."""

from modelc.runtime.bits import as_bits
from modelc.runtime.files import ModelError, Stopped
from modelc.runtime.loader import Frame, Model, StepProfile, TensorInfo, Variant, aligned, load
from modelc.runtime.session import InferenceSession, SessionOptions

__all__ = [
    "Frame",
    "InferenceSession",
    "Model",
    "ModelError",
    "SessionOptions",
    "StepProfile",
    "Stopped",
    "TensorInfo",
    "Variant",
    "aligned",
    "as_bits",
    "load",
]
